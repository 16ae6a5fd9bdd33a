"""A worker as an actor of Ray: it loads the model once, reads shards, and merges groups of partial results.

In: settings, shards and groups. Out: partial results on disk, and a small `Answer` to each call. Errors are answers,
too: as errors of Ray they would be a page long, and Ray would not say which of them a different machine may not have.
Does not know: other actors. Memory: the model, and one batch or two partial results.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from attnscope.errors import AttnScopeError, SettingError
from attnscope.extras import import_extra
from attnscope.models.fingerprint import fingerprint_model
from attnscope.stores.paths import AnyPath, append_byte
from attnscope.survey.corpus.plan import Shard
from attnscope.survey.execution.merge_tree import Group, save_group
from attnscope.survey.execution.shard_reader import ShardReader
from attnscope.survey.execution.workers import AccessSettingError, Worker, Workers, WorkReport
from attnscope.survey.folder import SurveyFolder
from attnscope.survey.settings import Settings

MAX_ATTEMPTS = 20
"""How often a shard or a group is tried: one that kills every worker, for example for lack of memory, must not do so
forever."""


class Place(NamedTuple):
    """Where an actor runs."""

    node: str
    """The id that Ray gave to the node."""
    machine: str
    """The name of the machine."""


class Answer(NamedTuple):
    """The result of a call, or an error."""

    value: Any = None
    error: str = ""
    is_of_machine: bool = False
    """Whether another machine may not have the error."""


class SurveyActor:
    """A worker.

    Args:
        settings: The settings of the survey.
        workers: The resources of each worker.
        run: A name of this run, for the files that count attempts.
    """

    def __init__(self, settings: Settings, workers: Workers, run: str) -> None:
        self._settings, self._workers, self._run = settings, workers, run
        self._reader: ShardReader | None = None
        self._worker: Worker | None = None

    def locate(self) -> Answer:
        """The `Place` of this actor."""
        return Answer(Place(import_extra("ray").get_runtime_context().get_node_id(), platform.node()))

    def load(self) -> Answer:
        """Load the model, and return its fingerprint."""
        return answer(self._load)

    def read(self, shard: Shard, folder: AnyPath) -> Answer:
        """Read a shard, unless its partial result is there already, and return a `WorkReport`."""
        return answer(lambda: self._read(shard, SurveyFolder(folder)))

    def merge(self, group: Group, folder: AnyPath) -> Answer:
        """Merge the partial results of a group, save the result, and return a `WorkReport`."""
        return answer(lambda: self._merge(group, SurveyFolder(folder)))

    def _load(self) -> dict[str, Any]:
        torch.set_num_threads(self._workers.num_threads)
        torch.set_num_interop_threads(1)
        try:
            self._reader = ShardReader.load(self._settings, self._workers.device)
        except AttnScopeError as error:
            raise AccessSettingError(str(error)) from error  # another machine may have the files, or the device
        return fingerprint_model(self._reader.model, Path(self._settings.model).name)

    def _read(self, shard: Shard, folder: SurveyFolder) -> WorkReport:
        if folder.partial_path(shard.number).exists():
            return WorkReport(0, 0.0, 0.0, shard.number)
        assert self._reader is not None
        if self._worker is None:
            self._worker = Worker(self._reader, folder, self._workers.num_threads)
        attempts = folder.attempts_path(folder.partial_path(shard.number), self._run)
        if append_byte(attempts) == MAX_ATTEMPTS:
            raise SettingError(
                f"survey: {MAX_ATTEMPTS} workers died while reading shard {shard.number}, which starts in "
                f"{shard.spans[0].file}; if memory is short, use fewer workers or a smaller --batch-tokens"
            )
        report = self._worker.work(shard)
        attempts.unlink(missing_ok=True)
        return report

    def _merge(self, group: Group, folder: SurveyFolder) -> WorkReport:
        path = folder.group_path(group.start, group.stop)
        attempts = folder.attempts_path(path, self._run)
        if append_byte(attempts) == MAX_ATTEMPTS:
            raise SettingError(
                f"survey: {MAX_ATTEMPTS} workers died while merging {path}; if memory is short, use fewer workers"
            )
        save_group(group, folder)
        attempts.unlink(missing_ok=True)
        return WorkReport(0, 0.0, 0.0, merged=len(group.inputs))


def answer(action: Callable[[], Any]) -> Answer:
    """Call a function; its result or its error as an `Answer`."""
    try:
        return Answer(action())
    except AttnScopeError as error:
        return Answer(error=str(error), is_of_machine=isinstance(error, AccessSettingError))
    except Exception as error:  # of a device or a library; the next machine may be sound
        first = str(error).strip().partition("\n")[0]
        message = f"survey: the machine {platform.node()} failed: {type(error).__name__}: {first}"
        return Answer(error=message, is_of_machine=True)
