"""`attnscope heads --over-training RUN`: when each kind of head appears in a training run, as a table and a figure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.cli.commands import Options
from attnscope.cli.places import writing
from attnscope.errors import SettingError
from attnscope.extras import require

if TYPE_CHECKING:
    from attnscope.heads import HeadsOverTraining

PICTURE = "heads-over-training.png"
OF_A_MODEL = ("model", "text", "tokens", "top", "by", "find", "relations", "json", "csv", "parquet")
"""Options that ask something of a model, and nothing of a run."""


def show_over_training(options: Options) -> None:
    """Print the table on standard output, and what else is to be said on standard error."""
    from attnscope.heads import read_over_training

    run = Path(options.over_training)
    folder = run if options.pictures is None else Path(options.pictures)
    for name in OF_A_MODEL:
        if getattr(options, name) is not None and getattr(options, name) is not False:
            shown = name.upper() if name in ("model", "text") else f"--{name}"
            raise SettingError(f"heads: {shown} cannot be combined with --over-training")
    if options.pictures is not None and folder.is_file():
        raise SettingError(f"heads: --pictures {folder} is a file; give a folder")
    require("figures")
    found = read_over_training(run)
    print("\n".join(lines_of(found)), flush=True)
    watched = f"{len(found.steps)} step{'s' * (len(found.steps) > 1)}"
    print(f"\n{watched} recorded, the last is {found.steps[-1]:,}", file=sys.stderr)
    with writing(folder / PICTURE, asked_by="heads"):
        folder.mkdir(parents=True, exist_ok=True)
        found.figure().savefig(folder / PICTURE)
    print(folder / PICTURE, file=sys.stderr)


def lines_of(found: HeadsOverTraining) -> list[str]:
    """A line for each label that appears, below a line of names: the step, its first head, and its score at the end."""
    last = found.tables[-1]
    rows = [("label", "step", "layer", "head", "score at the end")]
    for label, step, layer, head in found.appearances():
        score = last.head_scores(layer, head)[str(found.score_name(label))]
        rows.append((label, str(step), last.short_names[layer], str(head), f"{score:.2f}"))
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{row[0]:<{wide[0]}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], wide[1:], strict=True))
        for row in rows
    ]
