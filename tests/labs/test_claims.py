"""The claims are those of the texts, and labs are built from what everybody can import."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from attnscope.labs import CLAIMS, NAMES
from attnscope.labs.catalogue import load_experiment
from attnscope.labs.claims import SOURCES

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ROOT.parent / "shared" / "sources"


def test_labs_are_built_from_the_public_names_alone() -> None:
    for name in NAMES:
        tree = ast.parse(inspect.getsource(load_experiment(name)))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert not any(alias.name.startswith("_") for alias in node.names), name
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert not node.attr.startswith("_"), f"{name}: {ast.unparse(node)}"


@pytest.mark.skipif(not TEXTS.is_dir(), reason="the five texts are not beside this checkout")
def test_the_list_of_claims_leaves_none_out() -> None:
    rows = re.findall(r"^\| (\d+) \| ([\d, ]+) \|", (TEXTS / "CLAIMS.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 38
    for number, sources in rows:
        ours = [claim for key, claim in CLAIMS.items() if key.rstrip("abcdefgh") == number]
        assert ours, f"claim {number} is missing"
        named = {source.partition("_")[0] for claim in ours for source in claim.sources}
        assert named == set(sources.split(", ")), f"claim {number}"


@pytest.mark.skipif(not TEXTS.is_dir(), reason="the five texts are not beside this checkout")
def test_the_sources_are_named_by_their_files() -> None:
    assert {path.name for path in TEXTS.glob("0*.txt")} == set(SOURCES)
