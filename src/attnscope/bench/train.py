"""What training costs: our loop beside the plainest one that trains the same model, and how far a recipe gets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F

from attnscope.bench.report import Table, duration
from attnscope.models import CharacterTokenizer
from attnscope.train import Data, Recipe, char_gpt, train
from attnscope.train.metrics import FILE as METRICS

MIN_SPEED = 0.95
MAX_LOSS, MAX_SECONDS = 1.65, 20 * 60
TEXT = 400_000  # characters


@dataclass(frozen=True, kw_only=True)
class Size:
    """How far each measurement goes."""

    rounds: int
    steps: int
    learning_steps: int | None


SIZES = {
    "small": Size(rounds=1, steps=20, learning_steps=100),
    "full": Size(rounds=3, steps=60, learning_steps=None),
}


def tables(size: str, step: Callable[[str], None], data: Sequence[str] = ()) -> Iterator[Table]:
    """All measurements, one table each."""
    chosen = SIZES[size]
    yield speeds(chosen, step)
    for file in data:
        yield learning(chosen, Path(file), step)


def speeds(size: Size, step: Callable[[str], None]) -> Table:
    """Tokens a second of both loops."""
    best = race_loops(size.rounds, size.steps, step)
    ratio = best["attnscope"] / best["plain"]
    table = Table(
        title="tokens a second",
        comparison=f"the model of char-gpt, batches of 32 x 128 characters, best step of {size.rounds} x "
        f"{size.steps} in turns, beside the plainest loop: random rows of a tensor, forward, backward, clip, AdamW. "
        f"Bound: {MIN_SPEED}x.",
        columns=("plain loop", "attnscope train", "ratio", "bound kept"),
    )
    table.add(f"{best['plain']:,.0f}/s", f"{best['attnscope']:,.0f}/s", f"{ratio:.2f}x", met=ratio >= MIN_SPEED)
    return table


def race_loops(rounds: int, steps: int, step: Callable[[str], None]) -> dict[str, float]:
    """The best tokens a second of the plain loop and of ours, taken in turns.

    Each step is taken by itself: on a busy machine few stretches of many steps are left undisturbed.
    """
    best = {"plain": 0.0, "attnscope": 0.0}
    for turn in range(rounds):
        with TemporaryDirectory() as folder:
            text = Path(folder) / "text.txt"
            text.write_text(random_text(TEXT), encoding="ascii")
            recipe = char_gpt(
                [text], steps=steps, log_every=1, evaluate_every=0, sample_every=0, checkpoint_every=steps
            )
            step(f"round {turn + 1} of {rounds}, plain loop")
            best["plain"] = max(best["plain"], plain_speed(recipe, Path(folder) / "plain"))
            step(f"round {turn + 1} of {rounds}, attnscope train")
            best["attnscope"] = max(best["attnscope"], our_speed(recipe, Path(folder) / "ours"))
    return best


def plain_speed(recipe: Recipe, folder: Path) -> float:
    """The best step of a loop without anything that is not training."""
    settings = recipe.settings
    torch.manual_seed(settings.seed)
    data: Data = recipe.data(folder, settings)
    model = recipe.model(data, settings)
    assert data.tokenizer is not None
    tokens = torch.tensor(data.tokenizer.encode(random_text(TEXT)))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=0.1, fused=True
    )
    best, started = 0.0, time.perf_counter()
    for _ in range(settings.steps):
        starts = torch.randint(TEXT - settings.sequence_length, (settings.batch_size, 1))
        rows = tokens[starts + torch.arange(settings.sequence_length + 1)]
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        best, started = max(best, settings.batch_size * settings.sequence_length / (now - started)), now
    return best


def our_speed(recipe: Recipe, folder: Path) -> float:
    """The best step that our loop has written down."""
    train(recipe, folder, progress=False)
    lines = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
    return max(line["tokens_per_second"] for line in lines if "tokens_per_second" in line)


def learning(size: Size, data: Path, step: Callable[[str], None]) -> Table:
    """How far char-gpt gets, and how long that takes, from the file to the model."""
    step(f"char-gpt learns from {data.name}")
    changes: dict[str, Any] = {} if size.learning_steps is None else {"steps": size.learning_steps}
    recipe = char_gpt([data], **changes)
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        trained = train(recipe, Path(folder), progress=False)
        spent = time.perf_counter() - started
    assert trained.model is not None
    weights = sum(parameter.numel() for parameter in trained.model.parameters())
    settings = recipe.settings
    table = Table(
        title="char-gpt",
        comparison=f"`attnscope train char-gpt --data {data.name}`, {data.stat().st_size:,} bytes, the last tenth for "
        f"validation; {weights:,} weights, {settings.steps:,} steps of {settings.batch_size} x "
        f"{settings.sequence_length} characters, learning rate {settings.learning_rate:g}. Wall time with all evaluations and samples. Bound: "
        f"{MAX_LOSS} nats per character within {MAX_SECONDS // 60} minutes.",
        columns=("steps", "wall time", "validation loss", "bound kept"),
    )
    met = trained.validation_loss <= MAX_LOSS and spent <= MAX_SECONDS
    table.add(f"{trained.step:,}", duration(spent), f"{trained.validation_loss:.3f} nats", met=met)
    return table


def random_text(length: int) -> str:
    """Characters without sense: how fast a model learns does not depend on what they are."""
    characters = CharacterTokenizer.from_text("abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ,.;:!?-'\n&3$")
    dice = torch.Generator().manual_seed(0)
    return characters.decode(torch.randint(characters.vocab_size, (length,), generator=dice).tolist())
