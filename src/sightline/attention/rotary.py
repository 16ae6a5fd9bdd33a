"""Rotary positions: queries and keys are turned by their position, so that their product sees only the distance.

In: queries or keys (..., head, position, dim), a `Rotary` that says how a head turns, and where the tokens stand.
Out: the same tensor turned, in its own shape and dtype.
Does not know: attention, caches, or which checkpoint has which layout.
Memory: O(n * dim). Angles are float64 products, so position 1,000,000 is as exact as position 1.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.attention.positions import position_ids
from sightline.attention.rotary_scaling import Scaling, plain_frequencies
from sightline.errors import ShapeError

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """How a head turns with its position (arXiv:2104.09864).

    >>> Rotary(dim=4, layout="half").frequencies()
    tensor([1.0000, 0.0100], dtype=torch.float64)
    """

    dim: int
    """How many coordinates turn: the first `dim` of each head, in pairs; the others pass through."""
    layout: Layout
    """Which coordinates are a pair: "half" is (i, i + dim / 2), as in Hugging Face; "interleaved" is (2i, 2i + 1), as
    in the paper, GPT-J and GGUF. There is no default: the wrong one raises nothing and only makes the model worse."""
    base: float = 10000.0
    """The larger, the slower the last pairs turn."""
    scaling: Scaling | None = None
    """How turning is slowed for longer texts, or None."""

    def __post_init__(self):
        if self.dim < 2 or self.dim % 2:
            raise ShapeError(f"Rotary turns pairs, so dim must be even and at least 2, but is {self.dim}")
        _require_layout("layout", self.layout)
        if self.base <= 1:
            raise ValueError(f"Rotary.base must be larger than 1, but is {self.base}")

    def frequencies(self) -> Tensor:
        """Radians a position for each pair: (dim / 2,), float64, on the CPU."""
        if self.scaling is None:
            return plain_frequencies(self.dim, self.base)
        return self.scaling.frequencies(self.dim, self.base)


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """The turn of each position, ready to be applied in every layer: make it once for a forward pass."""

    cos: Tensor
    """(position, dim / 2), or (..., 1, position, dim / 2) when batch rows stand at different positions."""
    sin: Tensor
    """The same shape as `cos`."""
    layout: Layout
    """Which coordinates are a pair."""


def rotate(x: Tensor, rotary: Rotary, *, offset: int | Tensor = 0, positions: Tensor | None = None) -> Tensor:
    """Turn queries or keys (..., head, position, dim) by their positions.

    Tokens stand at offset, offset + 1, ...; `offset` may be one int for each batch row, (batch,). Or say where each
    token stands by `positions`, (position,) or (batch, position).

    >>> rotate(torch.tensor([[1.0, 0.0]]), Rotary(dim=2, layout="half"), offset=1)
    tensor([[0.5403, 0.8415]])
    """
    if positions is None:
        positions = position_ids(x.shape[-2], offset=offset, device=x.device)
    elif not isinstance(offset, int) or offset:
        raise ShapeError("rotate was given positions and an offset: add the offset to the positions")
    dtype = torch.promote_types(x.dtype, torch.float32)
    return apply_rotation(x, rotation(rotary, positions.to(x.device), dtype=dtype))


def rotation(rotary: Rotary, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Rotation:
    """The cosine and sine of each position (position,) or (batch, position), to be shared by all layers.

    >>> turn = rotation(Rotary(dim=8, layout="half"), torch.arange(5))
    >>> apply_rotation(torch.randn(2, 5, 8), turn).shape
    torch.Size([2, 5, 8])
    """
    # A float32 angle near 1,000,000 is off by up to 0.03 radians, so angles are float64; MPS has none, hence the CPU.
    device = positions.device
    exact = torch.device("cpu") if device.type == "mps" else device
    angles = positions.to(exact, torch.float64).unsqueeze(-1) * rotary.frequencies().to(exact)
    if positions.ndim > 1:
        angles = angles.unsqueeze(-3)  # every head of a batch row stands at the same position
    amplitude = 1.0 if rotary.scaling is None else rotary.scaling.amplitude
    cos, sin = ((amplitude * wave).to(dtype).to(device) for wave in (angles.cos(), angles.sin()))
    return Rotation(cos=cos, sin=sin, layout=rotary.layout)


def apply_rotation(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn (..., head, position, dim) by a prepared rotation; computed in the rotation's dtype, returned in x's."""
    dim = 2 * rotation.cos.shape[-1]
    _require_fit(x, rotation.cos, dim)
    turned, passed = x[..., :dim].to(rotation.cos.dtype), x[..., dim:]
    if rotation.layout == "half":
        first, second = turned.chunk(2, dim=-1)
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    first, second = (
        first * rotation.cos - second * rotation.sin,
        second * rotation.cos + first * rotation.sin,
    )
    if rotation.layout == "half":
        turned = torch.cat((first, second), dim=-1)
    else:
        turned = torch.stack((first, second), dim=-1).flatten(-2)
    return torch.cat((turned.to(x.dtype), passed), dim=-1) if passed.shape[-1] else turned.to(x.dtype)


def convert_layout(
    x: Tensor, *, source: Layout, target: Layout, head_dim: int, rotary_dim: int | None = None, axis: int = -1
) -> Tensor:
    """Reorder the coordinates of each head along `axis` from one rotary layout to the other.

    `axis` holds one head or many side by side, so it serves query and key weights (head * head_dim, in) and biases
    with axis=0, and activations (..., head_dim) with axis=-1. The first `rotary_dim` coordinates of a head are moved.

    >>> convert_layout(torch.arange(4), source="half", target="interleaved", head_dim=4)
    tensor([0, 2, 1, 3])
    """
    _require_layout("source", source)
    _require_layout("target", target)
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ShapeError(f"rotary_dim must be even and within head_dim {head_dim}, but is {rotary_dim}")
    if x.shape[axis] % head_dim:
        raise ShapeError(f"axis {axis} of {tuple(x.shape)} does not hold whole heads of {head_dim} coordinates")
    if source == target:
        return x
    pairs = (2, rotary_dim // 2) if source == "half" else (rotary_dim // 2, 2)
    order = torch.arange(head_dim, device=x.device)
    order[:rotary_dim] = order[:rotary_dim].view(pairs).T.flatten()
    heads = torch.arange(0, x.shape[axis], head_dim, device=x.device).unsqueeze(-1)
    return x.index_select(axis, (heads + order).flatten())


def _require_layout(name: str, layout: str) -> None:
    if layout not in ("half", "interleaved"):
        raise ValueError(f'{name} must be "half" or "interleaved", but is {layout!r}')


def _require_fit(x: Tensor, cos: Tensor, dim: int) -> None:
    if x.ndim < 2 or x.shape[-1] < dim:
        raise ShapeError(
            f"rotary turns the first {dim} coordinates of (..., head, position, dim), but the tensor is "
            f"{tuple(x.shape)}; set Rotary.dim to at most the head width"
        )
    rows = cos.shape[:-1]
    wanted = x.shape[-1 - len(rows) : -1]
    fits = 1 <= len(rows) == len(wanted) and rows[-1] == wanted[-1]
    if not fits or any(size not in (1, room) for size, room in zip(rows, wanted, strict=True)):
        where = rows if len(rows) < 2 else (*rows[:-2], rows[-1])
        raise ShapeError(
            f"positions of shape {tuple(where)} do not fit {tuple(x.shape)}, which is (..., head, position, dim): "
            "give (position,), or (batch, position) for a tensor with a batch axis"
        )
