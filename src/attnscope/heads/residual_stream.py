"""What each head adds to the residual stream at one position, found by value and verified by a second pass.

In: the activations of a forward pass. Out: for each head the vector it adds to the residual stream, or an error. The
output projection of a layer is the module whose input is the concatenated head outputs. A second pass verifies that it
is, and that only additions follow. Every other module repeats its output, each head output is scaled by its own factor,
and the input of the final norm has to change by the sum of the scaled head vectors. A norm, gate or factor in between
breaks this equality.
Does not know: tokens, logits, norms. Memory: that of a forward pass, and one vector per head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from attnscope.errors import UnsupportedError
from attnscope.heads.activations import Activations, LayerHeads, ModuleCall, as_tuple, first_tensor, rows_equal
from attnscope.recording.call import Call
from attnscope.recording.hooks.interventions import intercept_heads


@dataclass(frozen=True)
class ResidualUpdate:
    """What a layer adds to the residual stream: one vector per head, (heads, hidden_size), and the projection bias."""

    layer: LayerHeads
    projection: nn.Module
    heads: Tensor
    bias: Tensor


def residual_updates(activations: Activations) -> list[ResidualUpdate]:
    """Return what each layer adds to the stream, assuming additions only; `check_additive` verifies that."""
    with torch.no_grad():
        return [_residual_update(activations.model, layer) for layer in activations.layers]


def _residual_update(model: nn.Module, layer: LayerHeads) -> ResidualUpdate:
    consumers = list(layer.consumers)
    module = model.get_submodule(layer.name.partition("#")[0])
    if isinstance(module, nn.MultiheadAttention):  # calls a function that contains the projection
        consumers.append(module.out_proj)
    for consumer in consumers:
        row = layer.outputs.flatten()
        single = torch.block_diag(*layer.outputs)  # (heads, heads * head_dim): each head with the others zero
        projected = consumer(torch.cat((single, torch.zeros_like(row)[None], row[None]))[None])[0]
        bias, total = projected[-2].cpu().double(), projected[-1]
        vectors = (projected[:-2] - projected[-2]).cpu().double()
        if not rows_equal(total, row) and is_close(vectors.sum(0) + bias, total.cpu().double(), row.dtype):
            return ResidualUpdate(layer, consumer, vectors, bias)
    raise UnsupportedError(
        f"direct_logit_attribution: found no linear output projection behind the heads of {layer.name}: a gate, a norm "
        "or a mixture of heads comes first, so no head has its own slice of the projection. Use ablate instead"
    )


def check_additive(
    activations: Activations, updates: Sequence[ResidualUpdate], input_ids: Tensor, norm: nn.Module, stream: Tensor
) -> None:
    """Raise if a residual update does not arrive unchanged at the input `stream` of the final norm.

    Head vectors are scaled to about the norm of the whole stream, so that none is lost in its rounding.
    """
    generator = torch.Generator().manual_seed(0)
    size = stream.cpu().double().norm()
    factors = [_draw_factors(update, size, generator) for update in updates]

    def measure(factors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the measured and the expected change of the stream."""
        replayed = _Replay(activations, updates, factors).run(input_ids, norm)
        expected = sum((some @ update.heads for some, update in zip(factors, updates, strict=True)), torch.zeros(()))
        return replayed.cpu().double() - stream.cpu().double(), expected

    if is_close(*measure(factors), stream.dtype):
        return
    zeros = [torch.zeros_like(some) for some in factors]
    for index, update in enumerate(updates):
        found, expected = measure([*zeros[:index], factors[index], *zeros[index + 1 :]])
        if not is_close(found, expected, stream.dtype):
            _raise_not_additive(update.layer.name, found, expected)
    _raise_not_additive("all layers together", *measure(factors))


def _draw_factors(update: ResidualUpdate, size: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a factor of either sign per head that scales its vector to about this size."""
    sizes = update.heads.norm(dim=-1)
    drawn = torch.rand(sizes.shape, generator=generator) + 0.5
    drawn = drawn.where(torch.rand(sizes.shape, generator=generator) < 0.5, -drawn)
    return (drawn * size / sizes).where(sizes > 0, 0)


def _raise_not_additive(name: str, found: Tensor, expected: Tensor) -> NoReturn:
    share = float(found @ expected / expected.square().sum())
    other = float((found - share * expected).norm() / expected.norm())
    raise UnsupportedError(
        f"direct_logit_attribution: the output of {name} is not added unchanged to the residual stream. In a test, "
        f"{share:z.2f} times it arrived at the final norm, and something else of {other:.2f} times its size: a norm "
        "after attention, a factor or another module lies between. Use ablate instead"
    )


class _Replay:
    """A forward pass in which modules repeat their recorded outputs, and head outputs are scaled."""

    def __init__(self, activations: Activations, updates: Sequence[ResidualUpdate], factors: Sequence[Tensor]) -> None:
        self._activations, self._position = activations, activations.position
        self._heads = [
            update.layer.outputs * (1 + factor[:, None]).to(update.layer.outputs)
            for update, factor in zip(updates, factors, strict=True)
        ]
        self._projections = {id(update.projection) for update in updates}
        self._consumers = {
            id(module) for layer in activations.layers for module in (*layer.consumers, *layer.other_consumers)
        }
        self._num_calls = 0
        self._recorded: dict[int, list[ModuleCall]] = {}
        for call in activations.calls:
            self._recorded.setdefault(id(call.module), []).append(call)
        self._stream: Tensor | None = None

    def run(self, input_ids: Tensor, norm: nn.Module) -> Tensor:
        """Return the row that the final norm receives."""
        with torch.no_grad(), ExitStack() as stack:
            for module in _modules_without(self._activations.model, self._projections):
                if id(module) not in self._consumers:  # another consumer of the heads has to react to their change
                    stack.enter_context(module.register_forward_hook(self._repeat))
            stack.enter_context(norm.register_forward_pre_hook(self._record_stream, with_kwargs=True))
            stack.enter_context(intercept_heads(self._activations.model, self))
            self._activations.model(input_ids)
        assert self._stream is not None
        return self._stream

    def owns(self, module: nn.Module) -> bool:
        return self._activations.owns(module)

    def targets(self, module: nn.Module) -> bool:
        return True

    def apply(self, module: nn.Module, heads: Tensor, keys: int, read_call: Callable[[], Call]) -> Tensor:
        heads = heads.clone()
        heads[0, :, self._position.position] = self._heads[self._num_calls]
        self._num_calls += 1
        return heads

    def _repeat(self, module: nn.Module, args: Any, output: Any) -> Any:
        recorded = self._recorded.get(id(module))
        if not recorded or (call := recorded.pop(0)).is_identity:
            return output
        parts = [self._position.with_row(*pair) for pair in zip(as_tuple(output), call.outputs, strict=False)]
        return parts[0] if isinstance(output, Tensor) else tuple(parts) if isinstance(output, tuple) else output

    def _record_stream(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._stream = self._position.row(first_tensor(args, kwargs))


def _modules_without(module: nn.Module, projections: Collection[int]) -> Iterator[nn.Module]:
    """Yield the outermost modules that contain no projection: norms, feed-forward layers, embeddings, ...

    A block without attention among blocks with attention also passes the stream on, so its children are yielded.
    """
    is_stack = isinstance(module, nn.ModuleList | nn.Sequential) and _contains(module, projections)
    for child in module.children():
        if id(child) in projections:
            continue
        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict)  # lists are not called themselves
        if is_list or _contains(child, projections) or (is_stack and any(True for _ in child.children())):
            yield from _modules_without(child, projections)
        else:
            yield child


def _contains(module: nn.Module, projections: Collection[int]) -> bool:
    return any(id(inner) in projections for inner in module.modules())


def is_close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether two rows agree up to the rounding of a forward pass."""
    return bool((found - expected).norm() <= relative_tolerance(dtype) * expected.norm())


def relative_tolerance(dtype: torch.dtype) -> float:
    """Return the relative error that rounding may cause: 1e-5 in float32, 5e-2 in bfloat16.

    SmolLM2 needs a fiftieth of it in float32, and a fifth in bfloat16.
    """
    return 2 * torch.finfo(dtype).eps ** 0.75
