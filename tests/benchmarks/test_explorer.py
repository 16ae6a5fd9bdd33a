"""What the explorer must cost, at a reduced size: `scripts/measure explorer` runs the full one."""

from __future__ import annotations

import pytest

from attnscope.bench import Size
from benchmarks.explorer import PLACES, Plan, Visit, heads_table, opening_table, panning_table, tables
from benchmarks.publishing.viewer import find_chromium

PLAN = Plan(tokens=1024, visits=2, heads=2, pans=1)


def test_medians_are_held_to_their_bounds_and_frames_by_their_95th_percentile() -> None:
    quick = Visit((0.1, 0.2, 0.9), [(0.1, 0.5), (0.2, 0.6)], [(0.1, 0.2), (0.1, 0.2)], {"near": [0.01] * 99 + [1.0]})
    slow = Visit((0.1, 0.2, 1.3), [(0.5, 0.5), (0.6, 0.6)], [(0.4, 0.5), (0.4, 0.5)], {"near": [0.01] * 9 + [0.1]})
    assert [row[-1] for row in opening_table([quick, slow], PLAN).rows] == ["", "", "NO"]
    assert [row[-1] for row in opening_table([quick, quick], PLAN).rows] == ["", "", "yes"]
    assert opening_table([quick, slow], PLAN).rows[2][1:3] == ("1.1 s", "1.3 s")
    assert [row[-1] for row in heads_table([slow, quick], PLAN).rows] == ["NO", "", "yes", ""]
    assert [row[-1] for row in heads_table([quick, slow], PLAN).rows] == ["NO", "", "NO", ""]
    assert panning_table([quick], PLAN).missed == []
    assert len(panning_table([slow], PLAN).missed) == 1


@pytest.mark.slow
@pytest.mark.skipif(find_chromium() is None, reason="needs Chromium")
def test_a_short_text_is_measured_in_a_browser() -> None:
    opening, heads, panning = tables(Size.SMALL, lambda _: None)
    assert [row[0] for row in opening.rows] == ["first paint", "first picture", "first heatmap"]
    assert len(heads.rows) == 4
    assert [row[0] for row in panning.rows] == list(PLACES)
