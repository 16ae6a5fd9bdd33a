"""Heads over training: at which step each kind of head appears.

In: the folder of a training run, with head tables such as `heads/step-00000100.csv`, and optionally losses in
`metrics.jsonl`. Out: scores by step, the step at which each label appears, and a figure of both.
Does not know: models, training. Memory: the numbers of all tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.checksums import crc32_file, find_damaged
from attnscope.errors import CheckpointError, SettingError
from attnscope.figures import training_curves
from attnscope.figures.curves import MAX_KINDS, Kind
from attnscope.heads.labels import LABELS, assign_labels, get_label
from attnscope.heads.table import HeadTable
from attnscope.models.checked_log import read_log

STEP_FILE = re.compile(r"step-([0-9]{1,15})\.csv")
METRICS = "metrics.jsonl"
LOSSES = ("loss", "validation_loss")
TABLE_CHECKSUM = "heads_crc32"
"""The field of metrics.jsonl with the checksum of the head table of a step."""
MAX_DEFAULT_KINDS = 3  # drawn if no label has appeared


class Appearance(NamedTuple):
    """The first head that keeps a label, and the scored step from which it has it."""

    label: str
    step: int
    layer: str
    head: int


@dataclass(frozen=True, eq=False)
class HeadsOverTraining:
    """Scores of the same heads at several training steps, and losses.

    Attributes:
        steps: The scored steps.
        tables: One table per step, all with the same heads and scores, and with labels.
        loss: The training loss by step, in nats per token.
        validation_loss: The validation loss by step, in nats per token.
    """

    steps: tuple[int, ...]
    tables: tuple[HeadTable, ...] = field(repr=False)
    loss: dict[int, float] = field(default_factory=dict, repr=False)
    validation_loss: dict[int, float] = field(default_factory=dict, repr=False)

    def scores(self, name: str) -> Tensor:
        """Return a score of all heads at all steps, (steps, heads); NaN where a step does not have it.

        Args:
            name: The name of a score.

        Returns:
            The scores, (steps, heads).
        """
        return torch.stack([table[name] for table in self.tables])

    def score_name(self, label: str) -> str | None:
        """Return the name of the score that decides a label, or None if the tables do not have it.

        Args:
            label: The name of a label.

        Returns:
            The name of the score.
        """
        return get_label(label).find_score(self.tables[-1])

    def max_scores(self, label: str) -> Tensor:
        """Return the highest score for a label at each step, (steps,); NaN where no head has one.

        Args:
            label: The name of a label.

        Returns:
            The highest scores, (steps,).

        Raises:
            SettingError: The tables have no score that decides the label.
        """
        score = self.score_name(label)
        if score is None:
            raise SettingError(
                f"label {label} needs the score {' or '.join(get_label(label).scores)}, but the tables have "
                f"{', '.join(self.tables[-1].columns) or 'no scores'}"
            )
        return torch.from_numpy(np.fmax.reduce(self.scores(score).numpy(), axis=1))  # fmax ignores NaN

    def appearances(self) -> list[Appearance]:
        """Return when each label appears, in the order of LABELS.

        A head keeps a label from the first scored step from which it has the label at every later scored step, the last
        one included. A label appears when the first head keeps it; of several heads, the one with the highest final
        score is named. A label that no head has at the end has not appeared: at the start nearly all heads are broad,
        and losing that label again is not learning.
        """
        found = []
        for label in LABELS:
            score = label.find_score(self.tables[-1])
            has_label = torch.tensor([[label.name in some for some in table.labels or ()] for table in self.tables])
            keeps_label = has_label.flip(0).cumprod(0).flip(0).bool()
            if score is not None and keeps_label[-1].any():
                at = int(keeps_label.any(1).int().argmax())
                head = int(self.tables[-1][score].masked_fill(~keeps_label[at], -torch.inf).argmax())
                table = self.tables[at]
                found.append(Appearance(label.name, self.steps[at], table.layers[head], table.heads[head]))
        return found

    def figure(self, title: str | None = None) -> Any:
        """Draw the losses, and below them the scores of all heads for the labels that appear.

        If no label has appeared, the scores of the first labels in LABELS are drawn.

        Args:
            title: The title, if any.

        Returns:
            A matplotlib figure.

        Raises:
            SettingError: The tables have no score that decides a label.
        """
        steps = {found.label: found.step for found in self.appearances()[:MAX_KINDS]}
        known = [
            label.name
            for label in LABELS
            if self.score_name(label.name) and not self.max_scores(label.name).isnan().all()
        ]
        kinds = [
            Kind(name, self.scores(str(self.score_name(name))).numpy(), steps.get(name))
            for name in steps or known[:MAX_DEFAULT_KINDS]
        ]
        if not kinds:
            raise SettingError(
                f"no score of these tables decides a label: {', '.join(self.tables[-1].columns) or 'none'}"
            )
        return training_curves(self.steps, kinds, loss=self.loss, validation_loss=self.validation_loss, title=title)


def read_over_training(run: str | Path) -> HeadsOverTraining:
    """Read the head tables and losses of a training run.

    Args:
        run: The folder of the run.

    Returns:
        Steps, losses and the scores of each head at each step.

    Raises:
        SettingError: The folder has no head tables.
        CheckpointError: A file is invalid, or the tables are of different heads.
    """
    run = Path(run)
    files = _table_files(run)
    metrics = _read_metrics(run / METRICS)
    checksums = {file.name: metrics.checksums[step] for step, file in files.items() if step in metrics.checksums}
    if damaged := find_damaged(run / "heads", checksums, crc32_file):
        raise CheckpointError(
            f"{run / 'heads' / damaged[0]} is not the table that the run wrote: its checksum differs from {METRICS}; "
            "copy it again, or delete it"
        )
    tables = [HeadTable.from_csv(file) for file in files.values()]
    first, *others = zip(files.values(), tables, strict=True)
    if not len(first[1]):
        raise CheckpointError(f"{first[0]} has no heads")
    for file, table in others:
        if (table.layers, table.heads) != (first[1].layers, first[1].heads):
            raise CheckpointError(
                f"{file}: expected the {len(first[1])} heads of {first[0]} in the same order, got {len(table)} heads; "
                "remove the tables of other models"
            )
    return HeadsOverTraining(tuple(files), tuple(_align_columns(tables)), metrics.loss, metrics.validation_loss)


def _table_files(run: Path) -> dict[int, Path]:
    """Return the head tables by step, in order."""
    files: dict[int, Path] = {}
    for file in sorted((run / "heads").glob("step-*.csv")):
        named = STEP_FILE.fullmatch(file.name)
        if named is None:
            raise CheckpointError(f"{file}: expected a name such as step-00000100.csv")
        if int(named[1]) in files:
            raise CheckpointError(f"{file} and {files[int(named[1])]} are of the same step; remove one of them")
        files[int(named[1])] = file
    if not files:
        missing = "is not a folder" if not run.is_dir() else "has no head tables (heads/step-00000100.csv)"
        raise SettingError(f"{run} {missing}; train with --heads-every N to write them")
    return dict(sorted(files.items()))


def _align_columns(tables: list[HeadTable]) -> Iterable[HeadTable]:
    """Give all tables the scores of any of them, NaN where one is missing, and labels."""
    unknown = torch.full((len(tables[0]),), torch.nan, dtype=torch.float64)
    scores = dict.fromkeys(score for table in tables for score in table.columns)
    for table in tables:
        yield assign_labels(replace(table, columns={score: table.columns.get(score, unknown) for score in scores}))


class _Metrics(NamedTuple):
    """What metrics.jsonl has about each step."""

    loss: dict[int, float]
    validation_loss: dict[int, float]
    checksums: dict[int, str]
    """The CRC-32 of the head table."""


def _read_metrics(file: Path) -> _Metrics:
    """Read metrics by step; a later line replaces an earlier one."""
    found: dict[str, dict[int, Any]] = {name: {} for name in (*LOSSES, TABLE_CHECKSUM)}
    lines = read_log(file, advice="copy the file again, or delete it to do without losses") if file.exists() else ()
    for number, metrics in lines:
        try:
            step = metrics.get("step")
            if step is not None and (type(step) is not int or not 0 <= step < 10**15):
                raise ValueError(f"step is {str(step)[:50]}")
            for name in found:
                value = metrics.get(name)
                if value is not None and type(value) not in ((str,) if name == TABLE_CHECKSUM else (int, float)):
                    raise ValueError(f"{name} is {str(value)[:50]!r}")
                if step is not None and value is not None:
                    found[name][step] = value if name == TABLE_CHECKSUM else float(value)
        except (ValueError, OverflowError) as error:
            raise CheckpointError(
                f'{file}, line {number}: expected metrics such as {{"step": 100, "loss": 2.31}}: {str(error)[:200]}'
            ) from error
    return _Metrics(*(dict(sorted(by_step.items())) for by_step in found.values()))
