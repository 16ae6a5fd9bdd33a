"""Trains small models to predict the next character of the reference text.

In: a model that maps token ids to logits. Out: its loss on held-out text, in nats per character.
Does not know: what the model is made of. Memory: one batch, and the text as ids.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.labs.corpus import reference_text

HELD_OUT = 16_000
"""Characters at the end of the text that are not trained on."""


@cache
def character_ids() -> Tensor:
    """Return the reference text as character ids."""
    text = reference_text()
    ids = {character: at for at, character in enumerate(sorted(set(text)))}
    return torch.tensor([ids[character] for character in text])


def num_characters() -> int:
    """Return the number of different characters."""
    return int(character_ids().max()) + 1


@cache
def unigram_loss() -> float:
    """Return the loss of character frequencies, which is that of a model that learns nothing from context.

    >>> 3.1 < unigram_loss() < 3.3
    True
    """
    ids = character_ids()
    counts = torch.bincount(ids[:-HELD_OUT], minlength=num_characters()).double() + 0.1
    return float(-(counts / counts.sum()).log()[ids[-HELD_OUT:]].mean())


def train_on_characters(model: nn.Module, *, context: int, steps: int, rate: float, seed: int) -> float:
    """Train a model on random passages with Adam and one cycle of the learning rate; return its held-out loss.

    Args:
        model: Maps ids (batch, context) to logits (batch, context, num_characters()).
        context: Characters per passage.
        steps: Steps of training, of 16 passages each.
        rate: The largest learning rate.
        seed: The seed of the passages.
    """
    ids, generator = character_ids(), torch.Generator().manual_seed(seed)
    training, held_out = ids[:-HELD_OUT], ids[-HELD_OUT:]
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        starts = torch.randint(len(training) - context, (16, 1), generator=generator)
        rows = training[starts + torch.arange(context + 1)]
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    rows = held_out[torch.arange(0, HELD_OUT - context, context)[:, None] + torch.arange(context + 1)]
    with torch.no_grad():
        return float(F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()))
