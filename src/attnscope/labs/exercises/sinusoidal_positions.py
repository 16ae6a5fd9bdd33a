"""Implement sinusoidal positional encoding

- `encode(length, width)`: the table (length, width) of sinusoidal positions, for an even width. Columns 2i and 2i + 1
  of position p are the sine and the cosine of `p / 10000 ** (2 * i / width)`. Positions start at 0.
- `shift_matrix(offset, width)`: a matrix M (width, width) such that `encode(...)[p] @ M` is the encoding of position `p
  + offset`, for every p. It depends on the offset, not on p. Offsets may be negative.
- `similarity(offset, width)`: the dot product of the encodings of two positions at this distance, a number. It is the
  same for every pair at this distance: derive it.

Positions up to 5,000 have to be right to four digits, so compute angles in fp64 and return fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.labs.exercise import (
    Answer,
    WrongAnswer,
    expect_number,
    expect_tensor,
    first_mismatch,
    format_index,
    reject_known,
)

STARTER = '''
import torch
from torch import Tensor


def encode(length: int, width: int) -> Tensor:
    """Return the table (length, width)."""
    raise NotImplementedError


def shift_matrix(offset: int, width: int) -> Tensor:
    """Return M (width, width): encoding of p, times M, is the encoding of p + offset."""
    raise NotImplementedError


def similarity(offset: int, width: int) -> float:
    """Return the dot product of two encodings at this distance."""
    raise NotImplementedError
'''

SOLUTION = """
import torch
from torch import Tensor


def frequencies(width: int) -> Tensor:
    return 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def encode(length: int, width: int) -> Tensor:
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies(width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def shift_matrix(offset: int, width: int) -> Tensor:
    angles = offset * frequencies(width)
    blocks = [torch.tensor([[a.cos(), -a.sin()], [a.sin(), a.cos()]]) for a in angles]
    return torch.block_diag(*blocks).float()


def similarity(offset: int, width: int) -> float:
    return (offset * frequencies(width)).cos().sum().item()
"""

HINTS = (
    "Make the column of positions and the row of frequencies first; their product is all angles. How many frequencies "
    "are there for a width of 8?",
    "sin(a + b) and cos(a + b) are sums of products of sines and cosines of a and b. Write both for one pair of "
    "columns, with a the angle of p and b the angle of the offset: that is a 2 by 2 matrix.",
    "In a dot product each pair gives sin(a) sin(b) + cos(a) cos(b). Which cosine is that?",
)

AFTERWARDS = (
    "The matrix of a shift is a rotation of each pair. Rotary positions use the same rotation, on queries and keys."
)


def check(answer: Answer) -> None:
    """The table, at small and large positions; then shifts and similarities."""
    encode = answer.function("encode")
    for length, width in ((6, 4), (50, 16), (5000, 64)):
        _check_table(expect_tensor(encode(length, width), "The table", (length, width)), length, width)
    expect_tensor(encode(3, 4), "The table", (3, 4), torch.float32)
    shift = answer.function("shift_matrix")
    for offset, width in ((1, 4), (7, 16), (-3, 8), (0, 6)):
        _check_shift(expect_tensor(shift(offset, width), "The matrix", (width, width)), offset, width)
    similarity = answer.function("similarity")
    for offset, width in ((0, 8), (1, 16), (10, 64)):
        found = expect_number(similarity(offset, width), "The similarity")
        table = _table(abs(offset) + 1, width)
        wanted = float(table[0] @ table[-1])
        if abs(found - wanted) > 1e-3:
            raise WrongAnswer(
                "wrong similarity",
                f"At distance {offset} and width {width} it is {found:.4f}. Multiply two rows of your own table: is "
                "it that number? At distance 0 it is half the width.",
            )


def _table(length: int, width: int, *, base: float = 10000.0, start: int = 0, exponent: float = 1.0) -> Tensor:
    pairs = torch.arange(0, width, 2, dtype=torch.float64)
    angles = (torch.arange(length, dtype=torch.float64)[:, None] + start) * base ** (-exponent * pairs / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def _check_table(found: Tensor, length: int, width: int) -> None:
    expected = _table(length, width)
    if (place := first_mismatch(found, expected, 1e-4)) is None:
        return
    case = f"For {length} positions and a width of {width}"
    swapped = expected.unflatten(1, (-1, 2)).flip(-1).flatten(1)
    reject_known(
        found,
        {
            "sines and cosines are not interleaved": (
                torch.cat([expected[:, ::2], expected[:, 1::2]], dim=1),
                f"{case}, all sines come first and all cosines after them. Which columns does the task name?",
            ),
            "sines and cosines are swapped": (swapped, f"{case}, even columns are cosines. At position 0, which is 0?"),
            "positions start at 1": (_table(length, width, start=1), f"{case}, row 0 is the encoding of position 1."),
            "wrong frequency": (
                _table(length, width, exponent=0.5),
                f"{case}, frequencies fall half as fast as they should. What is the exponent of the last pair?",
            ),
        },
    )
    if first_mismatch(found[:10], expected[:10], 1e-4) is None:
        raise WrongAnswer(
            "digits are lost",
            f"{case}, small positions are right, and entry {format_index(place)} is {float(found[place]):.5f}: at "
            "large angles fp32 is not precise enough. In which dtype are the angles?",
        )
    raise WrongAnswer(
        "wrong table",
        f"{case}, entry {format_index(place)} is {float(found[place]):.4f}. Which angle belongs there, and is it the "
        "sine or the cosine?",
    )


def _check_shift(found: Tensor, offset: int, width: int) -> None:
    table = _table(40, width)
    rows = table[10:30]
    wanted = table[10 + offset : 30 + offset]
    if first_mismatch(rows @ found.double(), wanted, 1e-4) is None:
        return
    backwards = _table(40, width)[10 - offset : 30 - offset]
    if first_mismatch(rows @ found.double(), backwards, 1e-4) is None:
        raise WrongAnswer(
            "shifted the wrong way",
            f"With an offset of {offset} your matrix shifts by {-offset}. The encoding is a row that is multiplied "
            "from the left: is your matrix made for columns?",
        )
    raise WrongAnswer(
        "not a shift",
        f"With an offset of {offset} and a width of {width}, the encoding of position 10 times your matrix is not "
        f"that of position {10 + offset}. Check one pair of columns with pencil and paper.",
    )
