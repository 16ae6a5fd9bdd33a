"""`compare_with_random_heads`: ablate selected heads, and as a baseline random other heads of the same layers.

In: a decoder, a text and a selection of heads. Out: the change in loss at each token without them, and without random
draws of as many other heads of the same layers.
Does not know: how heads were selected. Memory: that of a forward pass.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError
from attnscope.heads.effects import predict
from attnscope.heads.interventions import How, ablate
from attnscope.heads.table import HeadTable
from attnscope.progress import Progress, report_progress


class AblationComparison(NamedTuple):
    """Losses and their changes at each token after the first, in nats."""

    loss: Tensor
    """Of the intact model, (tokens - 1,)."""
    change: Tensor
    """Without the selected heads, (tokens - 1,)."""
    random_changes: Tensor
    """Without random other heads, (draws, tokens - 1)."""


def compare_with_random_heads(
    model: nn.Module,
    input_ids: Tensor,
    heads: HeadTable,
    candidates: HeadTable,
    *,
    how: How = "zero",
    num_draws: int = 10,
    seed: int = 0,
    progress: Progress | bool = True,
) -> AblationComparison:
    """Ablate selected heads, and compare with random draws of as many other heads from the same layers.

    Args:
        model: A decoder in eval mode.
        input_ids: The text to predict, (tokens,).
        heads: The heads to test.
        candidates: All heads that may be drawn; normally the table of all heads of the model.
        how: The ablation, as in `ablate`.
        num_draws: How many random selections to ablate.
        seed: Seeds the draws.
        progress: False for none, or a function called with the number of finished and of all ablations.

    Returns:
        The loss of the model, with the heads ablated, and of each draw.

    Raises:
        SettingError: `heads` is empty, or a layer has too few other heads.

    >>> from attnscope.heads import score_heads
    >>> from attnscope.recording import read
    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> model = Decoder(config).eval()
    >>> table = score_heads(read(model, list(range(12)), progress=False))
    >>> found = compare_with_random_heads(
    ...     model, torch.arange(12), table.top("previous", 1), table, num_draws=2, progress=False
    ... )
    >>> found.change.shape, found.random_changes.shape  # of the loss at each token
    (torch.Size([11]), torch.Size([2, 11]))
    """
    if not len(heads):
        raise SettingError("compare_with_random_heads: no heads were selected, so there is nothing to compare")
    if input_ids.dim() != 1 or num_draws < 1:
        raise SettingError(
            "compare_with_random_heads: expected input_ids (tokens,) and num_draws of at least 1, got "
            f"{tuple(input_ids.shape)} and num_draws={num_draws}"
        )
    draws = draw_selections(heads, candidates, num_draws, seed)
    selections, losses = [{}, heads.heads_by_layer, *draws], []
    with report_progress(progress, "ablating heads") as report:
        for selection in selections:
            with ablate(model, selection, how):
                losses.append(predict(model, input_ids[None]).losses[0])
            report(len(losses), len(selections))
    loss, ablated, *baselines = losses
    return AblationComparison(loss, ablated - loss, torch.stack(baselines) - loss)


def draw_selections(
    heads: HeadTable, candidates: HeadTable, num_draws: int, seed: int, *, caller: str = "compare_with_random_heads"
) -> list[dict[str, list[int]]]:
    """Draw as many other heads from each layer as are selected there; `caller` is named in errors."""
    selected, others, generator = heads.heads_by_layer, _other_heads(heads, candidates, caller), random.Random(seed)
    return [
        {layer: generator.sample(others[layer], len(some)) for layer, some in selected.items()}
        for _ in range(num_draws)
    ]


def _other_heads(heads: HeadTable, candidates: HeadTable, caller: str) -> dict[str, list[int]]:
    """For each layer with selected heads, the heads that were not selected."""
    available, selected = candidates.heads_by_layer, heads.heads_by_layer
    missing = [layer for layer in selected if layer not in available]
    if missing:
        raise SettingError(f"{caller}: {missing[0]} is not in `candidates`; pass the table of all heads of the model")
    others = {layer: [head for head in available[layer] if head not in selected[layer]] for layer in selected}
    short = [layer for layer, some in selected.items() if len(others[layer]) < len(some)]
    if short:
        raise SettingError(
            f"{caller}: {len(selected[short[0]])} heads of {short[0]} are selected, but only "
            f"{len(others[short[0]])} others are left to compare with; select fewer"
        )
    return others
