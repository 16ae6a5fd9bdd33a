"""Rank processes that last for the whole test session: torch is imported once, and tests send them functions."""

from __future__ import annotations

import os
import pickle
import socket
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection, get_context
from typing import Any

import torch
import torch.distributed as dist

from tests.conftest import poisoned

TIMEOUT = 300.0  # seconds for all ranks together: other tests share the machine

forkserver = get_context("forkserver")
forkserver.set_forkserver_preload(["tests.train.torchrun", "torch._dynamo", "torch.utils.tensorboard"])


class LastingRanks:
    """Processes that run functions as ranks of torchrun would; a call with n ranks uses the first n processes."""

    def __init__(self) -> None:
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []

    def run(self, function: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
        """Call `function(*arguments)` in each rank, and return what the ranks return.

        The function is defined at the top of a module. It finds its rank in the environment. The first rank to fail
        fails the test with its traceback; then all processes are ended, and the next call starts new ones.
        """
        while len(self._processes) < world_size:
            self._start_process()
        port = find_free_port()
        pipes = self._pipes[:world_size]
        try:
            for rank, pipe in enumerate(pipes):
                pipe.send_bytes(pickle.dumps((function, arguments, torchrun_environment(rank, world_size, port))))
            return _collect_results(pipes)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes (SIGKILL)."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _start_process(self) -> None:
        ours, theirs = forkserver.Pipe()
        process = forkserver.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()  # the child has it now, and its end is the end of the pipe
        self._processes.append(process)
        self._pipes.append(ours)


def call_in_gloo_group(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function inside a gloo group of all ranks; for `LastingRanks.run`."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    try:
        result = function(*arguments)
        dist.barrier()  # no rank leaves while another still reads
        return result
    finally:
        dist.destroy_process_group()


def torchrun_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets for a rank."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    addresses = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    return {name: str(value) for name, value in numbers.items()} | addresses


def find_free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def prepare_process() -> None:
    """One thread, and NaN in memory that is allocated without being written, as in the tests' own process."""
    torch.set_num_threads(1)
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        setattr(owner, name, poisoned(getattr(owner, name)))


def _collect_results(pipes: list[connection.Connection]) -> list[Any]:
    results: dict[int, Any] = {}
    deadline = time.monotonic() + TIMEOUT
    while waiting := [pipe for rank, pipe in enumerate(pipes) if rank not in results]:
        ready = connection.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            silent = [rank for rank in range(len(pipes)) if rank not in results]
            raise TimeoutError(f"no answer from ranks {silent} after {TIMEOUT:.0f} s")
        for pipe in waiting:
            if pipe in ready:
                rank = pipes.index(pipe)
                results[rank] = _receive_result(rank, pipe)
    return [results[rank] for rank in range(len(pipes))]


def _receive_result(rank: int, pipe: connection.Connection) -> Any:
    try:
        succeeded, result = pickle.loads(pipe.recv_bytes())
    except (EOFError, ConnectionResetError):
        raise RuntimeError(f"rank {rank} ended without an answer") from None
    if not succeeded:
        raise RuntimeError(f"rank {rank} failed:\n{result}")
    return result


def _serve(pipe: connection.Connection) -> None:
    prepare_process()
    while True:
        try:
            work = pipe.recv_bytes()
        except EOFError:  # the session has ended
            return
        try:
            answer = True, _call(work)
        except BaseException:
            answer = False, traceback.format_exc()
        # Bytes, since a tensor sent as such stays in memory that this process shares.
        pipe.send_bytes(pickle.dumps(answer))


def _call(work: bytes) -> Any:
    function, arguments, environment = pickle.loads(work)
    os.environ.update(environment)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*arguments)
