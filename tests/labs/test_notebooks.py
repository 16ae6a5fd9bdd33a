"""Every lab runs as a notebook from top to bottom, and reaches the verdicts that the docs print."""

import codeop
import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from attnscope.labs import NAMES
from attnscope.labs.notebooks import notebook

ROOT = Path(__file__).resolve().parents[2]
MAX_SECONDS = 600
IN_JUPYTER = ("worked_examples", "masks")  # the quickest labs with tables, figures and verdicts
IN_PROCESS = (
    "scaling",
    "linear_attention",
    "normalization",
    "untrained_heads",
    "hopfield",
)  # seconds each; the other labs train models or take long texts


def code_cells(name: str) -> list[str]:
    return [cell["source"] for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]


def check_verdicts(name: str, found: dict[str, Any]) -> None:
    """Every number is inside its margin, and the verdicts and figures are those of the docs."""
    outside = [
        f"claim {claim['claim']}: {number['name']} is {number['value']}, which has to be {number['interval']}"
        for claim in found["claims"]
        for number in claim["measurements"]
        if not number["is_inside"]
    ]
    assert outside == []
    printed = json.loads((ROOT / f"benchmarks/results/labs/{name}.json").read_text(encoding="utf-8"))
    assert verdicts(found) == verdicts(printed)
    assert [figure["name"] for figure in found["figures"]] == [figure["name"] for figure in printed["figures"]]


def verdicts(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {claim["claim"]: (claim["verdict"], claim["condition"]) for claim in result["claims"]}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_JUPYTER else pytest.mark.slow) for name in NAMES]
)
def test_jupyter_reaches_the_verdicts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    book = nbformat.v4.reads(json.dumps(notebook(name)))
    write = "import os, pathlib\nlab.result.write(pathlib.Path(os.environ['OUT']))"
    book.cells.append(nbformat.v4.new_code_cell(write))
    NotebookClient(book, timeout=MAX_SECONDS, resources={"metadata": {"path": str(ROOT)}}).execute()
    pictures = [
        output
        for cell in book.cells
        for output in cell.get("outputs", [])
        if "data:image/png" in output.get("data", {}).get("text/html", "")
    ]
    found = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert bool(pictures) == bool(found["figures"])
    check_verdicts(name, found)


@pytest.mark.parametrize("name", IN_PROCESS)
def test_cells_reach_the_verdicts_in_this_process(name: str) -> None:
    compiler, namespace = codeop.Compile(), {"__name__": "notebook"}  # it keeps __future__ imports, as Jupyter does
    for number, cell in enumerate(code_cells(name)):
        exec(compiler(cell, f"<{name}, cell {number}>", "exec"), namespace)
    lab: Any = namespace["lab"]
    check_verdicts(name, json.loads(json.dumps(lab.result.to_json())))


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_python(name: str) -> None:
    cells = code_cells(name)
    assert len(cells) >= 2
    for number, cell in enumerate(cells):
        compile(cell, f"<{name}, cell {number}>", "exec")
