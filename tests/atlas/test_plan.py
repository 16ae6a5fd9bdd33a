"""A plan covers every cell of its matrix once at every level."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from attnscope.atlas.plan import TILE_SIZE, ZoomPlan, axis_edges
from attnscope.errors import SettingError
from tests.atlas import make_golden

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
SHAPES = [(n, n) for n in (1, 2, 5, 255, 256, 257, 1000, 100_003)] + [(300, 70), (70, 300), (1, 9000)]


def test_the_golden_file_is_what_its_script_writes() -> None:
    assert (Path(__file__).parent / "golden.json").read_text() == make_golden.text()


@pytest.mark.parametrize("right", GOLDEN["plans"], ids=lambda plan: f"{plan['queries']}x{plan['keys']}")
def test_plans_are_the_golden_ones(right: dict) -> None:
    plan = ZoomPlan(right["queries"], right["keys"])
    assert plan.deepest == right["deepest"]
    assert GOLDEN["tile"] == TILE_SIZE
    for level in right["levels"]:
        z, down, across = level["z"], level["down"], level["across"]
        assert plan.stride(z) == level["stride"]
        assert plan.count_tiles(z) == (down, across)
        for edges, side in zip(plan.edges(z, down - 1, across - 1), ("rows", "columns"), strict=True):
            found = {"bins": len(edges) - 1, "start": edges[0], "lastStart": edges[-2], "stop": edges[-1]}
            assert found == level["last"][side]


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_of_every_level_cover_both_axes_without_a_gap(shape: tuple[int, int]) -> None:
    plan = ZoomPlan(*shape)
    assert plan.count_tiles(0) == (1, 1)
    assert plan.stride(plan.deepest) == 1
    for z in range(plan.deepest + 1):
        down, across = plan.count_tiles(z)
        stops = [0, 0]
        for block in range(max(down, across)):
            for side, count in enumerate((down, across)):
                if block < count:
                    edges = plan.edges(z, min(block, down - 1), min(block, across - 1))[side]
                    assert edges[0] == stops[side]
                    assert len(edges) - 1 <= TILE_SIZE
                    assert {high - low for low, high in pairwise(edges[:-1])} <= {plan.stride(z)}
                    stops[side] = edges[-1]
        assert tuple(stops) == shape


def test_coarse_levels_are_those_from_stride_32_on() -> None:
    assert list(ZoomPlan(131_072, 131_072).coarse_levels) == [4, 3, 2, 1, 0]
    assert list(ZoomPlan(8192, 8192).coarse_levels) == [0]
    assert list(ZoomPlan(4096, 4096).coarse_levels) == []
    assert list(ZoomPlan(1, 1).coarse_levels) == []


@pytest.mark.parametrize("place", [(3, 0, 0), (-1, 0, 0), (2, 4, 0), (2, 0, 1), (2, -1, 0), (0, 1, 0), (10**9, 0, 0)])
def test_tiles_outside_are_refused(place: tuple[int, int, int]) -> None:
    with pytest.raises(IndexError, match=r"tiles of level|a level from 0"):
        ZoomPlan(1000, 200).edges(*place)


def test_blocks_outside_are_refused() -> None:
    assert axis_edges(600, 1, 2) == [*range(512, 601)]
    for block in (3, -1):
        with pytest.raises(IndexError, match="length 600"):
            axis_edges(600, 1, block)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (-1, 4)])
def test_a_map_of_nothing_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(SettingError, match="one query and one key"):
        ZoomPlan(*shape)
