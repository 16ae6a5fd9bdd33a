"""The cost of checksums: saving and loading models and training checkpoints, with them and without."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch.optim import AdamW

from attnscope.bench import Size
from attnscope.bench.report import Table, duration
from attnscope.models import Decoder, load, save
from attnscope.models.checkpoint import saving
from attnscope.models.checkpoint.folder_checksums import FILE
from attnscope.models.published_configs import DECODERS
from attnscope.train import checkpoint, checkpoint_files
from attnscope.train.checkpoint import CheckpointManager
from attnscope.train.parallel import init_ranks
from attnscope.train.settings import Settings

MODEL = "smollm2-135m"
VOCABULARY = 2048  # so that layers are most of the model


class Pair(NamedTuple):
    """The same work with checksums and without."""

    checked: Callable[[], object]
    without: Callable[[], object]


class Times(NamedTuple):
    """What a call takes, in seconds, or the ratio of two calls."""

    wall: float
    cpu: float
    """Of all threads of this process."""


class NoDigest:
    """Replaces a checksum, and computes nothing."""

    def update(self, _: object, /) -> None:
        """Ignore what follows in the stream."""

    def hexdigest(self) -> str:
        """Return a constant."""
        return "00000000"


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Run all measurements; yield one table each."""
    rounds, layers = size.choose(small=(3, 2), full=(30, 10))
    torch.manual_seed(0)
    model = Decoder(replace(DECODERS[MODEL], num_layers=layers, vocab_size=VOCABULARY))
    megabytes = sum(parameter.nbytes for parameter in model.parameters()) / 1e6
    table = Table(
        title="saving and loading",
        comparison=f"{MODEL} with {layers} layers and a vocabulary of {VOCABULARY:,}, random parameters in float32: "
        f"{megabytes:.0f} MB, and {3 * megabytes:.0f} MB as a training checkpoint; files in the page cache. {rounds} "
        "pairs of calls that take turns: median times, and medians of the ratios within the pairs. CPU time is that of "
        "all threads.",
        columns=("operation", "without", "with checksums", "ratio", "ratio of CPU time"),
    )
    with TemporaryDirectory() as folder, pairs(model, Path(folder)) as found:
        for name, pair in found.items():
            step(name)
            without, checked, ratio = take_turns(pair, rounds)
            times = (duration(without.wall), duration(checked.wall))
            table.add(name, *times, f"{ratio.wall:.3f}x", f"{ratio.cpu:.3f}x")
    yield table


@contextmanager
def pairs(model: Decoder, folder: Path) -> Iterator[dict[str, Pair]]:
    """Yield all operations by name, with the files that they read."""
    optimizer = AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes the moments
    save(model, folder / "model")
    shutil.copytree(folder / "model", folder / "plain", ignore=shutil.ignore_patterns(FILE))
    settings = Settings(steps=1, batch_size=1, sequence_length=1, learning_rate=1e-3)
    with init_ranks(settings) as ranks:
        manager = CheckpointManager(folder / "checkpoints", ranks, keep=1, run_id="", report=print)

        def save_checkpoint() -> None:
            manager.save(model, optimizer, 1)
            manager.finish()

        save_checkpoint()
        yield {
            "save a model": with_and_without(lambda: save(model, folder / "saved", overwrite=True)),
            "load a model": Pair(lambda: load(folder / "model"), lambda: load(folder / "plain")),
            "load a training checkpoint": with_and_without(lambda: manager.load(model, optimizer)),
            "save a training checkpoint": with_and_without(save_checkpoint),
        }


def with_and_without(call: Callable[[], object]) -> Pair:
    """The call, and the call with checksums that are not computed."""

    def without() -> None:
        with (
            patch.object(saving, "Crc32", NoDigest),
            patch.object(checkpoint_files, "crc32_file", lambda _: "00000000"),
            patch.object(checkpoint, "find_damaged", lambda *_: []),
        ):
            call()

    return Pair(call, without)


def take_turns(pair: Pair, rounds: int) -> tuple[Times, Times, Times]:
    """Time both calls of a pair, after one warm-up of each.

    Returns:
        The medians without checksums and with them, and the medians of the ratios within the rounds.
    """
    measured: list[tuple[Times, Times]] = []
    for number in range(rounds + 1):
        calls = [pair.without, pair.checked]
        times = [measure(call) for call in (calls if number % 2 else reversed(calls))]
        if number:
            measured.append((times[0], times[1]) if number % 2 else (times[1], times[0]))
    ratios = [Times(checked.wall / without.wall, checked.cpu / without.cpu) for without, checked in measured]
    without, checked = zip(*measured, strict=True)
    return medians(without), medians(checked), medians(ratios)


def measure(call: Callable[[], object]) -> Times:
    """Time one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def medians(times: list[Times] | tuple[Times, ...]) -> Times:
    """The median of each time."""
    return Times(median(one.wall for one in times), median(one.cpu for one in times))
