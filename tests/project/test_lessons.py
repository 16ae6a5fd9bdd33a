"""Every lesson has its parts; figures and notebooks are those that scripts/make_lessons.py makes of the pages."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from attnscope.labs.exercises import EFFORT
from attnscope.labs.exercises import NAMES as EXERCISES
from scripts.make_lessons import FIGURES, IMAGES, INSTALL, LESSONS, PAGES, Drawing, notebook, notebook_text

ROOT = Path(__file__).resolve().parents[2]
MADE_BY = "make it again: .venv/bin/python scripts/make_lessons.py"
IN_JUPYTER = "dot_products"  # quick; the code of all lessons runs in test_readme.py


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_has_all_its_parts(name: str) -> None:
    text = page(name)
    assert text.startswith(f"# {LESSONS.index(name) + 1}. ")
    assert "After this lesson you" in text.split("\n\n")[1]
    assert "$$" in text, "a formula"
    assert re.search(r"!\[[^\]]+\]\(\.\./images/", text), "a figure"
    assert "```python" in text, "code"
    assert "assert " in text, "code that checks itself"
    headings = re.findall(r"^## (.*)", text, re.MULTILINE)
    assert headings[-3:] == ["Exercise", "What the labs found", "References"]
    named = re.findall(r"^attnscope lab exercise (\w+)$", text, re.MULTILINE)
    assert named
    assert set(named) == {exercise for exercise in EXERCISES if EFFORT[exercise].lesson == name}
    found, references = text.split("## What the labs found\n")[1].split("## References\n")
    assert re.search(r"\]\(\.\./labs/\w+\.md\)", found)
    for reference in re.split(r"\n- ", references)[1:]:
        assert re.search(r"\((19|20)\d\d\)", reference), reference
        assert re.search(r"\]\(https://\S+\)", reference), reference


def test_the_index_lists_all_lessons_in_order() -> None:
    listed = re.findall(r"^\| \[\d+\. [^\]]+\]\((\w+)\.md\)", page("index"), re.MULTILINE)
    assert listed == [*LESSONS]
    for name in LESSONS:
        assert f"(notebooks/{name}.ipynb)" in page("index")


def test_no_page_is_left_out() -> None:
    pages = {path.stem for path in PAGES.glob("*.md")} - {"one_weight"}  # the interactive page
    assert pages == {*LESSONS, "index", "topics", "texts"}
    assert {path.stem for path in (PAGES / "notebooks").iterdir()} == set(LESSONS)
    assert {path.stem for path in IMAGES.iterdir()} == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_is_the_one_that_is_drawn(name: str) -> None:
    assert (IMAGES / f"{name}.svg").read_text(encoding="utf-8") == FIGURES[name]().svg(), MADE_BY


def test_words_in_a_drawing_are_escaped() -> None:
    drawing = Drawing(10, 10, "a < b")
    drawing.text(0, 0, "q & k")
    assert "a &lt; b" in drawing.svg()
    assert "q &amp; k" in drawing.svg()


@pytest.mark.parametrize("name", LESSONS)
def test_the_notebook_is_valid_and_has_the_code_and_links_of_the_page(name: str) -> None:
    text = (PAGES / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert text == notebook_text(name), MADE_BY
    nbformat.validate(json.loads(text))
    cells = notebook(name)["cells"]
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    installs = code[0].startswith(INSTALL)
    code = code[1:] if installs else code
    assert installs == ("import attnscope" in "".join(code))
    assert len(code) == page(name).count("```python\n")
    assert all(source in page(name) for source in code)
    words = "".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    for target in re.findall(r'\]\((\.\./[^)#]+)|href="(?!https:)([^"#]+)', words):
        assert (PAGES / "notebooks" / "".join(target)).is_file(), target


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == IN_JUPYTER else pytest.mark.slow) for name in LESSONS]
)
def test_the_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "trained_heads" and not (ROOT / ".cache/models").is_dir():
        pytest.skip("needs a trained model: run scripts/setup")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = nbformat.reads(notebook_text(name), as_version=4)
    if name == "trained_heads":
        source = (
            f"import pathlib\nfrom attnscope import downloads\nfolder = pathlib.Path({str(ROOT / '.cache/models')!r})\n"
        )
        book.cells.insert(0, nbformat.v4.new_code_cell(f"{source}downloads.models_folder = lambda: folder"))
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


TITLES = {
    "from seq2seq attention to the transformer's attention": 9,
    "Lesson 12: Pay Attention": 11,
    "Essay on the transformer architecture": 5,
    "Section 2.3: QKV, Scaled Dot-Product & Causal Masking": 8,
    "Chapter 39: Self-Attention": 9,
}
"""The five texts, and at least how many sections of each are placed."""


def test_every_text_has_a_table_of_its_sections() -> None:
    tables = re.split(r"^## ", page("texts"), flags=re.MULTILINE)[1:]
    assert len(tables) == len(TITLES)
    for table, (title, count) in zip(tables, TITLES.items(), strict=True):
        assert title in table.partition("\n")[0]
        assert len(re.findall(r"^\| (?!section|---)", table, re.MULTILINE)) >= count


TOPICS = (
    "query, key, value", "scaled dot-product attention", "softmax", "causal mask", "cross-attention", "multi-head",
    "positional encoding", "rotary position embedding", "layer norm", "residual", "feed-forward", "GELU", "KV cache",
    "FlashAttention", "sliding-window", "linear attention", "Hopfield", "induction head", "teacher forcing",
    "autoregressive", "convolution", "path length", "Bahdanau", "grouped-query", "temperature",
)  # fmt: skip


def test_topics_have_the_standard_names() -> None:
    assert [topic for topic in TOPICS if topic not in page("topics")] == []
