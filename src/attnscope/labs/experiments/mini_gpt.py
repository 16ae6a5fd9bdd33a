"""What does a small GPT learn from a text in a minute?

A GPT is trained to say which character comes next, and nothing else. To do that well it has to find out about letters,
words, spelling and layout on its own. This one has 0.8 million weights and reads the reference of the Python language.

Its loss is measured in nats a character: how surprised it is, on the average, by the characters of a text that it has
not learned from. What the number means shows beside what counting reaches.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from attnscope.figures import head_grid, lines
from attnscope.heads import HeadsOverTraining, read_over_training
from attnscope.labs import Lab, reference_text
from attnscope.models import CharacterTokenizer, Decoder
from attnscope.recording import read
from attnscope.train import char_gpt, train

LEARNED = 0.9  # of the text; the rest is for validation
UNSEEN = 0.1  # how often each character counts as seen after every context, so that none is impossible
LONGEST = 5


@cache
def counting_loss(before: int) -> float:
    """The loss of a table of what follows each stretch of so many characters, in nats a character."""
    text = reference_text()
    cut = int(len(text) * LEARNED)
    contexts = Counter(text[at : at + before] for at in range(cut - before))
    longer = Counter(text[at : at + before + 1] for at in range(cut - before))
    characters, tests = len(set(text)), range(cut, len(text) - before)
    surprise = 0.0
    for at in tests:
        seen, together = contexts[text[at : at + before]], longer[text[at : at + before + 1]]
        surprise -= math.log((together + UNSEEN) / (seen + UNSEEN * characters))
    return surprise / len(tests)


def what_counting_reaches(lab: Lab) -> None:
    """Before anything is trained: how well does one predict characters by counting?

    Nine tenths of the text are counted, and the last tenth is predicted. With no character before, all one knows is
    that spaces and e are frequent. With one, that u follows q. With more, the table knows ever more of the text by
    heart, and ever fewer of the stretches of a new text are in it: from some length on, counting gets worse.
    """
    rows = [(before, counting_loss(before)) for before in range(LONGEST + 1)]
    lab.table(
        "Counting what follows",
        ("characters before", "nats a character"),
        [("no counting, all alike", math.log(len(set(reference_text())))), *rows],
    )


class MiniGPT(NamedTuple):
    """A trained model, and what was seen on the way."""

    model: Decoder
    tokenizer: CharacterTokenizer
    history: HeadsOverTraining
    samples: dict[int, str]
    """What it wrote, by step."""


@cache
def mini_gpt(seed: int, steps: int, batch: int) -> MiniGPT:
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
        metrics = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        samples = {line["step"]: line["sample"] for line in metrics if "sample" in line}
        characters = CharacterTokenizer(sorted(set(reference_text())))
        return MiniGPT(trained.model, characters, read_over_training(run), samples)


def mini_gpt_of(lab: Lab) -> MiniGPT:
    """The model of this run's size."""
    return mini_gpt(lab.seed, lab.choose(small=200, full=1_500), lab.choose(small=16, full=32))


def learning_to_write(lab: Lab) -> None:
    """Four layers of four heads, 128 numbers a token, and rows of 128 characters.

    Each step shows the model some rows and moves all weights a little, so that each next character would have
    surprised it less. Where its loss falls below that of a table, it predicts better than the table does. The table of
    one character before is soon passed; the 200 steps of the small size do not quite reach the best of the tables, the
    1,500 of the full size do.
    """
    lab.step("training, about a minute at the small size")
    found = mini_gpt_of(lab)
    losses = found.history.validation_loss
    weights = sum(parameter.numel() for parameter in found.model.parameters())
    best = min(range(LONGEST + 1), key=counting_loss)
    final = list(losses.values())[-1]
    lab.table(
        "Loss on text that was not learned from",
        ("what predicts", "nats a character"),
        [
            ("counting, nothing before", counting_loss(0)),
            ("counting, one character before", counting_loss(1)),
            (f"counting, {best} before: the best table", counting_loss(best)),
            (f"mini-GPT, {weights:,} weights, before training", losses[0]),
            (f"mini-GPT after {max(losses):,} steps", final),
        ],
    )
    samples = [(f"{step:,}", repr(text)) for step, text in found.samples.items()]
    lab.table("What it writes", ("after step", "text"), samples)
    drawing = lines(
        list(losses),
        {"mini-GPT": list(losses.values())},
        xlabel="training step",
        ylabel="nats a character",
        title="A mini-GPT soon knows more than a table of pairs",
        reference_lines={f"counting, {before} before": counting_loss(before) for before in (0, 1, best)},
    )
    lab.figure("loss", drawing, "Loss on text that was not learned from, beside what tables of counts reach on it.")


def what_its_heads_have_learned(lab: Lab) -> None:
    """Before training, all heads spread their weight evenly. Afterwards most of them look at near characters.

    For letters, the near past is what matters: which word is being written, and how far it has come. The table names
    for each kind the strongest head, from 0 (never) to 1 (all of its weight), before and after training: on the
    character before (previous), on itself (self), at most 8 away (local), on the first one of all (sink). The two
    probes are random characters that come twice: does it look behind the earlier copy (induction) or at it (duplicate)?
    Evenness is 1 where all weights are the same.
    """
    found = mini_gpt_of(lab)
    first, last = found.history.tables[0], found.history.tables[-1]
    kinds = ("previous", "self", "local", "sink", "induction_probe", "duplicate_probe", "evenness")
    rows = []
    for kind in kinds:
        best = last.top(kind, 1)
        rows.append((kind, float(first[kind].max()), float(best[kind][0]), f"{best.layers[0]}, head {best.heads[0]}"))
    lab.table("The strongest head of each kind", ("score", "before", "after", "which"), rows)
    text = reference_text()
    ids = torch.tensor(found.tokenizer.encode(text[int(len(text) * LEARNED) :][:96]))
    trace = read(found.model, ids, found.tokenizer, progress=False)
    heads = [trace[name].batch(0).head(head) for name in trace for head in range(trace[name].shape[1])]
    labels = [f"layer {layer}, head {head}" for layer in range(len(trace)) for head in range(len(heads) // len(trace))]
    title = "Most heads of the mini-GPT look at near characters"
    lab.figure(
        "heads",
        head_grid(heads, columns=4, labels=labels, scale="log", title=title),
        "Its 16 heads on 96 characters that were not learned from: a row is a character, and shows where it looks.",
    )


PARTS = (what_counting_reaches, learning_to_write, what_its_heads_have_learned)
