"""The example that AttnScope brings along is small, whole, and shows what the tour speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnscope.explorer.library.example import FOLDER, example
from attnscope.explorer.library.library import Library
from attnscope.heads import score_heads
from attnscope.recording import load, open_trace, read
from tests.explorer.serving import small_trace

SMOLLM2 = Path(__file__).resolve().parents[2] / ".cache" / "models" / "smollm2-135m"
LABELS = [("broad",), ("duplicate", "sink"), ("previous", "local"), ("mixed",), ("induction", "sink"), ("sink",)]


def test_the_example_is_small_and_as_it_was_saved() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 150_000
    trace = open_trace(FOLDER, verify=True)
    assert "".join(trace.tokens() or []) == (
        "Mary Whitfield lent John Okafor her umbrella. The next day John Okafor thanked Mary Whitfield, and Mary "
        "Whitfield smiled at John Okafor."
    )


def test_each_of_its_heads_does_one_thing() -> None:
    table = score_heads(example(), progress=False)
    assert list(table.labels or ()) == LABELS
    assert table.head_scores("blocks.16.attention", 0)["previous"] > 0.8
    assert table.head_scores("blocks.17.attention", 4)["induction"] > 0.8
    assert table.head_scores("blocks.18.attention", 8)["sink"] > 0.99
    assert table.head_scores("blocks.5.attention", 6)["duplicate"] > 0.7


def test_it_is_what_the_model_attends_to() -> None:
    model, tokenizer = load(SMOLLM2)
    shipped = example()
    again = read(model, "".join(shipped.tokens() or []), tokenizer, heads={16: [0, 6], 17: [4]}, progress=False)
    for name in again:
        assert (again[name][:] - shipped[name][:]).abs().max() < 1e-4


def test_it_is_found_by_its_name_alone_until_somebody_opens_it() -> None:
    library = Library()
    name = library.example()
    assert library.example() == name
    assert library.summaries() == []
    entry = library.entry(name)
    assert entry is not None
    assert entry.unmasked is not None
    assert library.add(example(), name="opened") == name
    assert [summary["trace"] for summary in library.summaries()] == [name]


def test_it_is_not_forgotten_when_many_texts_are_typed() -> None:
    library = Library()
    name = library.example()
    for at in range(30):
        library.add(small_trace("ab" * (at + 1)), name=str(at), live=True)
    assert library.entry(name) is not None


@pytest.mark.parametrize("name", ["trace.json", "texts.safetensors"])
def test_its_files_are_in_the_package(name: str) -> None:
    assert (FOLDER / name).is_file()
