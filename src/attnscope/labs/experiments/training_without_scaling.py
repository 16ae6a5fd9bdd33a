"""Training without the scaling

This lab shows you what the division by sqrt(d_k) is worth in training: how much slower and worse the same model learns
without it.

The texts agree that it is essential, and none of them trains a model without it. [Vaswani et al.,
2017](https://arxiv.org/abs/1706.03762) do not report such a training either. They cite [Britz et al.,
2017](https://arxiv.org/abs/1703.03906), and suspect that large scores make the gradients of the softmax small.

Two initialisations are compared. That of `torch.nn.Linear` gives queries and keys a variance of 1/3 per component.
*Unit variance* gives them a variance of 1, which is the assumption of the derivation: scores then have a variance of
about d_k. Everything else is the same: data, order of the data, all other parameters, learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.figures import grouped_bars, lines
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.labs.next_character import num_characters, train_on_characters, unigram_loss
from attnscope.labs.statistics import mean_with_error

DIMENSIONS = (64, 128, 256, 512)
WIDTH = 64
DIGITS, LENGTH = 10, 12
CONTEXT = 64
MAX_STEPS = 400
"""Training to reverse sequences stops here at the latest."""
Initialisation = Literal["torch", "unit variance"]
INITIALISATIONS: tuple[Initialisation, ...] = ("torch", "unit variance")


class Head(nn.Module):
    """Attention with one head, whose scores are divided by sqrt(d_k) or not."""

    def __init__(self, d_k: int, *, divide: bool, initialisation: Initialisation):
        super().__init__()
        self.query, self.key = (nn.Linear(WIDTH, d_k, bias=False) for _ in range(2))
        self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.scale = d_k**-0.5 if divide else 1.0
        if initialisation == "unit variance":
            for layer in (self.query, self.key):
                nn.init.normal_(layer.weight, std=WIDTH**-0.5)

    def forward(self, x: Tensor, is_causal: bool) -> Tensor:
        heads = F.scaled_dot_product_attention(
            self.query(x), self.key(x), self.value(x), is_causal=is_causal, scale=self.scale
        )
        return self.output(heads)


class Transformer(nn.Module):
    """A small pre-norm transformer with learned positions and one head per layer."""

    def __init__(
        self,
        vocab_size: int,
        length: int,
        num_layers: int,
        d_k: int,
        *,
        divide: bool,
        initialisation: Initialisation,
        is_causal: bool,
    ):
        super().__init__()
        self.is_causal = is_causal
        self.embedding, self.positions = nn.Embedding(vocab_size, WIDTH), nn.Parameter(torch.randn(length, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(num_layers))
        self.heads = nn.ModuleList(Head(d_k, divide=divide, initialisation=initialisation) for _ in range(num_layers))
        self.feed_forward = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(num_layers)
        )
        self.logits = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocab_size))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for norm, head, feed_forward in zip(self.norms, self.heads, self.feed_forward, strict=True):
            x = x + head(norm(x), self.is_causal)
            x = x + feed_forward(x)
        return self.logits(x)

    @torch.no_grad()
    def first_scores(self, tokens: Tensor) -> Tensor:
        """Return the dot products q.k of the first layer, before any division."""
        x = self.norms[0](self.embedding(tokens) + self.positions[: tokens.shape[1]])
        head = self.heads[0]
        assert isinstance(head, Head)
        return head.query(x) @ head.key(x).mT


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Round tiny numbers to 0: saturated softmax produces many, and they are slow on a CPU."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class Reversal(NamedTuple):
    """Training to reverse sequences: the spread of q.k at the start, and when it succeeded."""

    deviation: float
    steps: int
    accuracy: float


@cache
def train_to_reverse(d_k: int, divide: bool, initialisation: Initialisation, seed: int) -> Reversal:
    """Train one layer until it reverses 99% of all digits, which is tested every ten steps."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(DIGITS, LENGTH, 1, d_k, divide=divide, initialisation=initialisation, is_causal=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    held_out = torch.randint(DIGITS, (500, LENGTH), generator=generator)
    deviation, accuracy, step = float(model.first_scores(held_out).std()), 0.0, 0
    with flush_denormals():
        for step in range(0, MAX_STEPS + 1, 10):
            with torch.no_grad():
                accuracy = float((model(held_out).argmax(-1) == held_out.flip(1)).float().mean())
            if accuracy >= 0.99 or step == MAX_STEPS:
                break
            for _ in range(10):
                rows = torch.randint(DIGITS, (64, LENGTH), generator=generator)
                update(model, optimizer, rows, rows.flip(1))
    return Reversal(deviation, step, accuracy)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor) -> None:
    """Take one step of training."""
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def reversing_a_sequence(lab: Lab) -> None:
    """One layer learns to reverse twelve digits, with one head of 64 to 512 dimensions. The table shows after how many
    steps of Adam 99% of the digits are right.

    With the division, every run succeeds in about 50 steps, with any d_k and either initialisation. Without it, runs
    differ: most succeed a little later, and some have one output left that stays wrong for hundreds of steps. There the
    softmax is saturated on a wrong key, its gradient is almost zero, and the digit is guessed. This is the problem that
    the texts describe. It affects single rows, not the training as a whole.
    """
    count = lab.choose(small=3, full=12)
    rows, curves = [], {f"{name}, {init}": [] for name in ("divided", "not divided") for init in INITIALISATIONS}
    runs: dict[bool, list[Reversal]] = {True: [], False: []}
    for d_k in DIMENSIONS:
        for initialisation in INITIALISATIONS:
            lab.step(f"d_k {d_k}, initialisation: {initialisation}")
            divided, plain = (
                [train_to_reverse(d_k, divide, initialisation, seed) for seed in lab.seeds(count)]
                for divide in (True, False)
            )
            runs[True] += divided
            runs[False] += plain
            spread = mean_with_error([one.deviation for one in plain]).value
            steps = [mean_with_error([one.steps for one in found]) for found in (divided, plain)]
            accuracy = min(one.accuracy for one in plain)
            rows.append((d_k, initialisation, spread, *map(str, steps), accuracy))
            for name, mean in zip(("divided", "not divided"), steps, strict=True):
                curves[f"{name}, {initialisation}"].append(mean.value)
    columns = (
        "d_k",
        "initialisation",
        "standard deviation of q.k at the start",
        "steps, divided",
        "steps, not divided",
        "smallest accuracy, not divided",
    )
    note = f"Means and standard errors over {count} seeds. A run ends at 99%, or after {MAX_STEPS} steps."
    lab.table("Steps until 99% of the digits are reversed", columns, rows, note=note)
    drawing = lines(
        DIMENSIONS,
        curves,
        xlabel="d_k",
        ylabel="steps until 99% are right",
        title="Without the division, some runs take far longer",
        log_x=True,
        log_y=True,
        dashed=[name for name in curves if name.startswith("not")],
    )
    lab.figure("reversal", drawing, f"Steps of training until a sequence is reversed, means over {count} seeds.")
    means = {divide: mean_with_error([one.steps for one in found]) for divide, found in runs.items()}
    slowest = max(one.steps for one in runs[True])
    worst = min(one.accuracy for one in runs[False])
    stuck = sum(one.accuracy < 0.99 for one in runs[False])
    lab.decide(
        "39a",
        Verdict.DOES_NOT_HOLD,
        f"Without the division, {len(runs[False]) - stuck} of {len(runs[False])} runs learn to reverse, and the others "
        f"reach {worst:.0%} or more in {MAX_STEPS} steps. They take {means[False]} steps on average, compared with "
        f"{means[True]} with the division: it makes training faster and more reliable.",
        Measurement(name="smallest accuracy without the division", value=worst, low=0.7),
        Measurement(
            name="mean steps without / with the division", value=means[False].value / means[True].value, low=1.3
        ),
        Measurement(name="most steps of a run with the division", value=slowest, high=150),
    )


@cache
def train_language_model(d_k: int, divide: bool, initialisation: Initialisation, steps: int, seed: int) -> float:
    """Train two layers to predict characters; return the loss on held-out text, in nats per character."""
    torch.manual_seed(seed)
    model = Transformer(num_characters(), CONTEXT, 2, d_k, divide=divide, initialisation=initialisation, is_causal=True)
    with flush_denormals():
        return train_on_characters(model, context=CONTEXT, steps=steps, rate=3e-3, seed=seed)


def predicting_characters(lab: Lab) -> None:
    """Two layers learn to predict the next character of the Python language reference, with one head of 64 or 512
    dimensions per layer. A model that learns nothing from context has the loss of character frequencies.
    """
    count, steps = lab.choose(small=3, full=8), lab.choose(small=120, full=1_500)
    rows, losses, bars = [], {}, {}
    for d_k in (64, 512):
        for initialisation in INITIALISATIONS:
            lab.step(f"d_k {d_k}, initialisation: {initialisation}")
            pairs = [
                [train_language_model(d_k, divide, initialisation, steps, seed) for divide in (True, False)]
                for seed in lab.seeds(count)
            ]
            divided, plain = (mean_with_error(column) for column in zip(*pairs, strict=True))
            difference = mean_with_error([without - with_it for with_it, without in pairs])
            losses[d_k, initialisation] = plain, difference
            rows.append((d_k, initialisation, str(divided), str(plain), str(difference)))
            bars[f"{d_k}, {initialisation}"] = {"divided": divided.value, "not divided": plain.value}
    note = f"Means and standard errors over {count} seeds, nats per character, after {steps} steps."
    columns = ("d_k", "initialisation", "divided", "not divided", "difference")
    lab.table(
        "Loss on held-out text",
        columns,
        [*rows, ("-", "character frequencies", f"{unigram_loss():.2f}", "", "")],
        note=note,
    )
    drawing = grouped_bars(
        bars,
        ylabel="loss (nats per character)",
        title="Without the division, the loss is higher after the same steps",
        reference_lines={"character frequencies": unigram_loss()},
    )
    lab.figure("language_model", drawing, "Loss on held-out text by d_k and initialisation.")
    smallest, largest = (pick(one.value for _, one in losses.values()) for pick in (min, max))
    least_certain = min(one.value / one.error for _, one in losses.values())
    worst = max(plain.value for plain, _ in losses.values())
    lab.decide(
        "39b",
        Verdict.HOLDS,
        f"After {steps} steps, the loss is higher by {smallest:.2f} to {largest:.2f} nats per character in all four "
        f"cases, {least_certain:.1f} standard errors or more. But the worst model is {unigram_loss() - worst:.2f} nats "
        "below character frequencies. (The text says that the paper of 2017 reports this; the paper cites others.)",
        Measurement(name="smallest difference in nats", value=smallest, low=0.02),
        Measurement(name="largest difference in nats", value=largest, high=0.2),
        Measurement(name="smallest difference in standard errors", value=least_certain, low=3),
        Measurement(name="character frequencies minus the worst loss", value=unigram_loss() - worst, low=0.5),
    )


PARTS = (reversing_a_sequence, predicting_characters)
