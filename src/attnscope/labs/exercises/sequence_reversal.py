"""Train one attention layer to reverse a sequence

The model reads `length` tokens at once and predicts for each position the token at the mirrored position: for the
first position the last token, for the second the last but one. Without position information no training helps; with it,
training takes seconds.

- `best_without_positions(length)`: the largest accuracy, on average, that a model without positions can reach, however
  long it is trained. Sequences consist of `length` different tokens, with all orders equally likely. Such a model gives
  a token the same answer at every position (the exercise `permutation_equivariance` shows why), so it can only predict,
  for each token, the one that is most often opposite.
- `build(vocabulary, length)`: a new, untrained model, a `torch.nn.Module`. It takes ids of shape `(batch, length)` and
  returns logits of shape `(batch, length, vocabulary)`. It contains a token embedding, something for positions, one
  layer of self-attention, and an output layer. A hidden size of 32 is enough.

The check trains your model: Adam with learning rate 0.01, cross-entropy, batches of 64 random sequences of 8 out of 10
tokens, at most 1,000 steps. Its accuracy on new sequences should then be at least 99%.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.labs.exercise import Answer, WrongAnswer, expect_number, expect_tensor

STARTER = '''
import torch
from torch import Tensor, nn


def best_without_positions(length: int) -> float:
    """The largest share of places that a model without positions can get right, for `length` different tokens."""
    raise NotImplementedError


def build(vocabulary: int, length: int) -> nn.Module:
    """An untrained model: ids (batch, length) to scores (batch, length, vocabulary)."""
    raise NotImplementedError
'''

SOLUTION = """
import torch
from torch import nn


def best_without_positions(length):
    return 1 / max(length - 1, 1) if length % 2 == 0 else 1 / length


class Model(nn.Module):
    def __init__(self, vocabulary, length, width=32):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        x, _ = self.attention(x, x, x)
        return self.output(x)


def build(vocabulary, length):
    return Model(vocabulary, length)
"""

HINTS = (
    "For the bound, write down all orders of 3 tokens, and then of 4. Take one token and count which tokens are "
    "opposite. Is there one that never is, and does that depend on whether the length is even?",
    "A position has to attend to the mirrored position. So its query must contain its position, and the keys must "
    "contain theirs: add positions before queries and keys are computed.",
    "Give each position its own row in a learned table, like each token. If you use the attention layer of torch, "
    "check the order of the dimensions of its input. A single number that grows with the position is not enough: "
    "scores would only rise or fall along the sequence.",
)

AFTERWARDS = "Nothing changed except that each row contains its position: that is the purpose of position embeddings."

VOCABULARY, LENGTH, BATCH = 10, 8, 64
STEPS, STEPS_BETWEEN, RATE = 1_000, 50, 0.01
ENOUGH = 0.99
SAME = 1e-5
"""Scores this near to each other, measured by the largest of them, are the same but for rounding."""


def bound(length: int) -> float:
    """The share that is possible without positions, counted over all orders.

    >>> round(bound(3), 4), bound(2)
    (0.3333, 1.0)
    """
    opposite = [Counter[int]() for _ in range(length)]
    orders = 0
    for order in permutations(range(length)):
        orders += 1
        for one, other in zip(order, reversed(order), strict=True):
            opposite[one][other] += 1
    return sum(max(counts.values()) for counts in opposite) / (orders * length)


def check(answer: Answer) -> None:
    """Find the first thing that is wrong with an answer."""
    best, build = answer.function("best_without_positions"), answer.function("build")
    for length in (3, 4, 5, 2, 6, 1):
        _check_bound(expect_number(best(length), f"best_without_positions({length})"), length)
    model: Any = build(VOCABULARY, LENGTH)
    if model is None:
        raise WrongAnswer("it returns nothing", "`build` returns None: is there a `return`?")
    if not isinstance(model, nn.Module):
        raise WrongAnswer(
            "not a model", f"`build` should return a torch.nn.Module; it returns a {type(model).__name__}."
        )
    _check_scores(answer, model)
    with _shaken(model):
        _check_sight(answer, model)
    _check_training(answer, model)


def _check_bound(given: float, length: int) -> None:
    said = f"best_without_positions({length}) is {given:.4g}."
    if abs(given - bound(length)) <= 1e-6:
        return
    if length % 2 == 0 and abs(given * length - 1) <= 1e-6:
        raise WrongAnswer(
            "guessing among too many",
            f"{said} That is a guess among all tokens of the text. The length is even and all tokens are different: "
            "can every one of them be opposite?",
        )
    if length % 2 == 1 and abs(given * (length - 1) - 1) <= 1e-6:
        raise WrongAnswer(
            "the middle is forgotten",
            f"{said} In a sequence of odd length, the middle position is opposite to itself. What does that do to the "
            "others?",
        )
    if given == 0:
        raise WrongAnswer(
            "never right by luck", f"{said} Even someone who guesses is right at times. How often, at best?"
        )
    raise WrongAnswer(
        "another bound",
        f"{said} Go through all orders of {length} tokens, by hand or in a loop. For each token, which token is "
        "opposite how often? The best is to name the most frequent one.",
    )


def _check_scores(answer: Answer, model: nn.Module) -> None:
    """The model gives scores of the right shape, the same ones each time, and has something to learn."""
    ids = torch.randint(VOCABULARY, (5, LENGTH), generator=torch.Generator().manual_seed(1))
    scores = _run(answer, model, ids)
    if not scores.is_floating_point() or not scores.isfinite().all():
        raise WrongAnswer(
            "no scores", f"The model gives {scores.dtype} with {int((~scores.isfinite()).sum())} NaN or infinite."
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WrongAnswer(
            "nothing to learn",
            "The model has no parameters: none of its tensors is an nn.Parameter or inside of a layer that is an "
            "attribute of it. A plain list hides layers from torch.",
        )
    if not torch.equal(scores, _run(answer, model, ids)):
        raise WrongAnswer(
            "another answer each time",
            "Asked twice about the same ids, in eval mode, the model gives different scores. Are layers or random "
            "numbers made anew in `forward`? Then nothing that is learned is kept.",
        )
    if (scores >= 0).all() and torch.allclose(scores.sum(-1), torch.ones(5, LENGTH), atol=1e-3):
        raise WrongAnswer(
            "probabilities instead of scores",
            "The scores of each place are positive and sum to 1: they went through a softmax. Cross-entropy takes one "
            "itself, and a second one flattens everything.",
        )
    right = (scores.argmax(-1) == ids.flip(1)).double().mean().item()
    if right > 0.9:
        raise WrongAnswer(
            "solved before training",
            f"The untrained model has {right:.0%} right: the reversal is written into it. Let attention learn it.",
        )


def _run(answer: Answer, model: nn.Module, ids: Tensor) -> Tensor:
    with answer.running(f"the model on ids of shape {tuple(ids.shape)}"), torch.no_grad():
        scores = model.eval()(ids)
    return expect_tensor(scores, "The output of the model", (*ids.shape, VOCABULARY))


@contextmanager
def _shaken(model: nn.Module) -> Iterator[None]:
    """The parameters are moved at random inside: what is still the same then, no training can tell apart."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    maker = torch.Generator().manual_seed(2)
    try:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=maker, dtype=parameter.dtype)
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(model.parameters(), before, strict=True):
                parameter.copy_(old)


def _check_sight(answer: Answer, model: nn.Module) -> None:
    """Each place can learn of every token, and of where it and the others stand."""
    ids = torch.arange(LENGTH)
    twin, swapped, other_end = ids.clone(), ids.clone(), ids.clone()
    twin[6], other_end[-1] = twin[1], VOCABULARY - 1
    swapped[[2, 5]] = swapped[[5, 2]]
    with_twin, with_swap, with_other_end, in_company = _run(answer, model, torch.stack([twin, swapped, other_end, ids]))
    plain = _run(answer, model, ids[None])[0]
    near = SAME * plain.abs().max().clamp(min=1).item()

    def same(one: Tensor, other: Tensor) -> bool:
        return bool((one - other).abs().max() <= near)

    if not (plain - in_company).abs().max() <= 100 * near:
        raise WrongAnswer(
            "sequences mixed",
            "The scores of a sequence change with the others in its batch. Which dimension does your attention take "
            "for the sequence, and which for the batch? And along which do positions count?",
        )
    if same(with_other_end[0], plain[0]):
        raise WrongAnswer(
            "the last token out of sight",
            "Another token in the last place changes nothing in the first place, whatever the parameters are. Yet it "
            "is the one to be named there. What keeps the first place from seeing it?",
        )
    others = [0, 1, 3, 4, 6, 7]
    if same(with_swap[others], plain[others]):
        if same(with_swap[[5, 2]], plain[[2, 5]]):
            raise WrongAnswer(
                "no positions",
                "When two tokens change places, their scores change places with them, and nothing else happens, "
                f"whatever the parameters are. Such a model gets {bound(LENGTH):.0%} at best.",
            )
        raise WrongAnswer(
            "attention sees no positions",
            "When the tokens in places 2 and 5 change places, none of the other places notices, whatever the "
            "parameters are. Positions are in the model, but where do they enter? Attention chooses by queries and "
            "keys.",
        )
    if same(with_twin[1], with_twin[6]):
        raise WrongAnswer(
            "a place does not know where it is",
            "With the same token in places 1 and 6, both get the same scores, whatever the parameters are. They should "
            "look at different places; what in their queries could tell them apart?",
        )


def _check_training(answer: Answer, model: nn.Module) -> None:
    maker = torch.Generator().manual_seed(3)
    unseen = torch.randint(VOCABULARY, (512, LENGTH), generator=maker)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    right = 0.0
    for step in range(1, STEPS + 1):
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=maker)
        with answer.running("a step of training"):
            loss = F.cross_entropy(model.train()(ids).flatten(0, 1), ids.flip(1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % STEPS_BETWEEN == 0:
            right = (_run(answer, model, unseen).argmax(-1) == unseen.flip(1)).double().mean().item()
            if right >= ENOUGH:
                return
    idle = [name for name, part in model.named_parameters() if part.requires_grad and part.grad is None]
    seen = f"No gradient ever came to {', '.join(f'`{name}`' for name in idle)}. " if idle else ""
    raise WrongAnswer(
        "it does not learn",
        f"After {STEPS:,} steps {right:.1%} of the places of unseen sequences are right. {seen}Positions are there, "
        "and each place can see every other. Does a query know its own place, or only how far others are? Can its "
        "score be largest at one key in the middle of the text? Is there enough width, and does every part get a "
        "gradient?",
    )
