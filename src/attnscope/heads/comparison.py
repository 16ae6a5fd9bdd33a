"""Heads that were found by their scores, put to the test: whether they are missed more than others of their layers.

In: a decoder, a text and some of its heads. Out: how much the loss of each token rises without them, and how much on
the average of random draws of as many other heads of the same layers.
Does not know: how heads were found. Memory: that of a pass.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError
from attnscope.heads.effects import predictions
from attnscope.heads.interventions import How, ablate
from attnscope.heads.table import HeadTable
from attnscope.recording.progress import Progress, report_progress


class Comparison(NamedTuple):
    """Losses and their rises of each token after the first, (tokens - 1,) each, in nats."""

    loss: Tensor
    """With all heads."""
    rise: Tensor
    """Without the chosen heads."""
    others: Tensor
    """(draws, tokens - 1): without as many others."""


def compare_with_others(
    model: nn.Module,
    ids: Tensor,
    chosen: HeadTable,
    among: HeadTable,
    *,
    how: How = "zero",
    draws: int = 10,
    seed: int = 0,
    progress: Progress | bool = True,
) -> Comparison:
    """Ablate the heads of `chosen`, and as often as `draws` says as many others of `among` from the same layers.

    `ids` (tokens,) is the text to predict.
    """
    if not len(chosen):
        raise SettingError("compare_with_others: no heads were chosen, so that there is nothing to compare")
    if ids.dim() != 1 or draws < 1:
        raise SettingError(
            f"compare_with_others: wants ids (tokens,) and a draw at least, got {tuple(ids.shape)} and draws={draws}"
        )
    pools, chance = _others(chosen, among), random.Random(seed)
    drawn = [
        {layer: chance.sample(pools[layer], len(heads)) for layer, heads in chosen.chosen.items()} for _ in range(draws)
    ]
    rounds, losses = [{}, chosen.chosen, *drawn], []
    with report_progress(progress, "switching heads off") as tell:
        for heads in rounds:
            with ablate(model, heads, how):
                losses.append(predictions(model, ids[None]).losses[0])
            tell(len(losses), len(rounds))
    loss, without, *others = losses
    return Comparison(loss, without - loss, torch.stack(others) - loss)


def _others(chosen: HeadTable, among: HeadTable) -> dict[str, list[int]]:
    """For each layer of the chosen heads, the heads that were not chosen."""
    everyone, taken = among.chosen, chosen.chosen
    missing = [layer for layer in taken if layer not in everyone]
    if missing:
        raise SettingError(
            f"compare_with_others: {missing[0]} is not in `among`, which should hold all heads of the model"
        )
    pools = {layer: [head for head in everyone[layer] if head not in taken[layer]] for layer in taken}
    few = [layer for layer, heads in taken.items() if len(pools[layer]) < len(heads)]
    if few:
        raise SettingError(
            f"compare_with_others: {len(taken[few[0]])} heads of {few[0]} were chosen, and only {len(pools[few[0]])} "
            "others are left to compare them with; choose fewer"
        )
    return pools
