"""The vectors that the page of steps is tested against are what AttnScope computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.steps.make_golden import golden

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


def numbers(entry: Any, path: str = "") -> dict[str, Any]:
    """All numbers and names, by their place."""
    if isinstance(entry, dict | list):
        pairs = entry.items() if isinstance(entry, dict) else enumerate(entry)
        return {place: leaf for name, one in pairs for place, leaf in numbers(one, f"{path}/{name}").items()}
    return {path: entry}


def test_the_golden_vectors_are_what_the_library_computes() -> None:
    kept, computed = numbers(GOLDEN), numbers(golden())
    assert len(kept) > 1000
    assert kept == {place: pytest.approx(leaf, abs=1e-8) for place, leaf in computed.items()}


def test_the_example_by_hand_is_as_printed() -> None:
    scaled, plain, *_ = GOLDEN["attention"]
    assert scaled["weights"][0] == pytest.approx([0.401, 0.198, 0.401], abs=5e-4)
    assert plain["weights"][2] == pytest.approx([0.21, 0.21, 0.58], abs=5e-3)
    assert scaled["output"][0] == pytest.approx([6.02, 3.98], abs=5e-3)
