"""`Lab`: what an experiment writes on while it runs.

In: tables, figures and decisions, in the order in which the experiment comes to them. Out: a `Result`. The same
experiment runs from the command line, from Python and cell by cell in a notebook; all it is handed is one of these.
Does not know: which experiments there are. Memory: what was written on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from attnscope.downloads import MODELS, downloaded
from attnscope.errors import SettingError
from attnscope.labs.claims import CLAIMS
from attnscope.labs.result import Figure, Result, Table
from attnscope.labs.verdicts import Decision, Number, Verdict

if TYPE_CHECKING:
    from torch import nn

Chosen = TypeVar("Chosen")
SMOLLM2 = "smollm2-135m"
"""The trained model of the experiments: from `.cache/models` in a checkout, from `attnscope download`, or the hub."""


class Lab:
    """One run of one experiment: its size and seed, and what has been found so far."""

    def __init__(
        self,
        name: str,
        question: str,
        *,
        size: Literal["small", "full"] = "small",
        seed: int = 0,
        model: str | None = None,
        step: Callable[[str], None] = lambda _: None,
    ):
        if size not in ("small", "full"):
            raise SettingError(f"lab: size={size!r}; it is 'small' or 'full'")
        self.size, self.seed, self.step = size, seed, step
        self.result = Result(name=name, question=question, size=size, seed=seed)
        self._model, self._shown = model, 0

    def choose(self, *, small: Chosen, full: Chosen) -> Chosen:
        """What suits the size of this run."""
        return small if self.size == "small" else full

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, note: str = "") -> None:
        """Write down a table; numbers are shown with four digits, and those above a thousand in full."""
        if wrong := [row for row in rows if len(row) != len(columns)]:
            raise SettingError(f"lab: the table {title!r} has {len(columns)} columns, and a row has {len(wrong[0])}")
        self.result.findings.append(
            Table(title=title, columns=tuple(columns), rows=tuple(tuple(map(_bare, row)) for row in rows), note=note)
        )

    def figure(self, name: str, drawing: Any, caption: str) -> None:
        """Keep a figure, as `attnscope.figures` draws them; the name becomes that of its file."""
        if not re.fullmatch(r"[a-z0-9_]+", name) or any(figure.name == name for figure in self.result.figures):
            raise SettingError(f"lab: the figure {name!r} needs a name of its own, of the signs a-z, 0-9 and _")
        self.result.findings.append(Figure(name=name, drawing=drawing, caption=caption))

    def decide(self, claim: str, verdict: Verdict, because: str, *numbers: Number, when: str = "") -> None:
        """Decide a claim by numbers, each of which has to keep its margin."""
        if claim not in CLAIMS:
            raise SettingError(f"lab: there is no claim {claim!r}; attnscope.labs.claims lists them")
        if any(decision.claim == claim for decision in self.result.decisions):
            raise SettingError(f"lab: claim {claim} has already been decided in this run")
        self.result.findings.append(
            Decision(claim=claim, expected=verdict, because=because, numbers=numbers, when=when)
        )

    def trained_model(self) -> tuple[nn.Module, Any]:
        """SmolLM2-135M-Instruct, or the model that was chosen for this run, and its tokenizer, in float32."""
        import torch

        from attnscope.models.fingerprint import fingerprint_model
        from attnscope.recording import load

        place = self._model or _place_of_smollm2()
        self.step(f"loading {place}")
        model, tokenizer = load(place, dtype=torch.float32)
        found = fingerprint_model(model, Path(place).stem if self._model else SMOLLM2)
        if found not in self.result.models:
            self.result.models.append(found)
        return model, tokenizer

    def news(self) -> Result:
        """What was found since this was last asked for, as a notebook shows it."""
        shown, self._shown = self._shown, len(self.result.findings)
        return self.result.part(shown)


def _place_of_smollm2() -> str | Path:
    checkout = Path(".cache", "models", SMOLLM2)
    return checkout if checkout.is_dir() else downloaded(SMOLLM2) or MODELS[SMOLLM2].hub_name


def _bare(cell: Any) -> Any:
    """A cell as Python's own number, where it is one of numpy's or torch's."""
    return cell.item() if hasattr(cell, "item") else cell
