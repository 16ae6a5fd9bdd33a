"""Every lab runs as a notebook from top to bottom, and comes to the verdicts that the docs print."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from attnscope.labs import NAMES
from attnscope.labs.notebooks import notebook

ROOT = Path(__file__).resolve().parents[2]
MAX_SECONDS = 600
LONG = ("past_the_length", "exposure_bias", "mini_gpt")  # 12,288 tokens at once, and models that are trained first
MARKED = [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NAMES]


@pytest.mark.parametrize("name", MARKED)
def test_the_lab_comes_to_its_verdicts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    book = nbformat.v4.reads(json.dumps(notebook(name)))
    write = "import os, pathlib\nlab.result.write(pathlib.Path(os.environ['OUT']))"
    book.cells.append(nbformat.v4.new_code_cell(write))
    NotebookClient(book, timeout=MAX_SECONDS, resources={"metadata": {"path": str(ROOT)}}).execute()
    found = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    outside = [
        f"claim {claim['claim']}: {number['name']} is {number['value']}, which has to be {number['margin']}"
        for claim in found["claims"]
        for number in claim["numbers"]
        if not number["inside"]
    ]
    assert outside == []
    printed = json.loads((ROOT / f"benchmarks/results/labs/{name}.json").read_text(encoding="utf-8"))
    assert verdicts(found) == verdicts(printed)
    assert [figure["name"] for figure in found["figures"]] == [figure["name"] for figure in printed["figures"]]


def verdicts(result: dict) -> dict[str, tuple[str, str]]:
    return {claim["claim"]: (claim["verdict"], claim["when"]) for claim in result["claims"]}
