"""Checkpoints of a training run: written atomically while it trains, and loadable on another number of ranks.

In: a model and its optimizer, sharded over ranks or not. Out: folders step-00000100, written by
torch.distributed.checkpoint, with one shard per rank; and the loaded model and optimizer.

A checkpoint is written under another name and renamed when every rank has finished, so that a folder called
step-... is always complete, whenever a rank was killed. Checksums show whether it is still what was written.
Does not know: the loop, the files of a checkpoint. Memory: a copy of this rank's share, while it is written.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
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

from attnscope.atomic_files import flush_folder
from attnscope.checksums import crc32_file, find_damaged
from attnscope.errors import CheckpointError
from attnscope.train.checkpoint_files import (
    CheckpointManifest,
    ChecksumWriter,
    SafeLoadPlanner,
    SafeReader,
    read_manifest,
)
from attnscope.train.parallel import Ranks, fused_row_order

NAME = re.compile(r"step-(\d{8})")
UNFINISHED = ".unfinished"
DAMAGED = ".damaged"
EXIT_TIMEOUT_SECONDS = 20.0  # seconds; torchrun kills after 30


class CheckpointManager:
    """The checkpoints of one run, in one folder.

    Args:
        folder: The folder, which is created by the first `save`.
        ranks: The ranks that write and read together.
        keep: The number of checkpoints to keep.
        run_id: The id of the run, on the first rank; checkpoints of other runs are rejected.
        report: Called on the first rank with one sentence if a damaged checkpoint was skipped.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, keep: int, run_id: str, report: Callable[[str], object]):
        self.folder, self.ranks, self.keep, self.run_id, self.report = folder, ranks, keep, run_id, report
        self._writing: Future[None] | None = None

    @property
    def complete(self) -> list[Path]:
        """The complete checkpoints, the newest last."""
        return sorted(path for path in self.folder.glob("step-*") if NAME.fullmatch(path.name))

    def save(self, model: nn.Module, optimizer: Optimizer, step: int) -> None:
        """Begin to write a checkpoint; the weights may change as soon as this returns."""
        self.finish()
        place = self.folder / f"step-{step:08}"
        temporary = place.with_name(place.name + UNFINISHED)
        if self.ranks.is_first:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        self.ranks.broadcast(None)  # other ranks write after the folder was created
        parameters, optimizer_state = get_state_dict(model, optimizer)
        manifest = CheckpointManifest(step, self.ranks.tensor_parallel_size, self.run_id, files={})
        writing = async_save(
            {"model": parameters, "optimizer": optimizer_state},
            storage_writer=ChecksumWriter(temporary, manifest),
            process_group=self.ranks.checkpoint_group,
        )
        assert isinstance(writing, Future)
        self._writing = self._rename_when_written(writing, temporary, place)

    def finish(self) -> None:
        """Wait until the checkpoint is written, and raise CheckpointError if that failed."""
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except (CheckpointException, OSError) as error:
            raise CheckpointError(
                f"a checkpoint could not be written to {self.folder} ({reason(error)}); check the disk space, and "
                "start again: the run resumes from the checkpoint before"
            ) from error

    def wait_briefly(self) -> None:
        """Wait a short time for the checkpoint that is being written, when a run ends by an error."""
        if self._writing is not None:
            wait([self._writing], timeout=EXIT_TIMEOUT_SECONDS)

    def load(self, model: nn.Module, optimizer: Optimizer) -> int:
        """Load parameters and optimizer state from the newest checkpoint that is not damaged.

        Returns:
            Its step, or 0 if there is no checkpoint.

        Raises:
            CheckpointError: A checkpoint is of another run or another model, or all of them are damaged.
        """
        if self.ranks.is_first:
            for left in self.folder.glob(f"step-*{UNFINISHED}"):
                shutil.rmtree(left)
        damaged: dict[Path, str] = {}
        for place in reversed(self.ranks.broadcast(self.complete)):
            manifest, damage = self.ranks.broadcast(self._read_manifest(place) if self.ranks.is_first else None)
            damage = damage or self._load_files(place, manifest, model, optimizer)
            if not damage:
                if self.ranks.is_first:
                    self._set_aside(damaged, place)
                return manifest.step
            damaged[place] = damage
        if damaged:
            found = ", ".join(f"{place.name} ({damage})" for place, damage in damaged.items())
            raise CheckpointError(
                f"all checkpoints in {self.folder} are damaged: {found}; copy them again, or choose another folder to "
                "start from the beginning"
            )
        return 0

    def _read_manifest(self, place: Path) -> tuple[CheckpointManifest | None, str]:
        """The manifest of a checkpoint, and what is wrong with it."""
        try:
            manifest = read_manifest(place)
        except CheckpointError as error:
            return None, str(error)
        return manifest, ""

    def _load_files(self, place: Path, manifest: CheckpointManifest, model: nn.Module, optimizer: Optimizer) -> str:
        """Load a checkpoint, and say how it is damaged; each rank verifies some files while it loads."""
        self._check_origin(place, manifest)
        parameters, optimizer_state = get_state_dict(model, optimizer)
        mine = dict(list(manifest.files.items())[self.ranks.rank :: self.ranks.world_size])
        with ThreadPoolExecutor(1) as pool:
            verifying = pool.submit(find_damaged, place, mine, crc32_file)
            failure = self._load_into({"model": parameters, "optimizer": optimizer_state}, place, manifest)
            damaged = self.ranks.first_text(", ".join(verifying.result()))
        if damaged:
            return f"{damaged}: missing or changed"
        if failure:
            raise CheckpointError(f"{place} is of another model ({failure}); choose another folder for the run")
        if manifest.tensor_parallel_size != self.ranks.tensor_parallel_size:
            self._reorder(model, parameters, optimizer_state, manifest.tensor_parallel_size)
        set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=optimizer_state)
        return ""

    def _check_origin(self, place: Path, manifest: CheckpointManifest) -> None:
        wrong = ""
        if place.name != f"step-{manifest.step:08}":
            wrong = f"was written as step-{manifest.step:08}; give it its name back"
        elif self.ranks.is_first and manifest.run_id != self.run_id:
            wrong = "is of another run; remove it, or choose another folder for this run"
        if wrong := self.ranks.broadcast(wrong):
            raise CheckpointError(f"{place} {wrong}")

    def _load_into(self, state: dict[str, Any], place: Path, manifest: CheckpointManifest) -> str:
        """Load tensors in place, on all ranks; returns why it failed."""
        reader, failure = None, ""
        try:
            reader = SafeReader(place, manifest.files)
        except CheckpointError as error:
            failure = str(error)
        if failure := self.ranks.first_text(failure):  # all ranks load, or none
            return failure
        try:
            load(state, storage_reader=reader, planner=SafeLoadPlanner())
        except CheckpointException as error:
            return reason(error)
        return ""

    def _set_aside(self, damaged: dict[Path, str], used: Path) -> None:
        """Rename damaged checkpoints, so that they do not count among those to keep."""
        for place, damage in damaged.items():
            aside = place.with_name(place.name + DAMAGED)
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(place, aside)
            self.report(f"{place} is damaged ({damage}) and was renamed to {aside.name}; loading {used.name} instead")

    def _rename_when_written(self, writing: Future[Any], temporary: Path, place: Path) -> Future[None]:
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
        flush_folder(self.folder)
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


def reason(error: BaseException) -> str:
    """Why files could not be read or written, in one line; torch gathers what went wrong on each rank."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return " ".join(f"{type(error).__name__}: {error}".split())


@torch.no_grad()
def reorder_rows(tensor: Tensor, order: Tensor) -> None:
    """Reorder the rows of a tensor in place, also of a sharded one."""
    if not isinstance(tensor, DTensor):
        tensor.copy_(tensor[order.to(tensor.device)])
        return
    complete = tensor.full_tensor()[order.to(tensor.device)]
    mesh = tensor.device_mesh
    spread = DTensor.from_local(complete, mesh, [Replicate()] * mesh.ndim, run_check=False)
    tensor.copy_(spread.redistribute(placements=tensor.placements))
