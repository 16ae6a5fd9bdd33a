"""Training without parts of the block

This lab shows you what residual connections, norms and feed-forward networks are worth in training, by training the
same model without them.

A pre-norm block adds attention of the normalised input to its input, and then a feed-forward network in the same way.
Each variant leaves out one of these parts, or two. All are trained to predict the next character, on the same batches
of the Python language reference. A model that learns nothing from context has the loss of character frequencies.

A part that is left out may need another learning rate, so each variant is trained with two, and the better one
counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope import Causal
from attnscope.figures import grouped_bars
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.labs.next_character import num_characters, train_on_characters, unigram_loss
from attnscope.labs.statistics import Mean, mean_with_error
from attnscope.models import FeedForward, MultiHeadAttention

WIDTH, HEADS, CONTEXT = 64, 4, 32
LEARNING_RATES = (1e-3, 3e-3)


class Parts(NamedTuple):
    """Which parts a block has."""

    residual: bool = True
    norm: bool = True
    feed_forward: bool = True


VARIANTS = {
    "all parts": Parts(),
    "no residual": Parts(residual=False),
    "no norm": Parts(norm=False),
    "neither": Parts(residual=False, norm=False),
    "no feed-forward": Parts(feed_forward=False),
}


class PartialBlock(nn.Module):
    """A causal pre-norm block without some of its parts."""

    def __init__(self, parts: Parts):
        super().__init__()
        self.residual = parts.residual
        sublayers: list[Callable[[], nn.Module]] = [lambda: MultiHeadAttention(hidden_size=WIDTH, num_heads=HEADS)]
        if parts.feed_forward:
            sublayers.append(lambda: FeedForward(hidden_size=WIDTH, intermediate_size=4 * WIDTH))
        self.sublayers = nn.ModuleList(make() for make in sublayers)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) if parts.norm else nn.Identity() for _ in sublayers)

    def forward(self, x: Tensor) -> Tensor:
        for norm, sublayer in zip(self.norms, self.sublayers, strict=True):
            inputs = norm(x)
            is_attention = isinstance(sublayer, MultiHeadAttention)
            change = sublayer(inputs, mask=Causal()) if is_attention else sublayer(inputs)
            x = x + change if self.residual else change
        return x


class PartialTransformer(nn.Module):
    """A stack of such blocks between embeddings and logits."""

    def __init__(self, vocab_size: int, length: int, num_layers: int, parts: Parts):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocab_size, WIDTH), nn.Parameter(torch.randn(length, WIDTH))
        self.blocks = nn.Sequential(*(PartialBlock(parts) for _ in range(num_layers)))
        self.logits = nn.Sequential(nn.LayerNorm(WIDTH) if parts.norm else nn.Identity(), nn.Linear(WIDTH, vocab_size))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.blocks(self.embedding(tokens) + self.positions[: tokens.shape[1]]))


@cache
def train_variant(variant: str, num_layers: int, rate: float, steps: int, seed: int) -> float:
    """Train a variant to predict characters; return its loss on held-out text, in nats per character."""
    torch.manual_seed(seed)
    model = PartialTransformer(num_characters(), CONTEXT, num_layers, VARIANTS[variant])
    return train_on_characters(model, context=CONTEXT, steps=steps, rate=rate, seed=seed)


def losses_at_depth(lab: Lab, num_layers: int, steps: int) -> tuple[dict[str, float], dict[str, Mean]]:
    """Return for each variant its best learning rate, chosen with a seed of its own, and its loss with other seeds."""
    rates, losses = {}, {}
    chosen_with, *seeds = lab.seeds(lab.choose(small=3, full=9))
    for variant in VARIANTS:
        lab.step(f"{num_layers} layers, {variant}")
        rates[variant] = min(
            LEARNING_RATES, key=lambda rate: train_variant(variant, num_layers, rate, steps, chosen_with)
        )
        losses[variant] = mean_with_error(
            [train_variant(variant, num_layers, rates[variant], steps, seed) for seed in seeds]
        )
    return rates, losses


def shallow_and_deep_stacks(lab: Lab) -> None:
    """Five variants are trained with two layers and with eight. The learning rate of each is the better of two.

    Without residual connections, eight layers learn nothing but character frequencies, whatever the norms: each block
    has to pass on all information about a token by itself, and attention averages it away. With residual connections
    and without norms, eight layers train at least as well in this short training. The norms matter in longer training
    of deeper stacks, which is not tested here ([Xiong et al., 2020](https://arxiv.org/abs/2002.04745)).

    A share of what is learned is relative to eight layers with all parts: 0 is the loss of character frequencies, 1
    that of the full model.
    """
    steps = lab.choose(small=100, full=1_500)
    losses, rows = {}, []
    for num_layers in (2, 8):
        rates, losses[num_layers] = losses_at_depth(lab, num_layers, steps)
        rows += [(variant, num_layers, rates[variant], *losses[num_layers][variant]) for variant in VARIANTS]
    columns = ("variant", "layers", "best learning rate", "loss, nats per character", "standard error")
    note = f"After {steps} steps. Character frequencies have a loss of {unigram_loss():.2f}."
    lab.table("Loss on held-out text", columns, rows, note=note)
    drawing = grouped_bars(
        {name: {f"{n} layers": losses[n][name].value for n in losses} for name in VARIANTS},
        ylabel="loss (nats per character)",
        title="Without residual connections, eight layers do not train",
        reference_lines={"character frequencies": unigram_loss()},
    )
    lab.figure("variants", drawing, "Loss on held-out text of models without some parts.")
    shallow, deep = losses[2], losses[8]
    full = deep["all parts"].value

    def learned(loss: Mean) -> float:
        """Return how much of what the full model learns from context a variant learns too."""
        return (unigram_loss() - loss.value) / (unigram_loss() - full)

    share = {name: learned(deep[name]) for name in VARIANTS}
    few = {name: learned(shallow[name]) for name in VARIANTS}
    lab.decide(
        "40a",
        Verdict.HOLDS_WHEN,
        f"Without both, eight layers have a loss of {deep['neither']}, and character frequencies {unigram_loss():.2f}: "
        f"nothing is learned from context. But without norms alone the loss is {deep['no norm']}, and with all parts "
        f"{deep['all parts']}.",
        Measurement(name="share learned by eight layers without both", value=share["neither"], high=0.15),
        Measurement(name="share learned by two layers without both", value=few["neither"], low=0.15),
        Measurement(name="share learned by eight layers without norms", value=share["no norm"], low=0.9),
        condition="residual connections are missing; at this depth, norms are not needed",
    )
    lab.decide(
        "40b",
        Verdict.HOLDS,
        f"Without residual connections, eight layers have a loss of {deep['no residual']}, which is that of character "
        f"frequencies, though they have norms. Two layers learn {few['no residual']:.0%} of what eight layers with all "
        "parts learn from context.",
        Measurement(name="share learned by eight layers without residuals", value=share["no residual"], high=0.15),
        Measurement(name="share learned by two layers without residuals", value=few["no residual"], low=0.25),
    )


MODULUS, SUM_LENGTH = 7, 16


class AdditiveModel(nn.Module):
    """The most that weighted averages with fixed weights can compute: a sum of terms, one per token."""

    def __init__(self):
        super().__init__()
        self.own, self.previous = (nn.Embedding(MODULUS, MODULUS) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.own(tokens) + self.previous(tokens.roll(1, dims=1))


SUM_MODELS: dict[str, Callable[[], nn.Module]] = {
    "fixed weights": AdditiveModel,
    "attention only, 2 layers": lambda: PartialTransformer(MODULUS, SUM_LENGTH, 2, Parts(feed_forward=False)),
    "attention and feed-forward, 2 layers": lambda: PartialTransformer(MODULUS, SUM_LENGTH, 2, Parts()),
}


@cache
def sum_accuracy(name: str, steps: int, seed: int) -> float:
    """Train a model to add each token and the one before it modulo 7; return its accuracy."""
    torch.manual_seed(seed)
    model = SUM_MODELS[name]()
    rate = 3e-2 if name == "fixed weights" else 3e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)

    def batch(count: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(MODULUS, (count, SUM_LENGTH))
        return tokens, ((tokens + tokens.roll(1, dims=1)) % MODULUS)[:, 1:]

    for _ in range(steps):
        tokens, target = batch(64)
        loss = F.cross_entropy(model(tokens)[:, 1:].flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    tokens, target = batch(1_000)
    with torch.no_grad():
        return float((model(tokens)[:, 1:].argmax(-1) == target).float().mean())


def attention_without_feed_forward(lab: Lab) -> None:
    """Is attention without feed-forward networks only a stack of weighted averages? With *fixed* weights it would be:
    an average of averages is an average, and the output is a sum of one term per token. Adding two digits modulo 7
    cannot be done by such a sum: each token alone says nothing about the result, so the best sum guesses.

    But the weights depend on the tokens, and so does the norm. Both are nonlinear: a score multiplies a function of one
    token by a function of another. So a model without feed-forward networks can learn such a function.
    """
    steps, count = lab.choose(small=400, full=2_000), lab.choose(small=3, full=8)
    found = {}
    for name in SUM_MODELS:
        lab.step(name)
        found[name] = mean_with_error([sum_accuracy(name, steps, seed) for seed in lab.seeds(count)])
    columns = ("model", "accuracy", "standard error")
    note = f"{count} seeds, {steps} steps. Chance is {1 / MODULUS:.2f}."
    lab.table(
        "Adding each token and the previous one modulo 7", columns, [(n, *m) for n, m in found.items()], note=note
    )
    fixed, attention, both = (mean.value for mean in found.values())
    lab.decide(
        "40c",
        Verdict.HOLDS_WHEN,
        f"Fixed weights reach {fixed:.0%}, attention without feed-forward networks {attention:.0%}, and with them "
        f"{both:.0%}: the weights themselves are nonlinear. Feed-forward networks still help with text, as the losses "
        "of the lab show.",
        Measurement(name="accuracy with fixed weights", value=fixed, high=0.35),
        Measurement(name="accuracy of attention only", value=attention, low=0.9),
        Measurement(name="accuracy with feed-forward networks", value=both, low=0.99),
        condition="the attention weights do not depend on the tokens",
    )


PARTS = (shallow_and_deep_stacks, attention_without_feed_forward)
