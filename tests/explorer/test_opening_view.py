"""What is computed before the page opens is what the page asks for first."""

from __future__ import annotations

import pytest

from attnscope.atlas import ZoomPlan
from attnscope.explorer.library.library import Library
from attnscope.explorer.library.opening_view import prepare_opening, tiles_of_whole
from tests.explorer.serving import small_trace
from tests.explorer.synthetic import random_head, trace_of


def test_what_the_page_asks_for_first_is_in_the_cache() -> None:
    library = Library()
    entry = library.entry(library.add(trace_of([[random_head(3000, seed=seed) for seed in range(2)]]), name="long"))
    assert entry is not None
    prepare_opening(library, 60)
    opening = entry.scores.opening()["opening"]
    head = opening["layer"], opening["head"]
    found = library.find_open_head(entry, *head)
    assert found is not None
    count = len(library.cache)
    library.preview(entry, *head)
    for level, row, column in [(1, 0, 0), (1, 1, 0), (1, 1, 1)]:
        found.atlas.tile(level, row, column, "mean")
    assert len(library.cache) == count > 3
    found.atlas.tile(2, 0, 0, "mean")
    assert len(library.cache) == count + 1, "or the count would say nothing"
    library.close()


def test_a_short_text_is_prepared_too() -> None:
    library = Library()
    entry = library.entry(library.add(small_trace(), name="small"))
    assert entry is not None
    prepare_opening(library, 60)
    opening = entry.scores.opening()["opening"]
    assert library.find_open_head(entry, opening["layer"], opening["head"]) is not None
    library.close()


@pytest.mark.parametrize("has_trace", [True, False])
def test_without_time_or_a_trace_nothing_is_prepared(has_trace: bool) -> None:
    library = Library()
    if has_trace:
        library.add(small_trace(), name="small")
    prepare_opening(library, 0)
    assert len(library.cache) == 0
    library.close()


@pytest.mark.parametrize(("queries", "level"), [(100, 0), (1000, 1), (8192, 1), (131_072, 1)])
def test_the_tiles_cover_all_that_is_not_masked(queries: int, level: int) -> None:
    plan = ZoomPlan(queries, queries)
    tiles = list(tiles_of_whole(plan, causal=True))
    down, _ = plan.count_tiles(level)
    assert tiles == [(level, row, column) for row in range(down) for column in range(row + 1)]
    assert len(list(tiles_of_whole(plan, causal=False))) == down**2
