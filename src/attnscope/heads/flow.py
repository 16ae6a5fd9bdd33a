"""What flows through a model at one position of a text: what every module is given and says, and what heads say.

In: a model and a text. Out: one row for each call of a module, and for each attention the modules that are given what
its heads say. Nothing is known by its name. Does not know: what rows mean, what is added to what.
Memory: that of a pass, and one row for each module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import UnsupportedError
from attnscope.recording.hooks.coverage import is_attention, is_without_softmax
from attnscope.recording.hooks.interventions import intercept_heads


@dataclass(frozen=True)
class Place:
    """A position of a text of so many tokens, and its row in whatever has one."""

    length: int
    position: int

    def row(self, value: object) -> Tensor | None:
        """The row of a tensor (1, length, ...) or (length, ...); None for everything else."""
        if not isinstance(value, Tensor):
            return None
        if value.shape[:2] == (1, self.length):
            return value[0, self.position].detach().clone()  # a clone, as some models add in place
        return value[self.position].detach().clone() if value.dim() > 1 and len(value) == self.length else None

    def with_row(self, value: Any, row: Tensor | None) -> Any:
        """A copy with another row; what has none stays as it is."""
        if row is None or self.row(value) is None:
            return value
        value = value.clone()
        (value[0] if value.shape[:2] == (1, self.length) else value)[self.position] = row
        return value


@dataclass
class Attention:
    """What the heads of a layer said at the position, (heads, dim), and the modules that were given it.

    Outer modules come first. Those of `takers` were given nothing else, so that they may be the output projection.
    """

    name: str
    heads: Tensor
    takers: list[nn.Module] = field(default_factory=list)
    others: list[nn.Module] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """A call of a module: the rows that it was given and said, None where there is no such row."""

    module: nn.Module
    given: Tensor | None
    said: tuple[Tensor | None, ...]

    @property
    def hands_on(self) -> bool:
        """Whether it only says what it was given, as a dropout does outside of training."""
        return len(self.said) == 1 and same(self.given, self.said[0])


class Flow:
    """What flows through a model at one position, in one pass over a text."""

    def __init__(self, model: nn.Module, place: Place) -> None:
        self.model, self.place = model, place
        self.names = {id(module): name for name, module in model.named_modules()}
        self.attentions: list[Attention] = []
        self.steps: list[Step] = []

    def run(self, ids: Tensor) -> Any:
        """What the model returns; its flow is in `attentions` and `steps` afterwards."""
        with torch.no_grad(), ExitStack() as stack:
            for module in self.model.modules():
                stack.enter_context(module.register_forward_pre_hook(self._before, with_kwargs=True))
                stack.enter_context(module.register_forward_hook(self._after, with_kwargs=True))
            stack.enter_context(intercept_heads(self.model, self))
            output = self.model(ids)
        self._refuse_unseen()
        return output

    def owns(self, module: nn.Module) -> bool:
        return id(module) in self.names

    def targets(self, module: nn.Module) -> bool:
        return True

    def apply(self, module: nn.Module, heads: Tensor, keys: int) -> Tensor:
        """Take note of heads (batch, head, query, dim), and leave them as they are."""
        name = self.names[id(module)]
        if (heads.shape[0], heads.shape[2]) != (1, self.place.length):
            raise UnsupportedError(
                f"contributions: {name} attends with {tuple(heads.shape)} (batch, heads, queries, dim) in a pass over "
                f"one text of {self.place.length} tokens, so that its queries are not the tokens; take another model"
            )
        count = self._seen().count(name)
        row = heads[0, :, self.place.position].detach().clone()
        self.attentions.append(Attention(f"{name}#{count + 1}" if count else name, row))
        return heads

    def around_attention(self, module: nn.Module) -> bool:
        """Whether it is an attention layer, or has one inside."""
        name = self.names[id(module)]
        return any(one == name or _inside(one, name) for one in self._seen())

    def _seen(self) -> list[str]:
        return [attention.name.partition("#")[0] for attention in self.attentions]

    def _before(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not self.attentions:
            return
        latest, given = self.attentions[-1], (*args, *kwargs.values())
        rows = [row.flatten() for value in given if (row := self.place.row(value)) is not None]
        if any(same(row, latest.heads.flatten()) for row in rows):
            (latest.takers if len(given) == 1 else latest.others).append(module)

    def _after(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        said = tuple(self.place.row(part) for part in parts_of(output))
        self.steps.append(Step(module, self.place.row(first_tensor(args, kwargs)), said))

    def _refuse_unseen(self) -> None:
        """Heads that were not seen would be counted as something else."""
        for step in self.steps:
            if not is_attention(step.module) or is_without_softmax(step.module):
                continue
            name = self.names[id(step.module)]
            if not self.around_attention(step.module) and not any(_inside(name, one) for one in self._seen()):
                raise UnsupportedError(
                    f"contributions: {name} ({type(step.module).__name__}) computes attention by code of its own, "
                    "where heads cannot be seen; load the model with attn_implementation='sdpa' or 'eager', if it can"
                )
        if not self.attentions:
            raise UnsupportedError(
                f"contributions: no attention was seen in {type(self.model).__name__}; it has no heads, or computes "
                "attention by code of its own"
            )


def first_tensor(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The tensor that a module is about."""
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)


def parts_of(output: Any) -> tuple[Any, ...]:
    return output if isinstance(output, tuple) else (output,)


def _inside(name: str, other: str) -> bool:
    return name.startswith(f"{other}.") or not other


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two rows are the same numbers."""
    return one is not None and other is not None and one.shape == other.shape and torch.equal(one, other.to(one))
