"""Reads shards and merges groups on Ray: a pool of actors, each with the model, on this machine or on a cluster.

In: shards, groups. Out: partial results on disk, which the actors write, and a report for each. Actors that die are
replaced. Those that Ray cannot start yet are waited for, while the others work: the cluster may be growing.
Does not know: the content of a shard, or which one is next. Memory: a few hundred bytes per shard, group and worker.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from attnscope.errors import AttnScopeError, SettingError
from attnscope.extras import import_extra
from attnscope.survey.corpus.plan import Shard
from attnscope.survey.execution.merge_tree import Group
from attnscope.survey.execution.ray_actors import MAX_ATTEMPTS, Answer, Place, SurveyActor
from attnscope.survey.execution.ray_cluster import connect_to_ray
from attnscope.survey.execution.shard_queue import MAX_FAILURES, ShardQueue
from attnscope.survey.execution.workers import OnReport, Workers, WorkReport
from attnscope.survey.folder import SurveyFolder
from attnscope.survey.settings import Settings

POLL_SECONDS = 1.0  # between looks at the time, while no actor answers
REPORT_SECONDS = 10.0  # between lines that say what is waited for
NODE_LABEL = "ray.io/node-id"  # Ray gives each node this label


@dataclass
class _Actor:
    """An actor, and how far it is."""

    handle: Any
    place: Place | None = None
    is_loaded: bool = False


class RayPool:
    """The workers of a survey on Ray, in a context that ends them.

    Args:
        settings: The settings of the survey.
        workers: The number of workers and their resources.
    """

    def __init__(self, settings: Settings, workers: Workers) -> None:
        self._settings, self._workers = settings, workers
        self._stack, self._queue = ExitStack(), ShardQueue[Shard | Group]()
        self._ray: Any = None
        self._actors, self._calls = dict[int, _Actor](), dict[Any, int]()
        self._num_created, self._early_deaths = 0, 0
        self._run = f"{time.time_ns():x}"
        self._fingerprint: dict[str, Any] | None = None
        self._waiting_since, self._reported = 0.0, 0.0
        self.excluded_machines: dict[str, str] = {}
        """Machines that were given no more work, and the error of each."""

    def __enter__(self) -> RayPool:
        self._ray = import_extra("ray")
        self._stack.enter_context(connect_to_ray(self._workers))
        self._stack.callback(self._end_actors)
        self._waiting_since = self._reported = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self._stack.close()

    def fingerprint(self) -> dict[str, Any]:
        """Return `fingerprint_model` of the model, from the first worker that has loaded it.

        Raises:
            AttnScopeError: No worker can load it, or none starts in time.
        """
        self._create_actors(1)
        while self._fingerprint is None:
            self._step(lambda _: None)
        return self._fingerprint

    def read(self, shards: Sequence[Shard], folder: SurveyFolder, on_report: OnReport) -> None:
        """Read shards in any order.

        Args:
            shards: The shards.
            folder: The folder of the survey.
            on_report: Called after every shard.

        Raises:
            AttnScopeError: A shard cannot be read, workers differ in the model, or none starts in time.
        """
        self._run_tasks(shards, folder, on_report)

    def merge(self, levels: Sequence[Sequence[Group]], folder: SurveyFolder, on_report: OnReport) -> None:
        """Merge the partial results of groups, one level after the other.

        Args:
            levels: What `missing_groups` returned.
            folder: The folder of the survey.
            on_report: Called after every group.

        Raises:
            AttnScopeError: A partial result cannot be merged, workers differ in the model, or none starts in time.
        """
        for groups in levels:
            self._run_tasks(groups, folder, on_report)

    def _run_tasks(self, tasks: Sequence[Shard | Group], folder: SurveyFolder, on_report: OnReport) -> None:
        self._queue.add_tasks(tasks)
        self._create_actors(min(self._workers.count, len(tasks)) - len(self._actors))
        while self._queue.num_left:
            for number, task in self._queue.assign(time.monotonic()):
                handle = self._actors[number].handle
                method = handle.merge if isinstance(task, Group) else handle.read
                self._calls[method.remote(task, folder.path)] = number
            self._step(on_report)

    def _create_actors(self, count: int) -> None:
        """Ask Ray for actors, on nodes that are not excluded."""
        excluded = self._queue.excluded
        options: dict[str, Any] = {"num_cpus": self._workers.num_cpus, "num_gpus": self._workers.gpus or None}
        if excluded:
            options["label_selector"] = {NODE_LABEL: f"!in({','.join(excluded)})"}
        actor_class = self._ray.remote(SurveyActor).options(scheduling_strategy="SPREAD", **options)
        for _ in range(count):
            handle = actor_class.remote(self._settings, self._workers, self._run)
            self._actors[self._num_created] = _Actor(handle)
            self._calls[handle.locate.remote()] = self._num_created
            self._num_created += 1

    def _step(self, on_report: OnReport) -> None:
        """Wait for answers of actors, and handle those that are there."""
        assert self._calls  # of workers that read, load or have not been started
        ready, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=POLL_SECONDS)
        if ready:
            ready, _ = self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        for call in ready:
            if (number := self._calls.pop(call, None)) is None:
                continue  # its node has just been excluded
            try:
                found = self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                self._replace(number, error)
            else:
                self._receive(number, found, on_report)
        self._check_waiting(time.monotonic())

    def _receive(self, number: int, found: Answer, on_report: OnReport) -> None:
        actor = self._actors[number]
        if found.error and not found.is_of_machine:
            raise AttnScopeError(found.error)
        if actor.place is None:
            actor.place = found.value
            self._calls[actor.handle.load.remote()] = number
        elif not actor.is_loaded and found.error:
            self._exclude(actor.place, found.error)
        elif not actor.is_loaded:
            self._add_loaded(number, actor, actor.place, found.value)
        elif found.error:
            has_others = bool(self._other_nodes(actor.place.node))
            if self._queue.fail(number, found.error, has_other_nodes=has_others) is not None:
                self._exclude(actor.place, found.error)
        else:
            is_first = self._queue.finish(number, time.monotonic())
            report = WorkReport(*found.value)
            if is_first:
                on_report(report._replace(workers=sum(actor.is_loaded for actor in self._actors.values())))

    def _add_loaded(self, number: int, actor: _Actor, place: Place, fingerprint: dict[str, Any]) -> None:
        """Give tasks to an actor, if its model is the same as that of the first one."""
        self._fingerprint = self._fingerprint or fingerprint
        if fingerprint != self._fingerprint:
            raise SettingError(
                f"survey: {self._settings.model} on the machine {place.machine} has other parameters than on the "
                "machine that loaded it first; give all machines the same files"
            )
        actor.is_loaded, self._early_deaths = True, 0
        self._queue.add_worker(number, place.node)

    def _exclude(self, place: Place, error: str) -> None:
        """Give no more work to a node, and ask for as many workers on others."""
        never_loaded = self._fingerprint is None and len(self._queue.excluded) + 1 >= MAX_FAILURES
        if never_loaded or not self._other_nodes(place.node):
            raise AttnScopeError(error)
        self.excluded_machines[place.machine] = error
        self._queue.exclude(place.node, error)
        there = [number for number, actor in self._actors.items() if actor.place and actor.place.node == place.node]
        for number in there:
            self._remove(number)
        self._create_actors(len(there))

    def _other_nodes(self, node: str) -> set[str]:
        """The nodes on which a worker can run, without excluded ones and one more."""
        needed = {"CPU": self._workers.num_cpus, "GPU": self._workers.gpus}
        return {
            found["NodeID"]
            for found in self._ray.nodes()
            if found["Alive"] and all(found["Resources"].get(kind, 0) >= each for kind, each in needed.items())
        } - {node, *self._queue.excluded}

    def _replace(self, number: int, error: Exception) -> None:
        """Start another actor instead of one that has died."""
        if not self._actors[number].is_loaded:
            self._early_deaths += 1
        if self._early_deaths >= MAX_ATTEMPTS:
            first = str(error).strip().partition("\n")[0]
            raise SettingError(
                f"survey: {MAX_ATTEMPTS} workers died before they had loaded the model, the last one with: {first}; "
                "if memory is short, use fewer workers"
            ) from error
        self._remove(number)
        self._create_actors(1)

    def _remove(self, number: int) -> None:
        self._queue.remove_worker(number)
        self._calls = {call: of for call, of in self._calls.items() if of != number}
        self._ray.kill(self._actors.pop(number).handle)

    def _check_waiting(self, now: float) -> None:
        """Report now and then that no worker has been started, and raise an error when that takes too long."""
        if any(actor.place for actor in self._actors.values()):
            self._waiting_since = self._reported = now
            return
        waited, limit = now - self._waiting_since, self._workers.start_timeout
        if waited < limit and now - self._reported < REPORT_SECONDS:
            return
        found = self._ray.cluster_resources()
        needed = {"CPU": self._workers.num_cpus} | ({"GPU": self._workers.gpus} if self._workers.gpus else {})
        reason = (
            f"each needs {' and '.join(f'{each:g} {kind}' for kind, each in needed.items())} on one node, and all "
            f"nodes together have {' and '.join(f'{found.get(kind, 0):g} {kind}' for kind in needed)}"
        )
        if waited >= limit:
            raise SettingError(
                f"survey: no worker could be started in {limit:g} seconds: {reason}; add nodes, reserve less by --cpus "
                "and --gpus, or wait longer by --start-timeout"
            )
        self._reported = now
        sys.stderr.write(f"waiting for a worker to start for {waited:.0f} seconds: {reason}\n")

    def _end_actors(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor.handle)
        self._actors.clear()
        self._calls.clear()
