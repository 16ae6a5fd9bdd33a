"""The activations of a model at one token position: inputs and outputs of all modules, and head outputs.

In: a model and a text. Out: one row per module call, and for each attention layer its head outputs and the modules that
take them as input. Modules are found by the values they receive, not by name. Does not know: what rows mean.
Memory: that of a forward pass, and one row per module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import UnsupportedError
from attnscope.recording.call import Call
from attnscope.recording.hooks.coverage import is_attention, is_without_softmax
from attnscope.recording.hooks.interventions import intercept_heads


@dataclass(frozen=True)
class TokenPosition:
    """One position of a sequence, and how to read and write its row in an activation tensor."""

    length: int
    position: int

    def row(self, value: object) -> Tensor | None:
        """Return the row of a tensor (1, length, ...) or (length, ...), and None for anything else."""
        if not isinstance(value, Tensor):
            return None
        if value.shape[:2] == (1, self.length):
            return value[0, self.position].detach().clone()  # some models add to activations in place
        return value[self.position].detach().clone() if value.dim() > 1 and len(value) == self.length else None

    def with_row(self, value: Any, row: Tensor | None) -> Any:
        """Return a copy of a tensor with this row replaced; anything without a row is returned as it is."""
        if row is None or self.row(value) is None:
            return value
        value = value.clone()
        (value[0] if value.shape[:2] == (1, self.length) else value)[self.position] = row
        return value


@dataclass
class LayerHeads:
    """The head outputs of a layer at the position, (heads, head_dim), and the modules that take them as input.

    Outer modules come first. `consumers` take no other argument, so each may be the output projection.
    """

    name: str
    outputs: Tensor
    consumers: list[nn.Module] = field(default_factory=list)
    other_consumers: list[nn.Module] = field(default_factory=list)


@dataclass(frozen=True)
class ModuleCall:
    """The input and output rows of a module call; None for a value without a row."""

    module: nn.Module
    input: Tensor | None
    outputs: tuple[Tensor | None, ...]

    @property
    def is_identity(self) -> bool:
        """Whether the output equals the input, as for dropout in eval mode."""
        return len(self.outputs) == 1 and rows_equal(self.input, self.outputs[0])


class Activations:
    """Records the activations of a model at one position, in one forward pass."""

    def __init__(self, model: nn.Module, position: TokenPosition) -> None:
        self.model, self.position = model, position
        self.names = {id(module): name for name, module in model.named_modules()}
        self.layers: list[LayerHeads] = []
        self.calls: list[ModuleCall] = []

    def run(self, input_ids: Tensor) -> Any:
        """Run the model, fill `layers` and `calls`, and return the model's output."""
        with torch.no_grad(), ExitStack() as stack:
            for module in self.model.modules():
                stack.enter_context(module.register_forward_pre_hook(self._record_input, with_kwargs=True))
                stack.enter_context(module.register_forward_hook(self._record_output, with_kwargs=True))
            stack.enter_context(intercept_heads(self.model, self))
            output = self.model(input_ids)
        self._check_coverage()
        return output

    def owns(self, module: nn.Module) -> bool:
        return id(module) in self.names

    def targets(self, module: nn.Module) -> bool:
        return True

    def apply(self, module: nn.Module, heads: Tensor, keys: int, read_call: Callable[[], Call]) -> Tensor:
        """Record head outputs (batch, heads, queries, head_dim) and leave them unchanged."""
        name = self.names[id(module)]
        if (heads.shape[0], heads.shape[2]) != (1, self.position.length):
            raise UnsupportedError(
                f"direct_logit_attribution: the queries of {name} are not the tokens: expected head outputs "
                f"(1, heads, {self.position.length}, head_dim), got {tuple(heads.shape)}"
            )
        count = self._layer_names().count(name)
        row = heads[0, :, self.position.position].detach().clone()
        self.layers.append(LayerHeads(f"{name}#{count + 1}" if count else name, row))
        return heads

    def contains_attention(self, module: nn.Module) -> bool:
        """Whether a module is a recorded attention layer, or contains one."""
        name = self.names[id(module)]
        return any(layer == name or _is_inside(layer, name) for layer in self._layer_names())

    def _layer_names(self) -> list[str]:
        return [layer.name.partition("#")[0] for layer in self.layers]

    def _record_input(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not self.layers:
            return
        latest, inputs = self.layers[-1], (*args, *kwargs.values())
        rows = [row.flatten() for value in inputs if (row := self.position.row(value)) is not None]
        if any(rows_equal(row, latest.outputs.flatten()) for row in rows):
            (latest.consumers if len(inputs) == 1 else latest.other_consumers).append(module)

    def _record_output(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        outputs = tuple(self.position.row(part) for part in as_tuple(output))
        self.calls.append(ModuleCall(module, self.position.row(first_tensor(args, kwargs)), outputs))

    def _check_coverage(self) -> None:
        """Raise if an attention layer was not intercepted, as its heads would count as something else."""
        for call in self.calls:
            if not is_attention(call.module) or is_without_softmax(call.module):
                continue
            name = self.names[id(call.module)]
            if not self.contains_attention(call.module) and not any(
                _is_inside(name, layer) for layer in self._layer_names()
            ):
                raise UnsupportedError(
                    f"direct_logit_attribution: {name} ({type(call.module).__name__}) has its own attention code, so "
                    "its heads cannot be intercepted; load the model with attn_implementation='sdpa' or 'eager'"
                )
        if not self.layers:
            raise UnsupportedError(
                f"direct_logit_attribution: found no attention in {type(self.model).__name__}: it has no heads, or has "
                "its own attention code"
            )


def first_tensor(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the first tensor among the arguments of a call."""
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)


def as_tuple(output: Any) -> tuple[Any, ...]:
    return output if isinstance(output, tuple) else (output,)


def _is_inside(name: str, other: str) -> bool:
    return name.startswith(f"{other}.") or not other


def rows_equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two rows exist and are equal bit for bit."""
    return one is not None and other is not None and one.shape == other.shape and torch.equal(one, other.to(one))
