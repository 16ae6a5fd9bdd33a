"""What asking all heads must cost, at a reduced size: `scripts/measure find_heads` runs the full one."""

from __future__ import annotations

import pytest

from attnscope.bench import Size
from benchmarks.find_heads import BOUNDS, tables


@pytest.mark.timed
def test_questions_about_all_heads_keep_their_bounds() -> None:
    (table,) = tables(Size.SMALL, lambda _: None)
    assert [row[2] for row in table.rows] == ["pair", "row", "span to span"] * 2
    assert [bool(row[-1]) for row in table.rows] == [row[2] in BOUNDS for row in table.rows]
    assert table.missed == []
