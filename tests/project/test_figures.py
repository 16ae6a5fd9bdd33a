"""Every measured figure in README and docs stands in a result file that is linked next to it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Pages of labs are made from their own results, in benchmarks/results/labs; tests/labs/test_pages.py compares them.
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "labs")]

NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = r"(?:[x×](?!\s*\d)|ms|[µμ]s|s|min|kB|KiB|MB|MiB|GB|GiB|%|tokens/s)"
FIGURE = re.compile(rf"(?<![\w.,])(?:{NUMBER}\s?[-–]\s?)?{NUMBER}[ \u00a0]?{UNIT}(?![\w/])")
FENCED = re.compile(r"^```.*?^```[^\n]*$", re.DOTALL | re.MULTILINE)
CODE_SPAN = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s#]+)")


def figure_faults(page: Path, results: Path) -> list[str]:
    """The figures of a page that no linked result file contains, each with its reason."""
    text = CODE_SPAN.sub("", FENCED.sub("", page.read_text()))
    faults = []
    for block in re.split(r"\n\s*\n", text):
        links = [page.parent / target for target in LINK.findall(block)]
        linked = [path.read_text() for path in links if path.is_file() and path.resolve().parent == results.resolve()]
        for figure in FIGURE.findall(LINK.sub("", block)):
            if not linked:
                faults.append(f"{page.name}: {figure!r} has no link to a file in benchmarks/results beside it")
            elif not any(contains(result, figure) for result in linked):
                faults.append(f"{page.name}: {figure!r} does not appear in the linked result file")
    return faults


def contains(result: str, figure: str) -> bool:
    """Whether a result has exactly this figure, not one that merely ends or begins alike."""
    return re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\w/])", result) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_figures_on_the_page_were_measured(page: Path) -> None:
    assert figure_faults(page, ROOT / "benchmarks" / "results") == []


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    (folder / "lse_2026-01-01.md").write_text(
        "| road | time |\n|---|---|\n| fused | 1.5x |\n| dense | 0.9-1.2x, 12 ms |\n"
    )
    return folder


@pytest.mark.parametrize("figure", ["1.5x", "0.9-1.2x", "12 ms"])
def test_a_figure_with_its_file_passes(tmp_path: Path, results: Path, figure: str) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"It costs {figure}\nof the call ([measured](benchmarks/results/lse_2026-01-01.md)).\n")
    assert figure_faults(page, results) == []


@pytest.mark.parametrize(
    "text", ["`5 ms`", "64 x 64", "n x n, 30 layers", "```text\n5 ms\n```", "in 30 minutes", "v2.0"]
)
def test_words_that_only_resemble_a_figure_pass(tmp_path: Path, results: Path, text: str) -> None:
    page = tmp_path / "README.md"
    page.write_text(text)
    assert figure_faults(page, results) == []


@pytest.mark.parametrize(
    "text", ["1.5x", "takes 3 s.", "| 12 ms |", "- 40%\n- 2 GB", "1,200 tokens/s", "0.2 µs", "2.0×"]
)
def test_a_figure_without_a_link_is_found(tmp_path: Path, results: Path, text: str) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"[elsewhere](benchmarks/results/lse_2026-01-01.md)\n\n{text}\n")
    faults = figure_faults(page, results)
    assert faults
    assert all("has no link" in fault for fault in faults)


@pytest.mark.parametrize("figure", ["2 ms", "1.4x", "0.8-1.2x", "1.2x, 12 min"])
def test_a_figure_that_the_file_does_not_have_is_found(tmp_path: Path, results: Path, figure: str) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"{figure} ([measured](benchmarks/results/lse_2026-01-01.md))\n")
    assert any("does not appear" in fault for fault in figure_faults(page, results))


def test_a_link_to_a_file_that_is_not_there_does_not_count(tmp_path: Path, results: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("1.5x ([measured](benchmarks/results/gone.md))\n")
    assert "has no link" in figure_faults(page, results)[0]
