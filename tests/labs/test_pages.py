"""The pages of the docs are what the labs say now, with the figures and verdicts of their results."""

import inspect
import json
import re
from pathlib import Path

import pytest

from attnscope.labs import CLAIMS, NAMES
from attnscope.labs.catalogue import heading, introduction, load_experiment, parts, title
from attnscope.labs.pages import INTERVALS, errata, exercises, index, lesson_line, models_line, verdicts
from scripts.make_labs import STEPS, claims_module

ROOT = Path(__file__).resolve().parents[2]
PAGES, IMAGES, RESULTS = ROOT / "docs/labs", ROOT / "docs/images/labs", ROOT / "benchmarks/results/labs"
MADE_BY = "make them again: .venv/bin/python scripts/make_labs.py"


def result(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_words_of_the_lab(name: str) -> None:
    module, text = load_experiment(name), (PAGES / f"{name}.md").read_text(encoding="utf-8")
    said = [f"# {title(module)}", introduction(module)]
    for part in parts(module):
        said += [f"## {heading(part.__name__)}", inspect.getdoc(part) or ""]
    for words in said:
        assert words in text, MADE_BY


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_numbers_and_figures_of_its_result(name: str) -> None:
    text, found = (PAGES / f"{name}.md").read_text(encoding="utf-8"), result(name)
    for claim in found["claims"]:
        assert claim["reason"] in text, MADE_BY
    if found["models"]:
        assert models_line(found["models"]) in text, MADE_BY
    if found["claims"]:
        assert INTERVALS in text, MADE_BY
    shown = re.findall(r"\]\(\.\./images/labs/\w+/(\w+)\.png\)", text)
    assert shown == [figure["name"] for figure in found["figures"]], MADE_BY
    assert sorted(shown) == sorted(path.stem for path in (IMAGES / name).glob("*")), MADE_BY


@pytest.mark.parametrize("name", NAMES)
def test_the_page_and_its_lesson_link_each_other(name: str) -> None:
    line = lesson_line(name)
    assert line in (PAGES / f"{name}.md").read_text(encoding="utf-8"), MADE_BY
    lesson = PAGES / line.partition("(")[2].partition(")")[0]
    assert f"../labs/{name}.md" in lesson.read_text(encoding="utf-8")


def test_the_lists_are_made_from_the_results() -> None:
    results = [result(name) for name in NAMES]
    assert (PAGES / "errata.md").read_text(encoding="utf-8") == errata(results), MADE_BY
    assert (PAGES / "index.md").read_text(encoding="utf-8") == index(results), MADE_BY
    seeds = [RESULTS / "seeds" / f"{name}.json" for name in NAMES]
    runs = [json.loads(path.read_text(encoding="utf-8")) if path.exists() else [] for path in seeds]
    assert (PAGES / "verdicts.md").read_text(encoding="utf-8") == verdicts(results, runs), MADE_BY
    assert (PAGES / "exercises.md").read_text(encoding="utf-8") == exercises(), MADE_BY


def test_the_page_of_steps_shows_the_verdicts_of_the_results() -> None:
    text = STEPS.read_text(encoding="utf-8")
    assert text == claims_module([result(name) for name in NAMES]), f"{MADE_BY}, and npm run build --prefix web"
    shown = {
        claim: (words, verdict)
        for claim, words, verdict in re.findall(r'claim: "(.*)", text: "(.*)", verdict: "(.*)", ', text)
    }
    assert shown["5"] == (CLAIMS["5"].text, "does not hold")
    assert all(words == CLAIMS[claim].text for claim, (words, _) in shown.items())


def test_there_is_nothing_left_of_labs_that_are_gone() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {*NAMES, "errata", "exercises", "index", "verdicts"}
    assert {path.stem for path in RESULTS.glob("*.json")} == set(NAMES)
    assert {path.name for path in IMAGES.iterdir()} <= set(NAMES)
