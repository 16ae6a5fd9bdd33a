"""Which rows of which weights make the queries and keys of each head of an attention layer.

In: a layer, a function that computes its queries and keys again, and the weights of its linear modules. Out: the rows.
No name is trusted: blocks of rows are scaled by powers of two, which is exact, and the queries and keys of each head
show by which power they were scaled. A head whose queries do not scale with one block, as behind a QK norm, is refused.
Does not know: models, which inputs are used, how attention is computed. Memory: the weights of a layer, once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from attnscope.errors import UnsupportedError

DIGIT = 8
"""Block numbers are written in this base; a pass scales each block by 2 to the minus one digit of its number."""

TOLERANCE = 1e-4
"""Of the largest element of a head; scaling by powers of two is exact unless fp16 underflows."""


class Rows(NamedTuple):
    """A block of output features of a linear module."""

    parameters: tuple[Tensor, ...]  #: weight and bias
    dims: tuple[int, ...]  #: the dimension of the output features in each
    start: int
    stop: int

    def scale(self, factor: float) -> None:
        """Multiply weights and biases of the block."""
        with torch.no_grad():
            for parameter, dim in zip(self.parameters, self.dims, strict=True):
                parameter.narrow(dim, self.start, self.stop - self.start).mul_(factor)


class Projections(NamedTuple):
    """The rows that make each query head, and each key head."""

    queries: list[Rows]
    keys: list[Rows]


QueriesAndKeys = tuple[Tensor, Tensor]
"""(batch, heads, positions, dim) each."""


def find_projections(name: str, module: nn.Module, compute: Callable[[], QueriesAndKeys]) -> Projections:
    """Find the rows of each head.

    Args:
        name: The name of the layer, for errors.
        module: The layer.
        compute: Computes its queries and keys again, from the same input.

    Raises:
        UnsupportedError: The queries or keys of a head do not scale with exactly one block of rows, or two heads share
            one, or the weights are sharded or quantized.
    """
    query, key = compute()
    blocks = list(iter_blocks(name, module, query.shape[-1]))
    numbers = [torch.zeros(part.shape[1], dtype=torch.long) for part in (query, key)]
    place = 1
    while place <= len(blocks):
        digits = [(number + 1) // place % DIGIT for number in range(len(blocks))]
        with scale_rows(blocks, [2.0**-digit for digit in digits]):
            for part, changed, number in zip((query, key), compute(), numbers, strict=True):
                number += place * _exponents(name, part, changed)
        place *= DIGIT
    chosen = [number.tolist() for number in numbers]
    used = [number for part in chosen for number in part]
    if min(used) < 1 or max(used) > len(blocks):
        raise _not_linear(name)
    if len(set(used)) < len(used):
        raise UnsupportedError(f"clip: several heads of {name} share the same rows of a weight")
    queries, keys = ([blocks[number - 1] for number in part] for part in chosen)
    return Projections(queries, keys)


def iter_blocks(name: str, module: nn.Module, dim: int) -> Iterator[Rows]:
    """The output features of all linear modules of a layer in blocks of the head width."""
    for inner in module.modules():
        parameters, dims = _linear_parameters(inner)
        for parameter in parameters:
            if isinstance(parameter, DTensor) or not parameter.is_floating_point():
                raise UnsupportedError(
                    f"clip: the weights of {name} are sharded or quantized ({type(parameter).__name__}, "
                    f"{parameter.dtype}); clip is for whole floating-point weights, as with one device or DDP"
                )
        features = parameters[0].shape[dims[0]] if parameters else 0
        if features % dim == 0:
            for start in range(0, features, dim):
                yield Rows(parameters, dims, start, start + dim)


def _linear_parameters(module: nn.Module) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Weight and bias of a linear module, and the dimension of the output features in each."""
    if isinstance(module, nn.MultiheadAttention):
        found, dim = [module.in_proj_weight, module.in_proj_bias], 0
    elif isinstance(module, nn.Linear):
        found, dim = [module.weight, module.bias], 0
    elif type(module).__name__ == "Conv1D":  # of transformers: a linear layer whose weight is transposed
        found, dim = [module.weight, module.bias], 1
    else:
        return (), ()
    parameters = tuple(parameter for parameter in found if isinstance(parameter, Tensor))
    return parameters, tuple(dim if parameter.dim() == 2 else 0 for parameter in parameters)


@contextmanager
def scale_rows(blocks: Sequence[Rows], factors: Sequence[float]) -> Iterator[None]:
    """Scale blocks of rows, and restore the same bits at the end."""
    parameters = {id(parameter): parameter for block in blocks for parameter in block.parameters}
    before = {key: parameter.detach().clone() for key, parameter in parameters.items()}
    try:
        for block, factor in zip(blocks, factors, strict=True):
            block.scale(factor)
        yield
    finally:
        with torch.no_grad():
            for key, parameter in parameters.items():
                parameter.copy_(before[key])


def _exponents(name: str, before: Tensor, after: Tensor) -> Tensor:
    """The power of two by which each head was divided, (heads,)."""
    before, after = (part.detach().double().transpose(0, 1).flatten(1).cpu() for part in (before, after))
    sizes = [part.norm(dim=1) for part in (before, after)]
    exponents = (sizes[0] / sizes[1]).log2().nan_to_num(0.0, 0.0, 0.0).round()
    expected = before * torch.exp2(-exponents)[:, None]
    errors, largest = ((after - expected).abs().amax(1), expected.abs().amax(1))
    if not bool(((errors <= TOLERANCE * largest) & (largest > 0)).all()):
        raise _not_linear(name)
    return exponents.long()


def _not_linear(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"clip: the queries and keys of {name} do not scale with one block of rows of a weight for each head, as "
        "behind a QK norm; its logits cannot be clipped this way"
    )
