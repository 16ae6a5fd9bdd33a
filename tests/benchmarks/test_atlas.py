"""What the map of a head must cost, at a reduced size: `scripts/measure atlas` runs the full one."""

import pytest

from benchmarks.atlas import levels, tiles

pytestmark = pytest.mark.timed


def test_the_tables_tell_of_every_stride_and_of_the_levels() -> None:
    found = tiles(8192, 4)
    assert [row[0] for row in found.rows] == [f"{stride} x {stride}" for stride in (1, 2, 4, 8, 16)]
    assert found.missed == []
    assert [row[0] for row in levels(8192).rows] == ["time", "cached afterwards", "peak memory of the process"]
