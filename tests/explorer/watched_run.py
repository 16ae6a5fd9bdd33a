"""A small watched training run for tests of its page, with an alert whose queries and keys were kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from attnscope.explorer.library.library import Library
from attnscope.explorer.library.watched_run import WatchedRunView
from attnscope.telemetry import Watch
from attnscope.telemetry.alerts import LargeLogit
from tests.explorer.serving import Handle, serving

LAYERS, HEADS, TOKENS, STEPS = 3, 2, 20, 12
LIMIT = 4.0


class Attention(nn.Module):
    """Causal self-attention with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        query, key, value = self.project(x).unflatten(-1, (3, HEADS, 4)).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + out.transpose(1, 2).flatten(2)


def make_run(folder: Path) -> Path:
    """Train until the logits of a head are large; every step is measured."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Attention() for _ in range(LAYERS))).train()
    inputs = torch.randn(3, TOKENS, 8)
    with Watch(model, every=1, folder=folder, rules=[LargeLogit(LIMIT)]) as watch, torch.no_grad():
        for _ in range(STEPS):
            model(inputs)
            for layer in model:
                layer.project.weight.mul_(1.1)  # type: ignore[union-attr]
            watch.step()
    return folder


@contextmanager
def run_served(folder: Path) -> Iterator[Handle]:
    """A server of a watched run."""
    library = Library()
    library.watched = WatchedRunView(folder, "a run")
    with serving(library, page=True) as handle:
        yield handle
