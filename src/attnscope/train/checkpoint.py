"""Checkpoints of a run: written while it goes on, complete or not there at all, loadable on another number of ranks.

In: a model and its optimizer, spread over ranks or not. Out: folders step-00000100, written by
torch.distributed.checkpoint, each rank its own share; and back.

A checkpoint is written under another name and renamed when every rank has finished, so that a folder called
step-... is always whole, whenever a rank was killed. Loading one unpickles: load your own.
Does not know: the loop. Memory: a copy of this rank's share, while it is written.
"""

from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from attnscope.errors import CheckpointError
from attnscope.models.json_files import read_json, write_json
from attnscope.train.parallel import Ranks, fused_row_order

NAME = re.compile(r"step-(\d{8})")
UNFINISHED = ".unfinished"
METADATA = "checkpoint.json"
EXIT_TIMEOUT_SECONDS = 20.0  # seconds; torchrun kills after 30


class CheckpointManager:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path, ranks: Ranks, *, keep: int):
        self.folder, self.ranks, self.keep = folder, ranks, keep
        self._writing: Future[None] | None = None

    @property
    def complete(self) -> list[Path]:
        """All that are complete, the newest last."""
        return sorted(path for path in self.folder.glob("step-*") if NAME.fullmatch(path.name))

    def save(self, model: nn.Module, optimizer: Optimizer, step: int) -> None:
        """Begin to write a checkpoint; the weights may change as soon as this returns."""
        self.finish()
        place = self.folder / f"step-{step:08}"
        temporary = place.with_name(place.name + UNFINISHED)
        if self.ranks.is_first:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            write_json(temporary / METADATA, {"step": step, "tensor": self.ranks.tensor_parallel_size})
        self.ranks.broadcast(None)  # nobody writes into a folder that is not there yet
        parameters, optimizer_state = get_state_dict(model, optimizer)
        writing = async_save(
            {"model": parameters, "optimizer": optimizer_state},
            checkpoint_id=temporary,
            process_group=self.ranks.checkpoint_group,
        )
        assert isinstance(writing, Future)
        self._writing = self._named(writing, temporary, place)

    def finish(self) -> None:
        """Wait until what is being written is there, and raise what went wrong with it."""
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except (CheckpointException, OSError) as error:
            raise CheckpointError(
                f"a checkpoint could not be written to {self.folder} ({reason(error)}); see that there is room, and "
                "start again: the run goes on from the one before"
            ) from error

    def wait_briefly(self) -> None:
        """Let what is being written be finished, for runs that end by an error; not for long, as others may be gone."""
        if self._writing is not None:
            wait([self._writing], timeout=EXIT_TIMEOUT_SECONDS)

    def load(self, model: nn.Module, optimizer: Optimizer) -> int:
        """Take weights and momenta from the newest checkpoint; returns its step, or 0 where there is none."""
        if self.ranks.is_first:
            for left in self.folder.glob(f"step-*{UNFINISHED}"):
                shutil.rmtree(left)
        place: Path | None = self.ranks.broadcast(next(reversed(self.complete), None))
        if place is None:
            return 0
        parameters, optimizer_state = get_state_dict(model, optimizer)
        try:
            step, tensor = described(place)
            load({"model": parameters, "optimizer": optimizer_state}, checkpoint_id=place)
        except (CheckpointException, CheckpointError) as error:
            raise CheckpointError(
                f"{place} is damaged, or of another model ({reason(error)}); remove this folder to go on from the "
                "checkpoint before it, or choose another one for the run"
            ) from error
        if tensor != self.ranks.tensor_parallel_size:
            self._reorder(model, parameters, optimizer_state, tensor)
        set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=optimizer_state)
        return step

    def _named(self, writing: Future[Any], temporary: Path, place: Path) -> Future[None]:
        """Done when the checkpoint has its name; `writing` is done before, and swallows what a callback raises."""
        named: Future[None] = Future()

        def complete(done: Future[Any]) -> None:
            try:
                done.result()
                if self.ranks.is_first:
                    self._complete(temporary, place)
            except BaseException as error:  # torch's own is no Exception; `finish` raises it
                named.set_exception(error)
            else:
                named.set_result(None)

        writing.add_done_callback(complete)
        return named

    def _complete(self, temporary: Path, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        os.replace(temporary, place)
        for old in self.complete[: -self.keep]:
            gone = old.with_name(old.name + UNFINISHED)  # so that a kill in the middle leaves no half of it
            os.replace(old, gone)
            shutil.rmtree(gone)

    def _reorder(
        self, model: nn.Module, parameters: dict[str, Any], optimizer_state: dict[str, Any], tensor: int
    ) -> None:
        """Bring rows that were kept for another number of ranks into our order."""
        for name, weight in parameters.items():
            theirs, ours = (fused_row_order(model, name, ranks) for ranks in (tensor, self.ranks.tensor_parallel_size))
            order = torch.arange(weight.shape[0]) if theirs is None else theirs.argsort()
            order = order if ours is None else order[ours]
            if theirs is not None or ours is not None:
                state: dict[str, Tensor] = optimizer_state["state"][name]
                for part in (weight, state["exp_avg"], state["exp_avg_sq"]):
                    reorder_rows(part, order)


def described(place: Path) -> tuple[int, int]:
    """The step of a checkpoint, and for how many ranks that share layers its rows are laid out."""
    about = read_json(place / METADATA)
    step, tensor = about.get("step"), about.get("tensor")
    if not isinstance(step, int) or not isinstance(tensor, int) or place.name != f"step-{step:08}":
        raise CheckpointError(f"{METADATA} is that of another checkpoint")
    return step, tensor


def reason(error: BaseException) -> str:
    """Why files could not be read or written, in one line; torch gathers what went wrong on each rank."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return " ".join(f"{type(error).__name__}: {error}".split())


@torch.no_grad()
def reorder_rows(tensor: Tensor, order: Tensor) -> None:
    """Put the rows of a tensor into another order, in place, wherever they lie."""
    if not isinstance(tensor, DTensor):
        tensor.copy_(tensor[order.to(tensor.device)])
        return
    complete = tensor.full_tensor()[order.to(tensor.device)]
    mesh = tensor.device_mesh
    spread = DTensor.from_local(complete, mesh, [Replicate()] * mesh.ndim, run_check=False)
    tensor.copy_(spread.redistribute(placements=tensor.placements))
