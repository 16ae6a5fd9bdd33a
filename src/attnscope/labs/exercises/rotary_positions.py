"""Implement rotary position embedding

Rotary position embedding (RoPE) rotates queries and keys by their position before the dot product.

- `rotate(x, positions)`: `x` is (..., n, width) with an even width, and `positions` is (n,) with integers. Components
  2i and 2i + 1 of a row are a pair (a, b). Rotate it counterclockwise by the angle `position / 10000 ** (2 * i /
  width)`: a becomes `a cos - b sin`, b becomes `a sin + b cos`. The result has the dtype of x.
- `scores(q, k, q_positions, k_positions)`: the attention scores (..., n, m) of queries (..., n, width) and keys (...,
  m, width): dot products after the rotation, divided by the square root of the width.
- `relative_score(q, k, distance)`: `q` and `k` are single vectors (width,). Return the score, a number, of a key that
  stands `distance` positions after the query, wherever the query stands. Rotate only one of the two.
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
    standard_normal,
)

STARTER = '''
import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Return x (..., n, width) with each pair rotated by its position."""
    raise NotImplementedError


def scores(q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Return the scores (..., n, m)."""
    raise NotImplementedError


def relative_score(q: Tensor, k: Tensor, distance: int) -> float:
    """Return the score of a key that stands `distance` positions after the query."""
    raise NotImplementedError
'''

SOLUTION = """
import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    width = x.shape[-1]
    frequencies = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = positions[:, None].double() * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def scores(q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    return rotate(q, q_positions) @ rotate(k, k_positions).mT / q.shape[-1] ** 0.5


def relative_score(q: Tensor, k: Tensor, distance: int) -> float:
    rotated = rotate(k[None], torch.tensor([distance]))[0]
    return (q @ rotated / len(q) ** 0.5).item()
"""

HINTS = (
    "Even components are `x[..., ::2]`, odd ones `x[..., 1::2]`. Angles have one row per position and "
    "one column per pair.",
    "Stack the two new components along a new last dimension and flatten it: then they are interleaved again.",
    "Rotating both vectors by the same angle keeps their dot product. Rotate both back by the angle of the query: "
    "what is left of each?",
)

AFTERWARDS = (
    "Libraries differ in which components form a pair: adjacent ones as here, or i and i + width / 2, as in "
    "transformers. Weights trained with one do not work with the other."
)


def check(answer: Answer) -> None:
    """Rotations; then scores, and that they depend on distances."""
    rotate = answer.function("rotate")
    for seed, (shape, first) in enumerate((((4, 4), 0), ((2, 3, 6, 8), 5), ((3, 64), 1000))):
        x = standard_normal(*shape, seed=seed)
        positions = torch.arange(first, first + shape[-2])
        _check_rotation(expect_tensor(rotate(x, positions), "What `rotate` returns", shape, x.dtype), x, positions)
    x = standard_normal(3, 4, seed=7, dtype=torch.float64)
    _check_rotation(
        expect_tensor(rotate(x, torch.tensor([9, 2, 2])), "What `rotate` returns", (3, 4), x.dtype),
        x,
        torch.tensor([9, 2, 2]),
    )
    _check_scores(answer)
    relative = answer.function("relative_score")
    q, k = standard_normal(2, 16, seed=40)
    for distance in (0, 3, -5):
        wanted = float(_scores(q[None], k[None], torch.tensor([20]), torch.tensor([20 + distance])))
        found = expect_number(relative(q, k, distance), "The relative score")
        if abs(found - wanted) > 1e-4:
            other = float(_scores(q[None], k[None], torch.tensor([20]), torch.tensor([20 - distance])))
            if abs(found - other) <= 1e-4:
                raise WrongAnswer(
                    "the wrong direction",
                    f"At distance {distance} this is the score of a key as far on the other side of the query.",
                )
            raise WrongAnswer(
                "not the relative score",
                f"At distance {distance} it is {found:.4f}. Compare with your own `scores` for a query at 20 and a "
                f"key at {20 + distance}.",
            )


def _rotate(x: Tensor, positions: Tensor, *, base: float = 10000.0, direction: int = 1, halves: bool = False) -> Tensor:
    width = x.shape[-1]
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = direction * positions[:, None].double() * frequencies
    a, b = (x.double().chunk(2, -1)) if halves else (x.double()[..., ::2], x.double()[..., 1::2])
    parts = (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos())
    return torch.cat(parts, -1) if halves else torch.stack(parts, -1).flatten(-2)


def _scores(q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    return _rotate(q, q_positions) @ _rotate(k, k_positions).mT / q.shape[-1] ** 0.5


def _check_rotation(found: Tensor, x: Tensor, positions: Tensor) -> None:
    expected = _rotate(x, positions)
    if (place := first_mismatch(found, expected, 1e-4)) is None:
        return
    case = f"With x of shape {tuple(x.shape)} and positions from {int(positions.min())}"
    interleaved = expected.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    reject_known(
        found,
        {
            "clockwise": (_rotate(x, positions, direction=-1), f"{case}, all pairs are rotated the other way."),
            "other pairs": (
                _rotate(x, positions, halves=True),
                f"{case}, component i is paired with i + width / 2. The task pairs adjacent components.",
            ),
            "pairs are torn apart": (
                interleaved,
                f"{case}, the numbers are right and in the wrong order: first parts of all pairs, then second parts.",
            ),
            "wrong frequency": (
                _rotate(x, positions, base=100.0),
                f"{case}, angles of later pairs are too large. What is the exponent of the last pair?",
            ),
        },
    )
    lengths = found.double().norm(dim=-1) / x.double().norm(dim=-1)
    if (row := first_mismatch(lengths, torch.ones_like(lengths), 1e-3)) is not None:
        raise WrongAnswer(
            "not a rotation",
            f"{case}, row {format_index(row)} is {float(lengths[row]):.4f} times as long as before. A rotation keeps "
            "lengths: check the four products of one pair and their signs.",
        )
    raise WrongAnswer(
        "wrong angle",
        f"{case}, lengths are kept, and component {format_index(place)} is {float(found[place]):.4f}. Which angle "
        "does that pair have?",
    )


def _check_scores(answer: Answer) -> None:
    scores = answer.function("scores")
    q, k = standard_normal(2, 4, 8, seed=20), standard_normal(2, 6, 8, seed=21)
    here, there = torch.arange(2, 6), torch.arange(6)
    found = expect_tensor(scores(q, k, here, there), "The scores", (2, 4, 6))
    expected = _scores(q, k, here, there)
    if (place := first_mismatch(found, expected, 1e-4)) is None:
        return
    plain = q.double() @ k.double().mT / 8**0.5
    reject_known(
        found,
        {
            "no scale": (expected * 8**0.5, "The rotation is right. The scores are not divided."),
            "no rotation": (plain, "These are scores without any rotation."),
            "only one is rotated": (
                _rotate(q, here) @ k.double().mT / 8**0.5,
                "Queries are rotated and keys are not, so the score depends on the position of the query alone.",
            ),
        },
    )
    raise WrongAnswer(
        "wrong scores", f"Score {format_index(place)} is {float(found[place]):.4f}. Use your own `rotate` for both."
    )
