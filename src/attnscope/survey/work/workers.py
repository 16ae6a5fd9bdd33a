"""Who reads shards: how many processes with how many threads, and one of them at work.

In: shards. Out: their parts on the disk, and for each how long it took. The number of workers changes no number of a
survey; the number of threads, like the device, nothing but rounding.
Does not know: Ray, which shards are missing. Memory: the model, and what one batch takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from attnscope.errors import SettingError
from attnscope.survey.corpus.plan import Shard
from attnscope.survey.folder import Folder
from attnscope.survey.tally.part_files import save
from attnscope.survey.tally.partial import Partial
from attnscope.survey.work.shard import Reader, read_shard

PAUSES = (1.0, 10.0)
"""Seconds after which a shard is tried again that could not be read."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """How a survey is shared out."""

    count: int = 1
    """How many processes read. One alone is this process, unless it is given a cluster."""

    threads: int | None = None
    """Threads of each; unless told, the cores of this machine are divided among them."""

    cpus: float | None = None
    """What each worker asks of Ray: CPUs, by default one for each of its threads,"""

    gpus: float = 0.0
    """and GPUs, or shares of one."""

    device: str = "cpu"
    """Where the model is: cpu, cuda, cuda:1, ..."""

    address: str | None = None
    """A Ray cluster that is there already; without it, several workers have one of their own on this machine."""

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("threads", 1), ("gpus", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                shown = "workers" if name == "count" else name
                raise SettingError(f"survey: {shown} {value} was asked for; it is {least} at least")
        if self.cpus is not None and self.cpus <= 0:
            raise SettingError(f"survey: cpus {self.cpus:g} was asked for; a worker takes some share of a CPU")

    @property
    def on_ray(self) -> bool:
        """Whether it takes Ray."""
        return self.count > 1 or self.address is not None

    @property
    def num_threads(self) -> int:
        """The threads of one worker."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.count)

    @property
    def num_cpus(self) -> float:
        """The CPUs that Ray sets aside for one worker."""
        return float(self.num_threads) if self.cpus is None else self.cpus


class Step(NamedTuple):
    """Some of the work: a batch, or with the number of a shard, what was left of that shard."""

    tokens: int
    seconds: float
    """Since the step before of the same worker, so that what it waited for is in it."""
    in_model: float
    """Of these, in the model."""
    shard: int | None = None


Told = Callable[[Step], object]
"""Hears of each step."""


class Worker:
    """A model with its threads, which writes parts into the folder of a survey."""

    def __init__(self, reader: Reader, folder: Folder, threads: int) -> None:
        torch.set_num_threads(threads)
        self.reader, self.folder = reader, folder
        self._last = time.perf_counter()

    def work(self, shard: Shard, told: Told | None = None) -> Step:
        """Read a shard and write its part; `told` hears of each batch, and what is returned is the rest, or all."""
        steps = Steps(self._last, self.reader)
        partial = self._read(shard, None if told is None else lambda tokens: told(steps.next(tokens)))
        last = steps.next(partial.tokens, shard.number)
        self._last = steps.time
        return last

    def _read(self, shard: Shard, tell: Callable[[int], object] | None) -> Partial:
        for pause in PAUSES:
            try:
                return self._saved(shard, tell)
            except OSError:  # of a disk or a network, which may be there again in a moment
                time.sleep(pause)
        try:
            return self._saved(shard, tell)
        except OSError as error:
            raise SettingError(
                f"survey: shard {shard.number} could not be read, or its part not written: {error}; the same command "
                "goes on once that is mended"
            ) from error

    def _saved(self, shard: Shard, tell: Callable[[int], object] | None) -> Partial:
        partial = read_shard(shard, self.reader, tell)
        save(partial, self.folder.part(shard.number))
        return partial


class Steps:
    """What has passed since the last step."""

    def __init__(self, start: float, reader: Reader) -> None:
        self.time, self._reader = start, reader
        self._in_model, self._tokens = reader.seconds, 0

    def next(self, tokens: int, shard: int | None = None) -> Step:
        """The step to the point at which so many tokens of the shard have been read."""
        now, in_model = time.perf_counter(), self._reader.seconds
        step = Step(tokens - self._tokens, now - self.time, in_model - self._in_model, shard)
        self.time, self._in_model, self._tokens = now, in_model, tokens
        return step
