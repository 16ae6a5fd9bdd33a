"""Trains a small decoder to predict the next token.

In: a decoder, and a function that draws rows of token ids. Out: the trained decoder.
Does not know: where the rows come from. Memory: one batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attnscope.models import Decoder

LEARNING_RATE = 5e-3


def train_decoder(model: Decoder, draw_rows: Callable[[], Tensor], steps: int) -> Decoder:
    """Train a decoder with AdamW and one cycle of the learning rate, and return it in eval mode.

    Args:
        model: The decoder.
        draw_rows: Returns the token ids of one batch, (rows, tokens).
        steps: The number of batches.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        rows = draw_rows()
        loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()
