"""A simulated Ray with its own clock, whose nodes and actors start late, fail and die as a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from attnscope.survey.execution.merge_tree import Group
from attnscope.survey.execution.ray_actors import Answer, Place
from attnscope.survey.execution.ray_pool import NODE_LABEL
from attnscope.survey.execution.workers import WorkReport

FINGERPRINT = {"name": "model", "hash": "sha256:1", "parameters": 3}


class RayError(Exception):
    """As Ray raises it if an actor has died."""


@dataclass
class Node:
    """A simulated node; each field may be changed while a test runs."""

    cpus: int = 2
    load: Answer = field(default_factory=lambda: Answer(FINGERPRINT))
    read_error: str = ""
    seconds: float = 1.0
    """For each shard and each group."""
    kills: int = 0
    """Calls of `load`, `read` or `merge` that kill their worker, from now on."""


@dataclass(eq=False)
class Call:
    """A call of a simulated actor."""

    handle: Handle
    kind: str
    arguments: tuple[Any, ...]
    since: float
    result: Answer | RayError | None = None


class Handle:
    """A simulated actor."""

    def __init__(self, cluster: Cluster, selector: str) -> None:
        self.cluster, self.excluded = cluster, selector.removeprefix("!in(").removesuffix(")").split(",")
        self.node = ""
        self.is_dead = False

    def __getattr__(self, kind: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self.cluster.call(self, kind, arguments))


class Cluster:
    """A simulated Ray with its own clock."""

    def __init__(self, **nodes: Node) -> None:
        self.simulated, self.now, self.handles, self.pending = nodes, 0.0, list[Handle](), list[Call]()
        self.read: list[tuple[str, int]] = []
        """The node and the number of every shard that was read."""
        self.merged = list[tuple[str, Group]]()
        """The node and every group that was merged."""
        self.at: dict[float, Callable[[], object]] = {}
        """What happens at some times."""
        self.exceptions = SimpleNamespace(RayError=RayError)

    def remote(self, _: type) -> Any:
        """Return a class of actors."""

        def options(*, label_selector: dict[str, str] | None = None, **_: Any) -> Any:
            def create(*_: Any) -> Handle:
                self.handles.append(Handle(self, (label_selector or {}).get(NODE_LABEL, "")))
                return self.handles[-1]

            return SimpleNamespace(remote=create)

        return SimpleNamespace(options=options)

    def call(self, handle: Handle, kind: str, arguments: tuple[Any, ...]) -> Call:
        """Queue a call."""
        self.pending.append(Call(handle, kind, arguments, self.now))
        return self.pending[-1]

    def wait(self, calls: list[Call], num_returns: int, timeout: float) -> tuple[list[Call], list[Call]]:
        """Advance the clock, unless something is ready."""
        self.step()
        if timeout and not any(call.result for call in calls):
            self.now += timeout
            for time in sorted(time for time in self.at if time <= self.now):
                self.at.pop(time)()
            self.step()
        ready = [call for call in calls if call.result][:num_returns]
        return ready, [call for call in calls if call not in ready]

    def step(self) -> None:
        """Place actors, and answer calls."""
        for handle in self.handles:
            for name, node in self.simulated.items():
                used = sum(other.node == name for other in self.handles)
                if not handle.node and not handle.is_dead and name not in handle.excluded and used < node.cpus:
                    handle.node = name
        for call in self.pending:
            if call.result is None and (call.handle.node or call.handle.is_dead):
                call.result = self.answer(call)

    def answer(self, call: Call) -> Answer | RayError | None:
        """The result of a call, once it is there."""
        name = call.handle.node
        if call.handle.is_dead or name not in self.simulated:
            return RayError("the actor died")
        node = self.simulated[name]
        if call.kind == "locate":
            return Answer(Place(name, f"machine of {name}"))
        if node.kills:
            node.kills -= 1
            self.kill(call.handle)
            return RayError("the actor died")
        if call.kind == "load":
            return node.load
        if node.read_error:
            return Answer(error=node.read_error, is_of_machine=True)
        if self.now - call.since < node.seconds:
            return None
        if call.kind == "merge":
            self.merged.append((name, call.arguments[0]))
            return Answer(WorkReport(0, 0.0, 0.0, merged=len(call.arguments[0].inputs)))
        self.read.append((name, call.arguments[0].number))
        return Answer(WorkReport(10, 1.0, 0.5, call.arguments[0].number))

    def get(self, call: Call) -> Answer:
        """The result of a call, or its error."""
        if isinstance(call.result, RayError):
            raise call.result
        assert call.result is not None
        return call.result

    def kill(self, handle: Handle) -> None:
        """End an actor."""
        handle.node, handle.is_dead = "", True

    def nodes(self) -> list[dict[str, Any]]:
        """As Ray lists them."""
        return [
            {"NodeID": name, "Alive": True, "Resources": {"CPU": float(node.cpus)}}
            for name, node in self.simulated.items()
        ]

    def cluster_resources(self) -> dict[str, float]:
        """As Ray sums them up."""
        return {"CPU": float(sum(node.cpus for node in self.simulated.values()))}
