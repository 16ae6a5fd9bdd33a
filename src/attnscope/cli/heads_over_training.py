"""`attnscope heads --over-training RUN`: the step at which each label appears in a training run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.cli.commands import Options
from attnscope.cli.output_paths import report_write_errors
from attnscope.errors import SettingError
from attnscope.extras import require
from attnscope.formatting import format_count

if TYPE_CHECKING:
    from attnscope.heads import HeadsOverTraining

PICTURE = "heads-over-training.png"
MODEL_OPTIONS = ("model", "text", "tokens", "top", "by", "find", "relations", "json", "csv", "parquet")
"""Options that apply to a model, not to a training run."""


def show_over_training(options: Options) -> None:
    """Print the table on standard output, and the rest on standard error."""
    from attnscope.heads import read_over_training

    run = Path(options.over_training)
    folder = run if options.pictures is None else Path(options.pictures)
    for name in MODEL_OPTIONS:
        if getattr(options, name) is not None and getattr(options, name) is not False:
            shown = name.upper() if name in ("model", "text") else f"--{name}"
            raise SettingError(f"heads: {shown} cannot be combined with --over-training")
    if options.pictures is not None and folder.is_file():
        raise SettingError(f"heads: --pictures {folder} is a file; expected a folder")
    require("figures")
    found = read_over_training(run)
    print("\n".join(lines_of(found)), flush=True)
    count = format_count(len(found.steps), "step")
    print(f"\n{count} recorded, the last is {found.steps[-1]:,}", file=sys.stderr)
    with report_write_errors(folder / PICTURE, command_name="heads"):
        folder.mkdir(parents=True, exist_ok=True)
        found.figure().savefig(folder / PICTURE)
    print(folder / PICTURE, file=sys.stderr)


def lines_of(found: HeadsOverTraining) -> list[str]:
    """Return a header, and a line per label: the step at which it appears, its first head, and the final score."""
    last = found.tables[-1]
    rows = [("label", "step", "layer", "head", "final score")]
    for label, step, layer, head in found.appearances():
        score = last.head_scores(layer, head)[str(found.score_name(label))]
        rows.append((label, str(step), last.short_names[layer], str(head), f"{score:.2f}"))
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{row[0]:<{wide[0]}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], wide[1:], strict=True))
        for row in rows
    ]
