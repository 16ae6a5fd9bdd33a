"""Read the heads of a layer

`weights` is (heads, n, n): the causal attention weights of one layer, rows are queries. `tokens` is a list of n token
ids. Write scores that are between 0 and 1, one per head, as tensors (heads,).

- `previous_score(weights)`: the mean weight on the token before, over all queries that have one.
- `duplicate_score(weights, tokens)`: for each query whose token occurred before, the *sum* of its weights on all
  earlier positions with the same token. Return the mean over these queries; 0 if there are none.
- `induction_score(weights, tokens)`: for each query whose token occurred before, the sum of its weights on the
  positions *after* these earlier positions. Return the mean over these queries; 0 if there are none.
- `name_heads(weights, tokens)`: a list with one name per head: "previous", "duplicate" or "induction", whichever has
  the highest score, or "other" if that score is below 0.4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope.labs.exercise import (
    Answer,
    WrongAnswer,
    expect_tensor,
    first_mismatch,
    reject_known,
    standard_normal,
)

STARTER = '''
import torch
from torch import Tensor


def previous_score(weights: Tensor) -> Tensor:
    """Return the mean weight on the token before, (heads,)."""
    raise NotImplementedError


def duplicate_score(weights: Tensor, tokens: list[int]) -> Tensor:
    """Return the mean weight on earlier copies, (heads,)."""
    raise NotImplementedError


def induction_score(weights: Tensor, tokens: list[int]) -> Tensor:
    """Return the mean weight on tokens after earlier copies, (heads,)."""
    raise NotImplementedError


def name_heads(weights: Tensor, tokens: list[int]) -> list[str]:
    """Return the name of each head."""
    raise NotImplementedError
'''

SOLUTION = """
import torch
from torch import Tensor


def previous_score(weights: Tensor) -> Tensor:
    return weights.diagonal(-1, 1, 2).mean(-1)


def copies(tokens: list[int]) -> Tensor:
    ids = torch.tensor(tokens)
    return (ids[:, None] == ids).tril(-1)


def mean_on(weights: Tensor, pairs: Tensor, queries: Tensor) -> Tensor:
    if not queries.any():
        return weights.new_zeros(len(weights))
    return (weights * pairs).sum(-1)[:, queries].mean(-1)


def duplicate_score(weights: Tensor, tokens: list[int]) -> Tensor:
    same = copies(tokens)
    return mean_on(weights, same, same.any(-1))


def induction_score(weights: Tensor, tokens: list[int]) -> Tensor:
    same = copies(tokens)
    return mean_on(weights, same.roll(1, dims=1), same.any(-1))


def name_heads(weights: Tensor, tokens: list[int]) -> list[str]:
    scores = torch.stack(
        [previous_score(weights), duplicate_score(weights, tokens), induction_score(weights, tokens)]
    )
    names = ("previous", "duplicate", "induction")
    return [names[best] if score >= 0.4 else "other" for score, best in zip(*scores.max(0), strict=True)]
"""

HINTS = (
    "The weights on the token before are on a diagonal just below the main one. How many entries has it?",
    "Make a boolean matrix of pairs (query, key) that count, from comparing the tokens with themselves. Multiply it "
    "with the weights and sum over keys.",
    "For induction the pairs are those of duplicates, moved by one key. Which queries count stays the same.",
)

AFTERWARDS = (
    "These are the scores behind `attnscope heads`. A high score describes a pattern; ablating the head shows "
    "whether the model uses it."
)

TOKENS = [5, 8, 2, 9, 5, 8, 7, 2, 9, 5, 1, 8]


def check(answer: Answer) -> None:
    """Scores of random heads, and of heads that do one thing; then texts without copies, and names."""
    weights = (
        (3 * standard_normal(4, 12, 12, seed=0)).masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf).softmax(-1)
    )
    _check_previous(answer.function("previous_score")(weights), weights)
    same = _same(TOKENS)
    for name, pairs in (("duplicate", same), ("induction", same.roll(1, 1))):
        score = answer.function(f"{name}_score")
        found = expect_tensor(score(weights, TOKENS), f"What `{name}_score` returns", (4,))
        _check_pairs(name, found, weights, pairs, same)
        nothing = expect_tensor(score(weights, list(range(12))), f"What `{name}_score` returns", (4,))
        if not torch.equal(nothing, torch.zeros(4)):
            raise WrongAnswer(
                "no copies",
                f"In a text without repeated tokens `{name}_score` returns {nothing.tolist()}. The mean over no "
                "queries is 0 / 0: what does the task say it should be?",
            )
    _check_names(answer.function("name_heads"))


def _same(tokens: list[int]) -> Tensor:
    ids = torch.tensor(tokens)
    return (ids[:, None] == ids).tril(-1)


def _check_previous(value: Any, weights: Tensor) -> None:
    found = expect_tensor(value, "What `previous_score` returns", (4,))
    diagonal = weights.diagonal(-1, 1, 2)
    if first_mismatch(found, diagonal.mean(-1), 1e-5) is None:
        return
    reject_known(
        found,
        {
            "the first query counts": (
                diagonal.sum(-1) / 12,
                "The sum is divided by all queries. Query 0 has no token before it.",
            ),
            "attention to itself": (
                weights.diagonal(0, 1, 2).mean(-1),
                "This is the mean weight of tokens on themselves.",
            ),
            "the wrong side": (
                weights.diagonal(1, 1, 2).mean(-1),
                "This is the weight on the next token, which is 0 in a causal model. Rows are queries.",
            ),
            "summed over heads": (
                diagonal.mean().expand(4),
                "All heads have the same score. Which dimension is averaged?",
            ),
        },
        1e-5,
    )
    raise WrongAnswer("wrong score", f"`previous_score` returns {found.tolist()}. Check head 0 entry by entry.")


def _check_pairs(name: str, found: Tensor, weights: Tensor, pairs: Tensor, same: Tensor) -> None:
    queries = same.any(-1)
    sums = (weights * pairs).sum(-1)
    if first_mismatch(found, sums[:, queries].mean(-1), 1e-5) is None:
        return
    both = torch.tensor(TOKENS)[:, None] == torch.tensor(TOKENS)
    latest = torch.zeros_like(weights[0])
    for query in queries.nonzero().flatten().tolist():
        latest[query, int(pairs[query].nonzero().max())] = 1
    reject_known(
        found,
        {
            "all queries count": (
                sums.mean(-1),
                f"`{name}_score`: the mean is over all queries. Only those whose token occurred before count.",
            ),
            "the token itself counts": (
                (weights * both).sum(-1)[:, queries].mean(-1),
                f"`{name}_score`: a token is not an earlier copy of itself.",
            ),
            "only the last copy": (
                (weights * latest).sum(-1)[:, queries].mean(-1),
                f"`{name}_score`: a token with two earlier copies counts only one of them. The task asks for their "
                "sum.",
            ),
            "a mean over pairs": (
                torch.stack([head[pairs].mean() for head in weights]),
                f"`{name}_score`: this is the mean weight of a pair. Sum over the keys of a query first.",
            ),
            "the token before a copy": (
                (weights * same.roll(-1, 1)).sum(-1)[:, queries].mean(-1),
                f"`{name}_score`: these are the weights on the tokens before earlier copies.",
            ),
            "the copy itself": (
                (weights * same).sum(-1)[:, queries].mean(-1),
                f"`{name}_score`: these are the weights on the earlier copies, not on what followed them.",
            ),
        },
        1e-5,
    )
    raise WrongAnswer(
        "wrong score",
        f"`{name}_score` returns {found.tolist()}. Take the last query, token {TOKENS[-1]}: which keys count for it?",
    )


def _check_names(name_heads: Any) -> None:
    same = _same(TOKENS)
    rows = same.any(-1, keepdim=True)
    first = torch.zeros(12, 12)
    first[:, 0] = 1

    def head(pairs: Tensor) -> Tensor:
        return torch.where(rows, pairs / pairs.sum(-1, keepdim=True).clamp(min=1), first)

    previous = torch.zeros(12, 12).diagonal_scatter(torch.ones(11), -1)
    previous[0, 0] = 1
    pure = torch.stack([head(same.roll(1, 1)), first, previous, head(same.float())])
    weak = 0.3 * pure[0] + 0.7 * first
    found = name_heads(torch.cat([pure, weak[None]]), TOKENS)
    wanted = ["induction", "other", "previous", "duplicate", "other"]
    if not isinstance(found, list) or [*map(str, found)] != wanted:
        raise WrongAnswer(
            "wrong names",
            "Five heads attend to: what followed a copy; the first token; the token before; copies; and mostly the "
            f"first token with a little induction. Your names are {found}.",
        )
