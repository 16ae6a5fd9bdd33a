"""Real processes that talk over gloo, as tests start them."""

from __future__ import annotations

import os
import pickle
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.conftest import poisoned

PATIENCE = 120.0  # seconds for all ranks together, their start included


def run_ranks(function: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
    """What `function(*arguments)` returns in each rank of a gloo group of this size.

    The function stands at the top of a module, and asks torch.distributed for its rank. The first rank to fail fails
    the test, with its traceback; the others are ended.
    """
    spawn = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [spawn.Pipe(duplex=False) for _ in range(world_size)]
        work = pickle.dumps((function, arguments))
        processes = [
            spawn.Process(target=_run, args=(work, rank, world_size, folder, pipes[rank][1]), daemon=True)
            for rank in range(world_size)
        ]
        try:
            for process, (_, sender) in zip(processes, pipes, strict=True):
                process.start()
                sender.close()  # the child has it now, and its end is the end of the pipe
            return _collected([receiver for receiver, _ in pipes])
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collected(receivers: list[connection.Connection]) -> list[Any]:
    results: dict[int, Any] = {}
    deadline = time.monotonic() + PATIENCE
    while waiting := [receiver for rank, receiver in enumerate(receivers) if rank not in results]:
        ready = connection.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            silent = [rank for rank in range(len(receivers)) if rank not in results]
            raise TimeoutError(f"after {PATIENCE:.0f} s nothing was heard of ranks {silent}")
        for receiver in waiting:
            if receiver in ready:
                rank = receivers.index(receiver)
                results[rank] = _answer(rank, receiver)
    return [results[rank] for rank in range(len(receivers))]


def _answer(rank: int, receiver: connection.Connection) -> Any:
    try:
        worked, answer = pickle.loads(receiver.recv_bytes())
    except EOFError:
        raise RuntimeError(f"rank {rank} ended without a word") from None
    if not worked:
        raise RuntimeError(f"rank {rank} failed:\n{answer}")
    return answer


def _run(work: bytes, rank: int, world_size: int, folder: str, sender: connection.Connection) -> None:
    try:
        answer = True, _result(work, rank, world_size, folder)
    except BaseException:
        answer = False, traceback.format_exc()
    # Bytes, since a tensor sent as such is lent by this process, which is about to end.
    sender.send_bytes(pickle.dumps(answer))


def _result(work: bytes, rank: int, world_size: int, folder: str) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        setattr(owner, name, poisoned(getattr(owner, name)))
    function, arguments = pickle.loads(work)
    meeting = (Path(folder) / "meeting").as_uri()
    timeout = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size, timeout=timeout)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = function(*arguments)
            dist.barrier()  # nobody hangs up while another still reads
            return result
    finally:
        dist.destroy_process_group()
