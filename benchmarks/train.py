"""The cost of training: `attnscope train` compared with a minimal loop, and the loss that a recipe reaches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F

from attnscope.bench import Size
from attnscope.bench.report import Table, duration
from attnscope.heads.over_training import METRICS
from attnscope.models import CharacterTokenizer
from attnscope.train import Data, Recipe, char_gpt, train

MIN_SPEED = 0.95
MAX_LOSS, MAX_SECONDS = 1.65, 20 * 60
TEXT = 400_000  # characters


def tables(size: Size, step: Callable[[str], None], data: Sequence[str] = ()) -> Iterator[Table]:
    """Run all measurements; yield one table each."""
    rounds, steps = size.choose(small=(1, 20), full=(3, 60))
    yield speeds(rounds, steps, step)
    for file in data:
        yield learning(size.choose(small=100, full=None), Path(file), step)


def speeds(rounds: int, steps: int, step: Callable[[str], None]) -> Table:
    """Compare the tokens per second of both loops."""
    best = race_loops(rounds, steps, step)
    ratio = best["attnscope"] / best["minimal"]
    table = Table(
        title="tokens per second",
        comparison=f"the model of char-gpt, batches of 32 x 128 characters, best step of {rounds} x "
        f"{steps}, alternating, compared with a minimal loop: random rows of a tensor, forward, backward, clip, AdamW. "
        f"Bound: {MIN_SPEED}x.",
        columns=("minimal loop", "attnscope train", "ratio", "bound kept"),
    )
    table.add(f"{best['minimal']:,.0f}/s", f"{best['attnscope']:,.0f}/s", f"{ratio:.2f}x", met=ratio >= MIN_SPEED)
    return table


def race_loops(rounds: int, steps: int, step: Callable[[str], None]) -> dict[str, float]:
    """Return the best tokens per second of the minimal loop and of `train`, in alternating rounds.

    Each step is timed separately, because on a busy machine few sequences of many steps run undisturbed.
    """
    best = {"minimal": 0.0, "attnscope": 0.0}
    for turn in range(rounds):
        with TemporaryDirectory() as folder:
            text = Path(folder) / "text.txt"
            text.write_text(random_text(TEXT), encoding="ascii")
            recipe = char_gpt(
                [text], steps=steps, log_every=1, evaluate_every=0, sample_every=0, checkpoint_every=steps
            )
            step(f"round {turn + 1} of {rounds}, minimal loop")
            best["minimal"] = max(best["minimal"], minimal_speed(recipe, Path(folder) / "minimal"))
            step(f"round {turn + 1} of {rounds}, attnscope train")
            best["attnscope"] = max(best["attnscope"], train_speed(recipe, Path(folder) / "train"))
    return best


def minimal_speed(recipe: Recipe, folder: Path) -> float:
    """Return the best tokens per second of a loop that only trains."""
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


def train_speed(recipe: Recipe, folder: Path) -> float:
    """Return the best tokens per second in the metrics of `train`."""
    train(recipe, folder, progress=False)
    lines = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
    return max(line["tokens_per_second"] for line in lines if "tokens_per_second" in line)


def learning(steps: int | None, data: Path, step: Callable[[str], None]) -> Table:
    """Train char-gpt on a file; return its validation loss and wall time."""
    step(f"char-gpt on {data.name}")
    changes: dict[str, Any] = {} if steps is None else {"steps": steps}
    recipe = char_gpt([data], **changes)
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        trained = train(recipe, Path(folder), progress=False)
        spent = time.perf_counter() - started
    assert trained.model is not None
    parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    settings = recipe.settings
    table = Table(
        title="char-gpt",
        comparison=f"`attnscope train char-gpt --data {data.name}`, {data.stat().st_size:,} bytes, the last tenth for "
        f"validation; {parameters:,} parameters, {settings.steps:,} steps of {settings.batch_size} x "
        f"{settings.sequence_length} characters, learning rate {settings.learning_rate:g}. "
        f"Wall time with all evaluations and samples. Bound: {MAX_LOSS} nats per character "
        f"within {MAX_SECONDS // 60} minutes.",
        columns=("steps", "wall time", "validation loss", "bound kept"),
    )
    met = trained.validation_loss <= MAX_LOSS and spent <= MAX_SECONDS
    table.add(f"{trained.step:,}", duration(spent), f"{trained.validation_loss:.3f} nats", met=met)
    return table


def random_text(length: int) -> str:
    """Return random characters: the speed of training does not depend on the text."""
    characters = CharacterTokenizer.from_text("abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ,.;:!?-'\n&3$")
    generator = torch.Generator().manual_seed(0)
    return characters.decode(torch.randint(characters.vocab_size, (length,), generator=generator).tolist())
