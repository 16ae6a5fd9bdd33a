"""Rotary position embeddings (RoPE): queries and keys are rotated by position, so products depend on distance only.

In: queries or keys (..., heads, positions, dim), a `Rotary` with the frequencies of a head, and token positions.
Out: the rotated tensor, in the same shape and dtype.
Does not know: attention, caches, or which checkpoint has which layout.
Memory: O(n * dim). Angles are float64 products, so position 1,000,000 is as exact as position 1.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attnscope.attention.float64 import float64_device
from attnscope.attention.positions import position_ids
from attnscope.attention.rotary_scaling import Scaling, plain_frequencies
from attnscope.errors import ShapeError

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """The configuration of rotary position embeddings (arXiv:2104.09864).

    >>> Rotary(dim=4, layout="half").frequencies()
    tensor([1.0000, 0.0100], dtype=torch.float64)
    """

    dim: int
    """The number of rotated coordinates: the first `dim` of each head, in pairs; the others are not changed."""
    layout: Layout
    """Which coordinates are a pair: "half" is (i, i + dim / 2), as in Hugging Face; "interleaved" is (2i, 2i + 1), as
    in the paper, GPT-J and GGUF. There is no default: the wrong one raises no error and only makes the model worse."""
    base: float = 10000.0
    """The base of the wavelengths (rope_theta): the larger it is, the slower the last pairs rotate."""
    scaling: Scaling | None = None
    """How frequencies are scaled for longer contexts, or None."""

    def __post_init__(self):
        if self.dim < 2 or self.dim % 2:
            raise ShapeError(f"Rotary: expected an even dim of at least 2, got {self.dim}")
        _check_layout("layout", self.layout)
        if self.base <= 1:
            raise ValueError(f"Rotary: expected base > 1, got {self.base}")

    def frequencies(self) -> Tensor:
        """Return the radians per position of each pair, (dim / 2,), float64, on the CPU."""
        if self.scaling is None:
            return plain_frequencies(self.dim, self.base)
        return self.scaling.frequencies(self.dim, self.base)


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """Cosines and sines of each position, to be computed once per forward pass and applied in every layer."""

    cos: Tensor
    """Cosines of shape (positions, 2, dim / 2) for the layout "half" and (positions, dim / 2, 2) for "interleaved".
    Batch rows with different positions have (batch, 1) before that. Both coordinates of a pair have the same cosine."""
    sin: Tensor
    """Sines in the shape of `cos`, negative for the first coordinate of each pair."""
    layout: Layout
    """Which coordinates are a pair."""

    @property
    def pair_axis(self) -> int:
        """The axis of a pair in a head that was reshaped to pairs."""
        return -2 if self.layout == "half" else -1

    @property
    def positions(self) -> torch.Size:
        """The shape of the positions: (positions,), or (batch, 1, positions)."""
        return self.cos.shape[:-2]


def rotate(x: Tensor, rotary: Rotary, *, offset: int | Tensor = 0, positions: Tensor | None = None) -> Tensor:
    """Rotate queries or keys by their positions.

    Args:
        x: Queries or keys, (..., heads, positions, dim).
        rotary: The frequencies and the layout of a head.
        offset: The position of the first token, an int or one per batch row, (batch,).
        positions: The position of each token, (positions,) or (batch, positions), instead of an offset.

    Returns:
        The rotated tensor, in the shape and dtype of `x`.

    >>> rotate(torch.tensor([[1.0, 0.0]]), Rotary(dim=2, layout="half"), offset=1)
    tensor([[0.5403, 0.8415]])
    """
    if positions is None:
        positions = position_ids(x.shape[-2], offset=offset, device=x.device)
    elif not isinstance(offset, int) or offset:
        raise ShapeError("rotate: expected positions or an offset, got both; add the offset to the positions")
    dtype = torch.promote_types(x.dtype, torch.float32)
    return apply_rotation(x, rotation(rotary, positions.to(x.device), dtype=dtype))


def rotation(rotary: Rotary, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Rotation:
    """Return cosines and sines of positions, (positions,) or (batch, positions), to share between all layers.

    >>> shared = rotation(Rotary(dim=8, layout="half"), torch.arange(5))
    >>> apply_rotation(torch.randn(2, 5, 8), shared).shape
    torch.Size([2, 5, 8])
    """
    # A float32 angle near 1,000,000 has an error of up to 0.03 radians, so angles are float64.
    device = positions.device
    exact = float64_device(device)
    angles = positions.to(exact, torch.float64).unsqueeze(-1) * rotary.frequencies().to(exact)
    if positions.ndim > 1:
        angles = angles.unsqueeze(-3)  # all heads of a batch row have the same positions
    amplitude = 1.0 if rotary.scaling is None else rotary.scaling.amplitude
    cos, sin = ((amplitude * wave).to(dtype).to(device) for wave in (angles.cos(), angles.sin()))
    axis = -2 if rotary.layout == "half" else -1
    return Rotation(cos=torch.stack((cos, cos), axis), sin=torch.stack((-sin, sin), axis), layout=rotary.layout)


def apply_rotation(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate (..., heads, positions, dim) by `rotation`, in its dtype; the result has the dtype of `x`."""
    pairs = rotation.cos.shape[-2:]
    dim = pairs[0] * pairs[1]
    _check_shapes(x, rotation, dim)
    rotated = (x if dim == x.shape[-1] else x[..., :dim]).to(rotation.cos.dtype)
    rotated = rotated.reshape(*x.shape[:-1], *pairs)
    first, second = rotated.chunk(2, dim=rotation.pair_axis)
    swapped = torch.cat((second, first), dim=rotation.pair_axis)
    rotated = torch.addcmul(rotated * rotation.cos, swapped, rotation.sin)
    rotated = rotated.reshape(*x.shape[:-1], dim).to(x.dtype)
    return rotated if dim == x.shape[-1] else torch.cat((rotated, x[..., dim:]), dim=-1)


def convert_layout(
    x: Tensor, *, source: Layout, target: Layout, head_dim: int, rotary_dim: int | None = None, axis: int = -1
) -> Tensor:
    """Reorder the coordinates of each head along `axis` from one rotary layout to the other.

    Use axis=0 for the parameters of query and key projections, (heads * head_dim, hidden) and (heads * head_dim,), and
    axis=-1 for activations (..., head_dim).

    Args:
        x: The tensor; `axis` has one head or several, one after the other.
        source: The layout of `x`.
        target: The layout of the result.
        head_dim: The size of a head.
        rotary_dim: The number of rotated coordinates, the first of each head; None for all.
        axis: The axis of the heads.

    >>> convert_layout(torch.arange(4), source="half", target="interleaved", head_dim=4)
    tensor([0, 2, 1, 3])
    """
    _check_layout("source", source)
    _check_layout("target", target)
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ShapeError(f"expected an even rotary_dim of at most head_dim {head_dim}, got {rotary_dim}")
    if x.shape[axis] % head_dim:
        raise ShapeError(f"expected axis {axis} to be a multiple of head_dim {head_dim}, got shape {tuple(x.shape)}")
    if source == target:
        return x
    pairs = (2, rotary_dim // 2) if source == "half" else (rotary_dim // 2, 2)
    order = torch.arange(head_dim, device=x.device)
    order[:rotary_dim] = order[:rotary_dim].view(pairs).T.flatten()
    heads = torch.arange(0, x.shape[axis], head_dim, device=x.device).unsqueeze(-1)
    return x.index_select(axis, (heads + order).flatten())


def _check_layout(name: str, layout: str) -> None:
    if layout not in ("half", "interleaved"):
        raise ValueError(f'expected {name} to be "half" or "interleaved", got {layout!r}')


def _check_shapes(x: Tensor, rotation: Rotation, dim: int) -> None:
    if x.ndim < 2 or x.shape[-1] < dim:
        raise ShapeError(
            f"rotary: expected (..., heads, positions, dim) with a dim of at least {dim}, got {tuple(x.shape)}; "
            "set Rotary.dim to at most the head dim"
        )
    rows = rotation.positions
    wanted = x.shape[-1 - len(rows) : -1]
    fits = 1 <= len(rows) == len(wanted) and rows[-1] == wanted[-1]
    if not fits or any(size not in (1, room) for size, room in zip(rows, wanted, strict=True)):
        where = rows if len(rows) < 2 else (*rows[:-2], rows[-1])
        raise ShapeError(
            f"rotary: expected positions (positions,), or (batch, positions) for a tensor with a batch axis, got "
            f"{tuple(where)} for a tensor {tuple(x.shape)}"
        )
