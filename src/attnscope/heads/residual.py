"""What each head adds to the residual stream at one position: found in what flows where, and then put to the test.

In: the flow of a pass. Out: for each head the vector that it adds to the stream, or a refusal. The output projection of
a layer is the module that is given what its heads say, side by side. That it is, and that nothing but additions lies
behind it, is shown by a second pass: every other module says again what it said, each head says more or less than it
did by a factor of its own, and what arrives at the last norm has to change by the sum of what the heads' vectors say,
which no norm, gate or factor in between would let happen.
Does not know: tokens, logits, norms. Memory: that of a pass, and a vector for each head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from attnscope.errors import UnsupportedError
from attnscope.heads.flow import Attention, Flow, Step, first_tensor, parts_of, same
from attnscope.recording.hooks.interventions import intercept_heads


@dataclass(frozen=True)
class Written:
    """What a layer adds to the stream: each of its heads, (heads, width), and the bias of its projection, (width,)."""

    attention: Attention
    projection: nn.Module
    heads: Tensor
    bias: Tensor


def written(flow: Flow) -> list[Written]:
    """What each layer adds to the stream if its projection is linear, which `check_arrival` shows, or disproves."""
    with torch.no_grad():
        return [_written(flow.model, attention) for attention in flow.attentions]


def _written(model: nn.Module, attention: Attention) -> Written:
    takers = list(attention.takers)
    module = model.get_submodule(attention.name.partition("#")[0])
    if isinstance(module, nn.MultiheadAttention):  # calls a function with the projection inside
        takers.append(module.out_proj)
    for taker in takers:
        row = attention.heads.flatten()
        alone = torch.block_diag(*attention.heads)  # (heads, heads * dim): each head with the others silent
        said = taker(torch.cat((alone, torch.zeros_like(row)[None], row[None]))[None])[0]
        vectors, bias, together = (said[:-2] - said[-2]).cpu().double(), said[-2].cpu().double(), said[-1]
        if not same(together, row) and close(vectors.sum(0) + bias, together.cpu().double(), row.dtype):
            return Written(attention, taker, vectors, bias)
    raise UnsupportedError(
        f"contributions: what the heads of {attention.name} say is not what a linear layer is given next: a gate, a "
        "norm or another mixture of heads lies between them and the output projection, so that no head has a slab of "
        "its own. Measure what these heads do with ablate"
    )


def check_arrival(flow: Flow, layers: Sequence[Written], ids: Tensor, norm: nn.Module, stream: Tensor) -> None:
    """Refuse if what layers write is not added, as it is, to the stream that arrives at the last norm.

    Heads are made about as loud as the whole stream, so that none of them drowns in its rounding.
    """
    generator = torch.Generator().manual_seed(0)
    size = stream.cpu().double().norm()
    factors = [_factors(layer, size, generator) for layer in layers]

    def arrived_and_expected(factors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        arrived = _Replay(flow, layers, factors).run(ids, norm).cpu().double() - stream.cpu().double()
        return arrived, sum((some @ layer.heads for some, layer in zip(factors, layers, strict=True)), torch.zeros(()))

    if close(*arrived_and_expected(factors), stream.dtype):
        return
    silent = [torch.zeros_like(some) for some in factors]
    for index, layer in enumerate(layers):
        arrived, expected = arrived_and_expected([*silent[:index], factors[index], *silent[index + 1 :]])
        if not close(arrived, expected, stream.dtype):
            _refuse(layer.attention.name, arrived, expected)
    _refuse("all of the layers together", *arrived_and_expected(factors))


def _factors(layer: Written, size: Tensor, generator: torch.Generator) -> Tensor:
    """How much more each head says: a vector of about this size, forwards or backwards."""
    sizes = layer.heads.norm(dim=-1)
    drawn = torch.rand(sizes.shape, generator=generator) + 0.5
    drawn = drawn.where(torch.rand(sizes.shape, generator=generator) < 0.5, -drawn)
    return (drawn * size / sizes).where(sizes > 0, 0)


def _refuse(name: str, arrived: Tensor, expected: Tensor) -> NoReturn:
    share = float(arrived @ expected / expected.square().sum())
    other = float((arrived - share * expected).norm() / expected.norm())
    raise UnsupportedError(
        f"contributions: what {name} says is not added to the residual stream as it is. At the last norm, {share:z.2f} "
        f"times it arrived in a test, and something else of {other:.2f} times its size: a norm after attention, a "
        "factor or another module lies between. Measure what its heads do with ablate"
    )


class _Replay:
    """A pass in which modules say again what they said, and heads more or less than that."""

    def __init__(self, flow: Flow, layers: Sequence[Written], factors: Sequence[Tensor]) -> None:
        self._flow, self._place = flow, flow.place
        self._heads = [
            layer.attention.heads * (1 + factor[:, None]).to(layer.attention.heads)
            for layer, factor in zip(layers, factors, strict=True)
        ]
        self._projections = {id(layer.projection) for layer in layers}
        self._takers = {id(module) for one in flow.attentions for module in (*one.takers, *one.others)}
        self._calls = 0
        self._steps: dict[int, list[Step]] = {}
        for step in flow.steps:
            self._steps.setdefault(id(step.module), []).append(step)
        self._arrived: Tensor | None = None

    def run(self, ids: Tensor, norm: nn.Module) -> Tensor:
        """The row that the last norm is given."""
        with torch.no_grad(), ExitStack() as stack:
            for module in _around(self._flow.model, self._projections):
                if id(module) not in self._takers:  # what else is given the heads changes with them, and shows itself
                    stack.enter_context(module.register_forward_hook(self._again))
            stack.enter_context(norm.register_forward_pre_hook(self._arrive, with_kwargs=True))
            stack.enter_context(intercept_heads(self._flow.model, self))
            self._flow.model(ids)
        assert self._arrived is not None
        return self._arrived

    def owns(self, module: nn.Module) -> bool:
        return self._flow.owns(module)

    def targets(self, module: nn.Module) -> bool:
        return True

    def apply(self, module: nn.Module, heads: Tensor, keys: int) -> Tensor:
        heads = heads.clone()
        heads[0, :, self._place.position] = self._heads[self._calls]
        self._calls += 1
        return heads

    def _again(self, module: nn.Module, args: Any, output: Any) -> Any:
        steps = self._steps.get(id(module))
        if not steps or (step := steps.pop(0)).hands_on:
            return output
        parts = [self._place.with_row(*pair) for pair in zip(parts_of(output), step.said, strict=False)]
        return parts[0] if isinstance(output, Tensor) else tuple(parts) if isinstance(output, tuple) else output

    def _arrive(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._arrived = self._place.row(first_tensor(args, kwargs))


def _around(module: nn.Module, projections: Collection[int]) -> Iterator[nn.Module]:
    """The outermost modules that have no projection inside: norms, feed-forward layers, embeddings, ...

    A block without attention that stands in a row with others passes the stream on, too, and is opened as they are.
    """
    in_a_row = isinstance(module, nn.ModuleList | nn.Sequential) and _holds(module, projections)
    for child in module.children():
        if id(child) in projections:
            continue
        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict)  # lists are not called themselves
        if is_list or _holds(child, projections) or (in_a_row and any(True for _ in child.children())):
            yield from _around(child, projections)
        else:
            yield child


def _holds(module: nn.Module, projections: Collection[int]) -> bool:
    return any(id(inner) in projections for inner in module.modules())


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    """Whether a row is another up to the rounding of a pass."""
    return bool((found - wanted).norm() <= room(dtype) * wanted.norm())


def room(dtype: torch.dtype) -> float:
    """The part of a row that rounding may be in the end: 1e-5 in float32, 5e-2 in bfloat16.

    SmolLM2 needs a fiftieth of it in float32, and a fifth in bfloat16.
    """
    return 2 * torch.finfo(dtype).eps ** 0.75
