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

from attnscope.attention.positions import position_ids
from attnscope.attention.rotary_scaling import Scaling, plain_frequencies
from attnscope.errors import ShapeError

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
    """(position, 2, dim / 2) for the layout "half" and (position, dim / 2, 2) for "interleaved", the same in both of a
    pair; with (batch, 1) before that when batch rows stand at different positions."""
    sin: Tensor
    """The same shape as `cos`; negative for the first of each pair, which the second is subtracted from."""
    layout: Layout
    """Which coordinates are a pair."""

    @property
    def pair_axis(self) -> int:
        """The axis of a pair, once a head is folded into its pairs."""
        return -2 if self.layout == "half" else -1

    @property
    def positions(self) -> torch.Size:
        """(position,), or (batch, 1, position)."""
        return self.cos.shape[:-2]


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
    axis = -2 if rotary.layout == "half" else -1
    return Rotation(cos=torch.stack((cos, cos), axis), sin=torch.stack((-sin, sin), axis), layout=rotary.layout)


def apply_rotation(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn (..., head, position, dim) by a prepared rotation; computed in the rotation's dtype, returned in x's."""
    pairs = rotation.cos.shape[-2:]
    dim = pairs[0] * pairs[1]
    _require_fit(x, rotation, dim)
    turned = (x if dim == x.shape[-1] else x[..., :dim]).to(rotation.cos.dtype)
    turned = turned.reshape(*x.shape[:-1], *pairs)
    first, second = turned.chunk(2, dim=rotation.pair_axis)
    swapped = torch.cat((second, first), dim=rotation.pair_axis)
    turned = torch.addcmul(turned * rotation.cos, swapped, rotation.sin)
    turned = turned.reshape(*x.shape[:-1], dim).to(x.dtype)
    return turned if dim == x.shape[-1] else torch.cat((turned, x[..., dim:]), dim=-1)


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


def _require_fit(x: Tensor, rotation: Rotation, dim: int) -> None:
    if x.ndim < 2 or x.shape[-1] < dim:
        raise ShapeError(
            f"rotary turns the first {dim} coordinates of (..., head, position, dim), but the tensor is "
            f"{tuple(x.shape)}; set Rotary.dim to at most the head width"
        )
    rows = rotation.positions
    wanted = x.shape[-1 - len(rows) : -1]
    fits = 1 <= len(rows) == len(wanted) and rows[-1] == wanted[-1]
    if not fits or any(size not in (1, room) for size, room in zip(rows, wanted, strict=True)):
        where = rows if len(rows) < 2 else (*rows[:-2], rows[-1])
        raise ShapeError(
            f"positions of shape {tuple(where)} do not fit {tuple(x.shape)}, which is (..., head, position, dim): "
            "give (position,), or (batch, position) for a tensor with a batch axis"
        )
