"""Build a GPT and its sampling loop

- `build(vocabulary, context)`: a new, untrained GPT, a `torch.nn.Module`. It takes ids (batch, n) with n up to
  `context` and returns logits (batch, n, vocabulary). Logits at position i depend on tokens 0 to i, and on their order.
  A hidden size of 32 and two blocks are enough. Modules of torch are allowed. No dropout.
- `next_token_loss(logits, ids)`: logits (batch, n, vocabulary) of the ids (batch, n) that went in. Return the mean
  cross-entropy, a scalar tensor, of all predictions whose answer is in `ids`.
- `probabilities(logits, temperature, top_k, top_p)`: for logits (vocabulary,), the distribution to sample from. Divide
  by the temperature and take the softmax. Keep the `top_k` most probable tokens (all if None) and renormalise. Of
  those, keep the smallest number of most probable tokens whose probabilities sum to at least `top_p`, and renormalise.
- `generate(model, ids, count, context, choose)`: `ids` is a list. `count` times: run the model on the last `context`
  ids at most, as a batch of one; call `choose(logits)` with the logits (vocabulary,) of the last position, which
  returns a token; append it. Return the whole list, and do not change the one you got.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnscope.labs.exercise import (
    Answer,
    WrongAnswer,
    expect_number,
    expect_tensor,
    first_mismatch,
    reject_known,
    standard_normal,
)

STARTER = '''
from collections.abc import Callable

import torch
from torch import Tensor, nn


def build(vocabulary: int, context: int) -> nn.Module:
    """Return a GPT: ids (batch, n) to logits (batch, n, vocabulary)."""
    raise NotImplementedError


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next tokens."""
    raise NotImplementedError


def probabilities(logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    """Return the distribution (vocabulary,) to sample from."""
    raise NotImplementedError


def generate(model: nn.Module, ids: list[int], count: int, context: int, choose: Callable[[Tensor], int]) -> list[int]:
    """Return ids with `count` new tokens at the end."""
    raise NotImplementedError
'''

SOLUTION = """
from collections.abc import Callable

import torch
from torch import Tensor, nn


class GPT(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int = 32):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(n))
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        for block in self.blocks:
            x = block(x, src_mask=future)
        return self.output(self.norm(x))


def build(vocabulary: int, context: int) -> nn.Module:
    return GPT(vocabulary, context)


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def probabilities(logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    ordered, tokens = (logits / temperature).softmax(-1).sort(descending=True)
    if top_k is not None:
        ordered = ordered * (torch.arange(len(ordered)) < top_k)
        ordered = ordered / ordered.sum()
    before = ordered.cumsum(-1) - ordered
    kept = ordered * (before < top_p)
    return torch.zeros_like(logits).scatter(0, tokens, kept / kept.sum())


@torch.no_grad()
def generate(model: nn.Module, ids: list[int], count: int, context: int, choose: Callable[[Tensor], int]) -> list[int]:
    ids = list(ids)
    for _ in range(count):
        logits = model(torch.tensor([ids[-context:]]))
        ids.append(choose(logits[0, -1]))
    return ids
"""

HINTS = (
    "A GPT is an embedding of tokens plus one of positions, blocks with a causal mask, a norm, and a linear layer. "
    "Change the last token of an input and compare logits: which of them may change?",
    "Logits at position i predict the token at i + 1. Which logits have no answer, and which token is no answer?",
    "Sort the probabilities. A token stays if those before it do not yet sum to top_p. Afterwards put the numbers "
    "back in the order of the vocabulary, with `scatter` or by sorting the order itself.",
)

AFTERWARDS = (
    "This is all of it: `attnscope train char-gpt` trains such a model, and `attnscope generate` runs such a loop."
)


def check(answer: Answer) -> None:
    """The model, the loss, the distribution, the loop."""
    _check_model(answer)
    _check_loss(answer.function("next_token_loss"))
    _check_probabilities(answer.function("probabilities"))
    _check_loop(answer.function("generate"))


def _check_model(answer: Answer) -> None:
    torch.manual_seed(0)
    model = answer.function("build")(11, 12)
    if not isinstance(model, nn.Module):
        raise WrongAnswer("not a module", f"`build`: expected a torch.nn.Module, got {type(model).__name__}.")
    model.eval()
    ids = torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(1))

    def run(ids: Tensor) -> Tensor:
        with answer.running("the model"), torch.no_grad():
            return expect_tensor(model(ids), "The logits", (*ids.shape, 11))

    logits = run(ids)
    changed = ids.clone()
    changed[:, 6:] = (changed[:, 6:] + 3) % 11
    if first_mismatch(run(changed)[:, :6], logits[:, :6], 1e-5) is not None:
        raise WrongAnswer(
            "the future leaks",
            "When only tokens from position 6 on change, logits before it change too. A model that sees the next token "
            "learns to copy it, and cannot write.",
        )
    if first_mismatch(run(changed)[:, 7:], logits[:, 7:], 1e-5) is None:
        raise WrongAnswer("the tokens are not used", "Changing tokens does not change any logits after them.")
    early = ids.clone()
    early[:, 0] = (early[:, 0] + 1) % 11
    if first_mismatch(run(early)[:, -1], logits[:, -1], 1e-6) is None:
        raise WrongAnswer(
            "the past is not used",
            "The logits at the last position do not depend on the first token. Which layer moves information between "
            "positions?",
        )
    swapped = ids.clone()
    swapped[:, [1, 4]] = ids[:, [4, 1]]
    swapped[:, [2, 3]] = ids[:, [3, 2]]
    if first_mismatch(run(swapped)[:, -1], logits[:, -1], 1e-5) is None:
        raise WrongAnswer(
            "no positions",
            "Earlier tokens in another order give the same logits at the last position. How does the model get to know "
            "where a token stands?",
        )
    run(ids[:1, :3])


def _check_loss(loss: Callable[..., Any]) -> None:
    logits, ids = standard_normal(2, 5, 7, seed=3), torch.tensor([[1, 4, 2, 6, 0], [3, 3, 5, 0, 1]])
    found = expect_number(loss(logits, ids), "The loss")
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").double()
    reject_known(
        torch.tensor(found),
        {
            "the answers are the inputs": (
                F.cross_entropy(logits.flatten(0, 1), ids.flatten()),
                "Logits at position i are compared with the token at i, which went in. What do they predict?",
            ),
            "shifted the wrong way": (
                F.cross_entropy(logits[:, 1:].flatten(0, 1), ids[:, :-1].flatten()),
                "Logits are compared with the token before them.",
            ),
            "a sum": (losses.sum(), "This is the sum over all predictions. The task asks for the mean."),
        },
    )
    if abs(found - float(losses.mean())) > 1e-4:
        raise WrongAnswer(
            "wrong loss", f"The loss is {found:.4f}. Print the loss of each position and compare one by hand."
        )


def _distribution(logits: Tensor, temperature: float, top_k: int | None, top_p: float, *, renormalise: bool) -> Tensor:
    weights = (logits.double() / temperature).softmax(-1)
    order = weights.argsort(descending=True)
    kept = torch.zeros_like(weights, dtype=torch.bool)
    chosen = order[: top_k or len(order)]
    scale = float(weights[chosen].sum()) if renormalise else 1.0
    total = 0.0
    for token in chosen.tolist():
        kept[token] = True
        total += float(weights[token]) / scale
        if total >= top_p:
            break
    return weights * kept / (weights * kept).sum()


def _check_probabilities(probabilities: Callable[..., Any]) -> None:
    logits = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0, -3.0])
    cases: tuple[tuple[float, int | None, float], ...] = (
        (1.0, None, 1.0),
        (0.5, None, 1.0),
        (1.0, 3, 1.0),
        (1.0, None, 0.7),
        (1.0, None, 0.1),
        (2.0, 4, 0.8),
        (1.0, 2, 0.72),
    )
    for temperature, top_k, top_p in cases:
        case = f"With temperature {temperature:g}, top_k {top_k} and top_p {top_p:g}"
        found = expect_tensor(probabilities(logits, temperature, top_k, top_p), "The distribution", (6,))
        expected = _distribution(logits, temperature, top_k, top_p, renormalise=True)
        if first_mismatch(found, expected, 1e-4) is None:
            continue
        shown = [round(float(value), 4) for value in found]
        reject_known(
            found,
            {
                "not renormalised": (
                    (logits.double() / temperature).softmax(-1) * (expected > 0),
                    f"{case}, the right tokens are kept, and their probabilities {shown} do not sum to 1.",
                ),
                "temperature the wrong way": (
                    _distribution(logits, 1 / temperature, top_k, top_p, renormalise=True),
                    f"{case}, this is the distribution at the inverse temperature. Does a low one make it sharper?",
                ),
                "top_k is not renormalised before top_p": (
                    _distribution(logits, temperature, top_k, top_p, renormalise=False),
                    f"{case}, top_p is compared with sums of the whole distribution, not of the {top_k} kept tokens.",
                ),
                "sorted": (
                    expected.sort(descending=True).values,
                    f"{case}, the probabilities are right and sorted. Token 1 has the largest logit: where should it "
                    "be?",
                ),
            },
        )
        if found.double().sum().sub(1).abs() < 1e-4 and int((found > 0).sum()) != int((expected > 0).sum()):
            raise WrongAnswer(
                "too many or too few tokens",
                f"{case}, {int((found > 0).sum())} tokens are kept: {shown}. How many does it take to reach top_p, "
                "and is the one that crosses it kept?",
            )
        raise WrongAnswer("wrong distribution", f"{case}, the distribution is {shown}.")


class _Recorder(nn.Module):
    """Predicts the sum of its inputs modulo 10, and remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[list[int]] = []

    def forward(self, ids: Tensor) -> Tensor:
        self.given.append(ids[0].tolist())
        return F.one_hot(ids.cumsum(-1) % 10, 10).float()


def _check_loop(generate: Callable[..., Any]) -> None:
    model, prompt = _Recorder(), [1, 2]
    found = generate(model, prompt, 6, 4, lambda logits: int(logits.argmax()))
    if prompt != [1, 2]:
        raise WrongAnswer("the prompt is changed", "The list of the caller got longer. Copy it first.")
    if not isinstance(found, list) or len(found) != 8:
        got = f"{len(found)} ids" if isinstance(found, list) else type(found).__name__
        raise WrongAnswer("wrong length", f"For 2 ids and a count of 6: expected a list of 8 ids, got {got}.")
    longest = max(map(len, model.given))
    if longest > 4:
        raise WrongAnswer("the context is exceeded", f"With a context of 4 the model was given {longest} ids.")
    expected = [1, 2]
    for _ in range(6):
        expected.append(sum(expected[-4:]) % 10)
    if found != expected:
        raise WrongAnswer(
            "wrong tokens",
            f"A model that predicts the sum of its inputs modulo 10 wrote {found}. It was given {model.given[:4]}. "
            "Are these always the latest ids, and do you take the logits of the last position?",
        )
