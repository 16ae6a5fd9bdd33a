"""The support table of the docs, made by running every model of the zoo.

python -m tests.recording.support writes it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from attnscope.recording import Trace, record
from tests.recording.exhibit import INTERFACE_SINCE
from tests.recording.zoo import BYPASS, EXHIBITS, HYBRID, PARTIAL, SPARSE, Exhibit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "support.md"
BEGIN, END = "<!-- made by tests/recording/support.py -->", "<!-- end -->"
ALL: tuple[Exhibit, ...] = (*EXHIBITS, *HYBRID, *SPARSE, *PARTIAL, *BYPASS)


def recorded(exhibit: Exhibit, **options: Any) -> tuple[Trace, dict[str, Any]]:
    """A trace of one pass through a model of the zoo, and the inputs of that."""
    model = exhibit.build()
    inputs = exhibit.inputs(model)
    with torch.no_grad(), record(model, **options) as trace:
        model(**inputs)
    return trace, inputs


def row_of(exhibit: Exhibit, seen: Trace | None) -> str:
    """The line of a model in the table, from what was seen of it; None where it was refused."""
    features = [feature for feature in exhibit.features if feature != "encoder"]
    if seen is not None and exhibit.model_type in INTERFACE_SINCE:
        features.append(f"transformers {INTERFACE_SINCE[exhibit.model_type]} or newer")
    return f"| {exhibit.name} | `{exhibit.model_type}` | {outcome(seen)} | {', '.join(features)} |"


def outcome(trace: Trace | None) -> str:
    """How many attentions of which kind were seen."""
    if trace is None:
        return "refused"
    kinds = Counter("cross" if layer.cross else "self" for layer in trace.layers.values())
    words = [f"{count} {kind}" for kind, count in sorted(kinds.items(), reverse=True)]
    if trace.without_softmax:
        words.append(f"{len(trace.without_softmax)} without softmax")
    return ", ".join(words)


def table() -> list[str]:
    """All lines, by running all models."""
    from attnscope.errors import UnsupportedError

    lines = ["| model | `model_type` | attentions seen | what is special |", "|---|---|---|---|"]
    for exhibit in sorted(ALL, key=lambda exhibit: exhibit.name.lower()):
        try:
            seen = recorded(exhibit)[0]
        except UnsupportedError:
            seen = None
        lines.append(row_of(exhibit, seen))
    return lines


def lines_of_page() -> list[str]:
    """The table as it stands in the docs."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip().splitlines()


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(table()) + "\n" + after, encoding="utf-8")
