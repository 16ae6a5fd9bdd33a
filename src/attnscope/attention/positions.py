"""Where a token stands: position numbers, and the two tables that are added to the embeddings.

In: a length, or the positions themselves. Out: a tensor with one row of width `dim` for each position.
Does not know: attention, queries or keys (turning those is `rotary`), nor what the table is added to.
Memory: O(n * dim) for n positions.
"""

import torch
from torch import Tensor, nn

from attnscope.errors import ShapeError


def position_ids(length: int, *, offset: int | Tensor = 0, device: torch.device | str | None = None) -> Tensor:
    """Number `length` consecutive positions from `offset`, or from one offset for each batch row.

    Returns (length,) for an int offset and (batch, length) for an offset tensor of shape (batch,), both int64.

    >>> position_ids(3, offset=10)
    tensor([10, 11, 12])
    >>> position_ids(3, offset=torch.tensor([0, 5]))
    tensor([[0, 1, 2],
            [5, 6, 7]])
    """
    if isinstance(offset, int):
        return torch.arange(offset, offset + length, device=device)
    if offset.is_floating_point() or offset.is_complex():
        raise ShapeError(f"an offset counts tokens, so it is made of integers, but arrived as {offset.dtype}")
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
    """The fixed table of waves of the first Transformer: sines in the even columns, cosines in the odd ones.

    For a length, counted from `offset`, or for explicit positions: (...) integers in, (..., dim) out. The row of
    position p holds sin and cos of p / base^(2i / dim) in columns 2i and 2i + 1.

    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    if dim < 2 or dim % 2:
        raise ShapeError(f"sinusoidal pairs a sine with a cosine, so dim must be even and at least 2, but is {dim}")
    # Vaswani et al. 2017, arXiv:1706.03762, section 3.5. In float64 on the CPU, because an angle of a million radians
    # has an error of 0.06 in float32, and because some devices have no float64.
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    if isinstance(positions, int):
        positions = position_ids(positions, offset=offset, device="cpu")
    elif offset:
        raise ShapeError("explicit positions and an offset arrived together: add the offset to the positions")
    angles = positions.to("cpu", torch.float64).unsqueeze(-1) * base**-exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(device=device, dtype=dtype)


class LearnedPositions(nn.Module):
    """A trained row for each of the first `num_positions` positions, and a refusal for the ones after them.

    >>> table = LearnedPositions(num_positions=8, dim=4)
    >>> table(3, offset=5).shape
    torch.Size([3, 4])
    >>> table(torch.tensor([[0, 1], [6, 7]])).shape
    torch.Size([2, 2, 4])
    """

    def __init__(self, num_positions: int, dim: int):
        super().__init__()
        # 0.02 is GPT-2's choice: small beside the token embeddings it is added to.
        self.weight = nn.Parameter(torch.randn(num_positions, dim) * 0.02)

    def forward(self, positions: int | Tensor, offset: int | Tensor = 0) -> Tensor:
        """Look up a length (counted from `offset`) or explicit positions: (...) integers in, (..., dim) out.

        Tensors are checked before the lookup, which waits for the device; an int length is checked for free. Inside
        torch.compile, which cannot look into tensors, the lookup itself has to refuse.
        """
        if isinstance(positions, int) and isinstance(offset, int):
            self._refuse_outside(offset, offset + positions - 1)
            return self.weight[offset : offset + positions]
        if isinstance(positions, int):
            positions = position_ids(positions, offset=offset, device=self.weight.device)
        elif not isinstance(offset, int) or offset:
            raise ShapeError("explicit positions and an offset arrived together: add the offset to the positions")
        if positions.numel() and not torch.compiler.is_compiling():
            self._refuse_outside(*(int(bound) for bound in positions.aminmax()))
        return nn.functional.embedding(positions, self.weight)

    def _refuse_outside(self, first: int, last: int) -> None:
        num_positions = self.weight.shape[0]
        if first < 0 or last >= num_positions:
            raise ShapeError(
                f"positions {first} to {last} were asked of a LearnedPositions table that holds 0 to "
                f"{num_positions - 1}; shorten the text, or use rotary positions, which have no last one"
            )

    def extra_repr(self) -> str:
        return f"num_positions={self.weight.shape[0]}, dim={self.weight.shape[1]}"
