"""Wherever numbers of the trained model stand, it says which model it is, and results carry its fingerprint."""

import json
from pathlib import Path

import pytest

from attnscope.downloads import MODELS
from attnscope.labs import NAMES
from attnscope.labs.pages import models_line

ROOT = Path(__file__).resolve().parents[2]
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
SMOLLM2 = MODELS["smollm2-135m"]
PAGES = ["quickstart", "heads", "models", "peers", "scale", "guides/ablate", "stories/dials", "stories/far_sight"]
LABS = [
    name for name in NAMES if "trained_model" in (ROOT / f"src/attnscope/labs/experiments/{name}.py").read_text("utf-8")
]


@pytest.mark.parametrize("page", [ROOT / "README.md", *(DOCS / f"{name}.md" for name in PAGES)], ids=lambda p: p.stem)
def test_a_page_names_the_model_of_its_numbers(page: Path) -> None:
    assert SMOLLM2.description in " ".join(page.read_text("utf-8").split())


@pytest.mark.parametrize("name", NAMES)
def test_a_lab_names_the_model_it_measured(name: str) -> None:
    models = json.loads((RESULTS / "labs" / f"{name}.json").read_text("utf-8"))["models"]
    assert [model["hash"] for model in models] == ([SMOLLM2.fingerprint] if name in LABS else [])
    page = (DOCS / "labs" / f"{name}.md").read_text("utf-8")
    assert (models_line(models) in page) if models else ("Trained model:" not in page)


def test_some_labs_use_the_trained_model() -> None:
    assert "trained_heads" in LABS
    assert len(LABS) < len(NAMES)


@pytest.mark.parametrize("result", sorted(RESULTS.glob("story_*.md")), ids=lambda path: path.stem)
def test_a_story_names_the_model_it_measured(result: Path) -> None:
    assert f"- model: {SMOLLM2.description}, fingerprint {SMOLLM2.fingerprint}\n" in result.read_text("utf-8")
