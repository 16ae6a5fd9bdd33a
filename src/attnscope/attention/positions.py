"""Token positions, and sinusoidal and learned position embeddings.

In: a length, or the positions themselves. Out: one row of `dim` numbers per position.
Does not know: attention, queries or keys (`rotary` rotates those), nor what the embeddings are added to.
Memory: O(n * dim) for n positions.
"""

import torch
from torch import Tensor, nn

from attnscope.errors import ShapeError


def position_ids(length: int, *, offset: int | Tensor = 0, device: torch.device | str | None = None) -> Tensor:
    """Return `length` consecutive positions.

    Args:
        length: The number of positions.
        offset: The first position, an int or one per batch row, (batch,).
        device: The device of the result.

    Returns:
        Integers (length,), or (batch, length) if `offset` is a tensor.

    >>> position_ids(3, offset=10)
    tensor([10, 11, 12])
    >>> position_ids(3, offset=torch.tensor([0, 5]))
    tensor([[0, 1, 2],
            [5, 6, 7]])
    """
    if isinstance(offset, int):
        return torch.arange(offset, offset + length, device=device)
    if offset.is_floating_point() or offset.is_complex():
        raise ShapeError(f"position_ids: expected an offset of integers, got {offset.dtype}")
    steps = torch.arange(length, device=offset.device if device is None else device)
    return offset.to(steps).unsqueeze(-1) + steps


def sinusoidal(
    positions: int | Tensor,
    dim: int,
    *,
    base: float = 10000.0,
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the sinusoidal position embeddings of the first Transformer (Vaswani et al. 2017, arXiv:1706.03762).

    The row of position p has sin and cos of p / base^(2i / dim) in columns 2i and 2i + 1.

    Args:
        positions: A number of positions, or integers of any shape (...).
        dim: The number of columns, even.
        base: The base of the wavelengths.
        offset: The first position, if `positions` is a number.
        dtype: The dtype of the result.
        device: The device of the result.

    Returns:
        (positions, dim), or (..., dim) for explicit positions.

    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    if dim < 2 or dim % 2:
        raise ShapeError(f"sinusoidal: expected an even dim of at least 2, got {dim}")
    # In float64 on the CPU, because an angle of a million radians has an error of 0.06 in float32, and because some
    # devices have no float64.
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    if isinstance(positions, int):
        positions = position_ids(positions, offset=offset, device="cpu")
    elif offset:
        raise ShapeError("expected positions or an offset, got both; add the offset to the positions")
    angles = positions.to("cpu", torch.float64).unsqueeze(-1) * base**-exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(device=device, dtype=dtype)


class LearnedPositions(nn.Module):
    """Learned position embeddings: a trained row for each of the first `num_positions` positions.

    Args:
        num_positions: The number of rows; larger positions raise ShapeError.
        dim: The number of columns.

    >>> table = LearnedPositions(num_positions=8, dim=4)
    >>> table(3, offset=5).shape
    torch.Size([3, 4])
    >>> table(torch.tensor([[0, 1], [6, 7]])).shape
    torch.Size([2, 2, 4])
    """

    def __init__(self, num_positions: int, dim: int):
        super().__init__()
        # 0.02 is GPT-2's choice: small compared with the token embeddings it is added to.
        self.weight = nn.Parameter(torch.randn(num_positions, dim) * 0.02)

    def forward(self, positions: int | Tensor, offset: int | Tensor = 0) -> Tensor:
        """Return the embeddings of a number of positions, counted from `offset`, or of explicit positions.

        Checking a tensor waits for the device; a number is checked without waiting. Inside torch.compile tensors are
        not checked, and the lookup itself fails.

        Args:
            positions: A number of positions, or integers of any shape (...).
            offset: The first position, an int or one per batch row, if `positions` is a number.

        Returns:
            (positions, dim), (batch, positions, dim) for an offset per batch row, or (..., dim).
        """
        if isinstance(positions, int) and isinstance(offset, int):
            self._check_range(offset, offset + positions - 1)
            return self.weight[offset : offset + positions]
        if isinstance(positions, int):
            positions = position_ids(positions, offset=offset, device=self.weight.device)
        elif not isinstance(offset, int) or offset:
            raise ShapeError("expected positions or an offset, got both; add the offset to the positions")
        if positions.numel() and not torch.compiler.is_compiling():
            self._check_range(*(int(bound) for bound in positions.aminmax()))
        return nn.functional.embedding(positions, self.weight)

    def _check_range(self, first: int, last: int) -> None:
        num_positions = self.weight.shape[0]
        if first < 0 or last >= num_positions:
            raise ShapeError(
                f"LearnedPositions: expected positions from 0 to {num_positions - 1}, got {first} to {last}; shorten "
                "the text, or use rotary positions, which have no limit"
            )

    def extra_repr(self) -> str:
        return f"num_positions={self.weight.shape[0]}, dim={self.weight.shape[1]}"
