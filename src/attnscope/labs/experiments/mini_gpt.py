"""A small GPT learns to write

This lab shows you what a character-level GPT learns from one text in a minute, and how its heads change.

A GPT is trained only to predict the next character. To do that well, it has to learn letters, words, spelling and
layout. This one has 0.8 million parameters and is trained on the Python language reference.

Its loss is the mean negative log-likelihood on held-out text, in nats per character. Tables of n-gram counts give the
scale.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from attnscope.figures import head_grid, lines
from attnscope.heads import HeadsOverTraining, read_over_training
from attnscope.heads.over_training import METRICS
from attnscope.labs import Lab, reference_text
from attnscope.models import CharacterTokenizer, Decoder
from attnscope.models.checked_log import read_log
from attnscope.recording import read
from attnscope.train import char_gpt, train

TRAINING_SHARE = 0.9  # of the text; the rest is for validation
SMOOTHING = 0.1  # added to every count
MAX_CONTEXT = 5


@cache
def ngram_loss(context: int) -> float:
    """Return the loss of a table of n-gram counts with this context length, in nats per character."""
    text = reference_text()
    cut = int(len(text) * TRAINING_SHARE)
    contexts = Counter(text[at : at + context] for at in range(cut - context))
    longer = Counter(text[at : at + context + 1] for at in range(cut - context))
    characters, tests = len(set(text)), range(cut, len(text) - context)
    loss = 0.0
    for at in tests:
        seen, together = contexts[text[at : at + context]], longer[text[at : at + context + 1]]
        loss -= math.log((together + SMOOTHING) / (seen + SMOOTHING * characters))
    return loss / len(tests)


def n_gram_baselines(lab: Lab) -> None:
    """How well do n-gram counts predict characters?

    The counts come from nine tenths of the text; the last tenth is predicted. Without context, the table knows only
    that spaces and e are frequent. With one character, it knows that u follows q. With longer contexts, fewer n-grams
    of the held-out text are in the table, and from some length on the loss rises.
    """
    rows = [(before, ngram_loss(before)) for before in range(MAX_CONTEXT + 1)]
    lab.table(
        "Loss of n-gram counts",
        ("context length", "nats per character"),
        [("uniform distribution", math.log(len(set(reference_text())))), *rows],
    )


class MiniGPT(NamedTuple):
    """A trained model, and its history."""

    model: Decoder
    tokenizer: CharacterTokenizer
    history: HeadsOverTraining
    samples: dict[int, str]
    """Generated text, by step."""


@cache
def train_mini_gpt(seed: int, steps: int, batch: int) -> MiniGPT:
    """Train the recipe `char-gpt` on the reference text."""
    with TemporaryDirectory() as folder:
        source, run = Path(folder, "reference.txt"), Path(folder, "run")
        source.write_text(reference_text(), encoding="utf-8", newline="")
        every = steps // 10
        recipe = char_gpt(
            [source],
            steps=steps,
            batch_size=batch,
            seed=seed,
            evaluate_every=every,
            evaluate_sequences=64,
            heads_every=every,
            sample_every=steps,
            checkpoint_every=0,
        )
        trained = train(recipe, run, progress=False)
        assert isinstance(trained.model, Decoder)
        metrics = read_log(run / METRICS, advice="run the lab again")
        samples = {line["step"]: line["sample"] for _, line in metrics if "sample" in line}
        characters = CharacterTokenizer(sorted(set(reference_text())))
        return MiniGPT(trained.model, characters, read_over_training(run), samples)


def mini_gpt_of(lab: Lab) -> MiniGPT:
    """Return the model for the size of this run."""
    return train_mini_gpt(lab.seed, lab.choose(small=200, full=1_500), lab.choose(small=16, full=32))


def training(lab: Lab) -> None:
    """The model has four layers of four heads, a hidden size of 128, and a context length of 128 characters.

    Compare its loss with those of the tables. It soon falls below that of bigrams. The 200 steps of the small size do
    not quite reach the best table; the 1,500 steps of the full size do.
    """
    lab.step("training, about a minute at the small size")
    found = mini_gpt_of(lab)
    losses = found.history.validation_loss
    parameters = sum(parameter.numel() for parameter in found.model.parameters())
    best = min(range(MAX_CONTEXT + 1), key=ngram_loss)
    final = list(losses.values())[-1]
    lab.table(
        "Loss on held-out text",
        ("model", "nats per character"),
        [
            ("counts, no context", ngram_loss(0)),
            ("counts, one character of context", ngram_loss(1)),
            (f"counts, {best} characters of context: the best table", ngram_loss(best)),
            (f"mini-GPT, {parameters:,} parameters, before training", losses[0]),
            (f"mini-GPT after {max(losses):,} steps", final),
        ],
    )
    samples = [(f"{step:,}", repr(text)) for step, text in found.samples.items()]
    lab.table("Generated text", ("step", "text"), samples)
    drawing = lines(
        list(losses),
        {"mini-GPT": list(losses.values())},
        xlabel="training step",
        ylabel="nats per character",
        title="A mini-GPT soon predicts better than bigram counts",
        reference_lines={f"counts, context {before}": ngram_loss(before) for before in (0, 1, best)},
    )
    lab.figure("loss", drawing, "Loss on held-out text, compared with tables of n-gram counts.")


def heads_before_and_after_training(lab: Lab) -> None:
    """Before training, all heads spread their attention evenly. Afterwards most of them attend to near characters.

    For spelling, the near context matters most: which word is being written, and how far. The table lists for each
    score the strongest head, from 0 (never) to 1 (all of its weight), before and after training: attention to the
    previous character (previous), to itself (self), to at most 8 characters away (local), to the first character
    (sink). The two probe scores use the repeated-token probe: attention to the token after the earlier copy
    (induction), or to the copy (duplicate). Evenness is 1 if all weights are equal.
    """
    found = mini_gpt_of(lab)
    first, last = found.history.tables[0], found.history.tables[-1]
    kinds = ("previous", "self", "local", "sink", "induction_probe", "duplicate_probe", "evenness")
    rows = []
    for kind in kinds:
        best = last.top(kind, 1)
        rows.append((kind, float(first[kind].max()), float(best[kind][0]), f"{best.layers[0]}, head {best.heads[0]}"))
    lab.table("The strongest head of each score", ("score", "before", "after", "head"), rows)
    text = reference_text()
    ids = torch.tensor(found.tokenizer.encode(text[int(len(text) * TRAINING_SHARE) :][:96]))
    trace = read(found.model, ids, found.tokenizer, progress=False)
    heads = [trace[name].batch(0).head(head) for name in trace for head in range(trace[name].shape[1])]
    labels = [f"layer {layer}, head {head}" for layer in range(len(trace)) for head in range(len(heads) // len(trace))]
    title = "Most heads of the mini-GPT attend to near characters"
    lab.figure(
        "heads",
        head_grid(heads, columns=4, labels=labels, scale="log", title=title),
        "Attention patterns of its 16 heads on 96 held-out characters.",
    )


PARTS = (n_gram_baselines, training, heads_before_and_after_training)
