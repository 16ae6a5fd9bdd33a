"""Heads over training: which kind of head appears at which step.

In: the folder of a training run: tables of heads by step, as `heads/step-00000100.csv`, and losses in `metrics.jsonl`
if there are any. Out: scores by step, the step at which each label appears, and a figure of both.
Does not know: models, how they are trained. Memory: the numbers of all tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.errors import CheckpointError, SettingError
from attnscope.figures import training_curves
from attnscope.figures.curves import MAX_KINDS, Kind
from attnscope.heads.labels import LABELS, label_named, labelled
from attnscope.heads.table import HeadTable
from attnscope.models.json_files import read_text

STEP_FILE = re.compile(r"step-([0-9]{1,15})\.csv")
LOSSES = ("loss", "validation_loss")
MAX_BYTES = 2**28  # of metrics: a line a step, for millions of steps
MAX_TELLING = 3  # kinds that are drawn where no label has appeared


class Appearance(NamedTuple):
    """The first head that has a label for good, and the watched step from which on it has it."""

    label: str
    step: int
    layer: str
    head: int


@dataclass(frozen=True, eq=False)
class HeadsOverTraining:
    """A table of the same heads and scores, with labels, for each watched step; and losses by step, in nats a token."""

    steps: tuple[int, ...]
    tables: tuple[HeadTable, ...] = field(repr=False)
    loss: dict[int, float] = field(default_factory=dict, repr=False)
    validation_loss: dict[int, float] = field(default_factory=dict, repr=False)

    def score(self, name: str) -> Tensor:
        """(steps, heads): a score of all heads; NaN where a step does not have it."""
        return torch.stack([table[name] for table in self.tables])

    def deciding(self, label: str) -> str | None:
        """The score that decides a label, if these tables have it."""
        return label_named(label).score_in(self.tables[-1])

    def strongest(self, label: str) -> Tensor:
        """(steps,): the highest score of any head that decides a label; NaN where no head has one."""
        score = self.deciding(label)
        if score is None:
            raise SettingError(
                f"{label} is decided by {' or '.join(label_named(label).scores)}, and these tables have "
                f"{', '.join(self.tables[-1].columns) or 'no scores'}"
            )
        return torch.from_numpy(np.fmax.reduce(self.score(score).numpy(), axis=1))  # fmax goes past NaN

    def appearances(self) -> list[Appearance]:
        """When each label appears, in the order of LABELS.

        A head has a label for good from the first watched step from which on it earns the label at every watched step,
        the last included. A label appears when the first head has it for good; of several at once, that is named whose
        score is the highest at the end. A label that no head has at the end has not appeared: at the start nearly all
        heads are broad, and what they lose again is nothing that they learned.
        """
        found = []
        for label in LABELS:
            score = label.score_in(self.tables[-1])
            earned = torch.tensor([[label.name in some for some in table.labels or ()] for table in self.tables])
            for_good = earned.flip(0).cumprod(0).flip(0).bool()
            if score is not None and for_good[-1].any():
                at = int(for_good.any(1).int().argmax())
                head = int(self.tables[-1][score].masked_fill(~for_good[at], -torch.inf).argmax())
                table = self.tables[at]
                found.append(Appearance(label.name, self.steps[at], table.layers[head], table.heads[head]))
        return found

    def figure(self, title: str | None = None) -> Any:
        """Losses above, and below the scores that decide the most telling labels that appear, for all heads.

        Where none has appeared yet, the scores of the most telling labels are drawn.
        """
        steps = {found.label: found.step for found in self.appearances()[:MAX_KINDS]}
        known = [
            label.name for label in LABELS if self.deciding(label.name) and not self.strongest(label.name).isnan().all()
        ]
        kinds = [
            Kind(name, self.score(str(self.deciding(name))).numpy(), steps.get(name))
            for name in steps or known[:MAX_TELLING]
        ]
        if not kinds:
            raise SettingError(
                f"no score of these tables decides a label: {', '.join(self.tables[-1].columns) or 'none'}"
            )
        return training_curves(self.steps, kinds, loss=self.loss, validation_loss=self.validation_loss, title=title)


def read_over_training(run: str | Path) -> HeadsOverTraining:
    """What a training run has left of its heads and losses in its folder."""
    run = Path(run)
    files = _watched(run)
    tables = [HeadTable.from_csv(file) for file in files.values()]
    first, *others = zip(files.values(), tables, strict=True)
    if not len(first[1]):
        raise CheckpointError(f"{first[0]} has no heads")
    for file, table in others:
        if (table.layers, table.heads) != (first[1].layers, first[1].heads):
            raise CheckpointError(
                f"{file} has {len(table)} heads, and {first[0]} has {len(first[1])} or others: all tables of a run "
                "are of the same heads, in the same order; take out those of another model"
            )
    return HeadsOverTraining(tuple(files), tuple(_alike(tables)), *_losses(run / "metrics.jsonl"))


def _watched(run: Path) -> dict[int, Path]:
    """The files of the watched steps, in their order."""
    files: dict[int, Path] = {}
    for file in sorted((run / "heads").glob("step-*.csv")):
        named = STEP_FILE.fullmatch(file.name)
        if named is None:
            raise CheckpointError(f"{file}: the table of a step is named like step-00000100.csv")
        if int(named[1]) in files:
            raise CheckpointError(f"{file} and {files[int(named[1])]} are of the same step; take out one of them")
        files[int(named[1])] = file
    if not files:
        missing = "is no folder" if not run.is_dir() else "has no tables of heads (heads/step-00000100.csv)"
        raise SettingError(f"{run} {missing}; a run leaves them there: train with --heads-every N")
    return dict(sorted(files.items()))


def _alike(tables: list[HeadTable]) -> Iterable[HeadTable]:
    """Tables with the scores of all of them, NaN where one has none, and the labels that these earn."""
    unknown = torch.full((len(tables[0]),), torch.nan, dtype=torch.float64)
    scores = dict.fromkeys(score for table in tables for score in table.columns)
    for table in tables:
        yield labelled(replace(table, columns={score: table.columns.get(score, unknown) for score in scores}))


def _losses(file: Path) -> list[dict[int, float]]:
    """The losses in a file of metrics by step; of two for one step the later counts, as in a run that was resumed."""
    found: dict[str, dict[int, float]] = {name: {} for name in LOSSES}
    text = read_text(file, MAX_BYTES) if file.exists() else ""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            metrics = json.loads(line)
            if not isinstance(metrics, dict):
                raise ValueError(f"a {type(metrics).__name__}")
            step = metrics.get("step")
            if step is not None and (type(step) is not int or not 0 <= step < 10**15):
                raise ValueError(f"step is {str(step)[:50]}")
            for name in LOSSES:
                value = metrics.get(name)
                if value is not None and type(value) not in (int, float):
                    raise ValueError(f"{name} is {str(value)[:50]!r}")
                if step is not None and value is not None:
                    found[name][step] = float(value)
        except (ValueError, OverflowError, RecursionError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                break  # without the end of its line: the run is still writing it
            raise CheckpointError(
                f'{file}, line {number}: not metrics such as {{"step": 100, "loss": 2.31}}: {str(error)[:200]}'
            ) from error
    return [dict(sorted(losses.items())) for losses in found.values()]
