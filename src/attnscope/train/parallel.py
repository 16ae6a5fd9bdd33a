"""Distributed training: shards a model and its batches over the ranks of a process group.

In: settings, and the environment that torchrun sets up. Out: `Ranks`, which shards a model, takes this rank's part of
a batch, and sums over ranks. Without torchrun there is one rank, and nothing is sharded.

Three kinds of parallelism, which can be combined; ranks = data x context x tensor:

- data: each rank reads other sequences. Parameters, gradients and optimizer state are sharded, and the parameters of a
  block are gathered when they are needed (FSDP2, `fully_shard`).
- tensor: each rank has some heads, and some of the feed-forward network, of every layer (DTensor).
- context: each rank reads other positions of the same sequences, with ring attention (see `ring_attention`).

Does not know: the loop, files, text. Memory: this rank's shard of the model, and the whole parameters of one block.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from attnscope.errors import AttnScopeError, SettingError, UnsupportedError
from attnscope.models import Block, Decoder
from attnscope.train.batch import Batch
from attnscope.train.ring_attention import ContextShards, context_parallel
from attnscope.train.settings import Settings

Result = TypeVar("Result")
POLL = 0.2  # seconds between two looks at a note
MISSING_SECONDS = 5.0
"""How long ranks wait for each other to report that they have timed out."""
TIMED_OUT = "timed out"
set_group_timeout = getattr(distributed_c10d, "set_timeout", None) or distributed_c10d._set_pg_timeout
"""Public from torch 2.15 on, and the private one deprecated since."""


@dataclass(frozen=True)
class Ranks:
    """The process group, as one of its ranks sees it."""

    rank: int
    world_size: int
    device: torch.device
    tensor_parallel_size: int = 1
    context_parallel_size: int = 1
    shard_mesh: DeviceMesh | None = None
    """The mesh (data x context, tensor) that parameters are sharded over; None for one rank."""
    context_group: dist.ProcessGroup | None = None
    store: Any = None
    """The key-value store of the process group."""
    checkpoint_group: Any = None
    """A second group of all ranks, for asynchronous checkpoints."""
    training_groups: tuple[dist.ProcessGroup | None, ...] = (None,)
    """All other groups that this rank belongs to; None is that of all ranks."""
    start_timeout_seconds: float = 0.0
    step_timeout_seconds: float = 0.0

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes and prints."""
        return self.rank == 0

    @property
    def num_replicas(self) -> int:
        """The number of groups of ranks that read different tokens."""
        return self.world_size // self.tensor_parallel_size

    @property
    def replica(self) -> int:
        """The index of the group that this rank belongs to."""
        return self.rank // self.tensor_parallel_size

    def shard(self, model: nn.Module) -> nn.Module:
        """Shard the parameters of a model over the ranks, in place."""
        if self.shard_mesh is None:
            return model.to(self.device)
        if not isinstance(model, Decoder):
            raise UnsupportedError(f"{type(model).__name__} trains on one rank; over several, a Decoder does")
        model.to(self.device)
        if self.tensor_parallel_size > 1:
            apply_tensor_parallel(model, self.shard_mesh["tensor"])
        mesh = self.shard_mesh["replica"]  # also where it has one rank: then all weights are of one kind
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def local_samples(self, first: int, count: int) -> range:
        """The samples that this rank reads, of `count` samples from `first` on."""
        data, mine = self.num_replicas // self.context_parallel_size, self.replica // self.context_parallel_size
        return range(first + mine * (count // data), first + (mine + 1) * (count // data))

    def local_batch(self, batch: Batch) -> Batch:
        """The positions of a batch that this rank reads, on its device; `document_ids` keeps all positions."""
        if self.context_parallel_size > 1:
            shards = ContextShards(batch.input_ids.shape[1], self.context_parallel_size)
            rank = dist.get_rank(self.context_group)
            positions = (
                torch.arange(shards.sequence_length).expand_as(batch.input_ids)
                if batch.position_ids is None
                else batch.position_ids
            )
            mine = (shards.take(whole, rank, 1) for whole in (batch.input_ids, batch.targets, positions))
            batch = batch._replace(**dict(zip(("input_ids", "targets", "position_ids"), mine, strict=True)))
        there = {name: part.to(self.device) for name, part in batch._asdict().items() if part is not None}
        return batch._replace(**there)

    def attention_context(self, length: int) -> AbstractContextManager[object]:
        """A context in which `attend` attends to the positions of all ranks."""
        if self.context_parallel_size == 1:
            return nullcontext()
        assert self.context_group is not None
        return context_parallel(ContextShards(length, self.context_parallel_size), self.context_group)

    def set_gradient_sync(self, model: nn.Module, is_last: bool) -> None:
        """Reduce gradients over ranks in the next backward pass only if it is the last one of a step."""
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(is_last)

    def sum_over_ranks(self, *numbers: float) -> list[float]:
        """The sums of numbers over all groups of ranks that read different tokens."""
        if self.world_size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return (total / self.tensor_parallel_size).tolist()  # the ranks of one layer have counted the same tokens

    @contextmanager
    def step_timeout(self, *, enabled: bool) -> Iterator[None]:
        """Wait for other ranks only as long as within a step."""
        if self.world_size == 1 or not enabled:
            yield
            return
        self._set_timeout(self.step_timeout_seconds)
        yield
        self._set_timeout(self.start_timeout_seconds)

    def _set_timeout(self, seconds: float) -> None:
        for group in self.training_groups:
            set_group_timeout(timedelta(seconds=seconds), group)

    def run_on_first(self, make: Callable[[], Result]) -> Result | None:
        """Call a function on rank 0, while the others wait without a timeout.

        Returns:
            Its result on rank 0, and None on the others.

        Raises:
            SettingError: The function raised an error; all ranks raise it.
        """
        if self.world_size == 1:
            return make()
        made, refused = None, ""
        if self.is_first:
            try:
                made = make()
            except AttnScopeError as error:
                refused = str(error) or "refused"
            self.store.set("done", refused)
        while not self.store.check(["done"]):
            time.sleep(POLL)
        refused = self.store.get("done").decode()
        dist.barrier()  # nobody leaves before all have read: the first rank may take the store with it
        if refused:
            raise SettingError(refused)
        return made

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def first_text(self, text: str) -> str:
        """The first text that is not empty on any rank, on all ranks."""
        if self.world_size == 1:
            return text
        texts = [""] * self.world_size
        dist.all_gather_object(texts, text, group=self.checkpoint_group)
        return next(filter(None, texts), "")

    def reshard(self, model: nn.Module) -> None:
        """Free the gathered parameters after a pass without gradients."""
        if isinstance(model, FSDPModule):
            model.reshard()

    def gather_parameters(self, model: nn.Module) -> dict[str, Tensor]:
        """All parameters, unsharded, on the CPU of rank 0; all ranks must call this, and others get an empty dict."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=self.world_size > 1)
        weights: dict[str, Any] = get_model_state_dict(model, options=options)
        orders = {name: fused_row_order(model, name, self.tensor_parallel_size) for name in weights}
        return {
            name: weight if (order := orders[name]) is None else weight[order.argsort()]
            for name, weight in weights.items()
        }


@contextmanager
def init_ranks(settings: Settings) -> Iterator[Ranks]:
    """Start the process group of torchrun, or one of this process alone.

    Raises:
        SettingError: The number of ranks does not fit the settings, or there is a process group already.
    """
    count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if count % (settings.tensor_parallel_size * settings.context_parallel_size):
        raise SettingError(
            f"the number of ranks must be a multiple of tensor_parallel_size x context_parallel_size = "
            f"{settings.tensor_parallel_size} x {settings.context_parallel_size}, got {count}; start them with "
            f"torchrun --nproc-per-node {settings.tensor_parallel_size * settings.context_parallel_size}"
        )
    rows, data = (
        settings.batch_size // settings.gradient_accumulation_steps,
        count // (settings.tensor_parallel_size * settings.context_parallel_size),
    )
    if rows % data:
        raise SettingError(
            f"batch_size / gradient_accumulation_steps must be a multiple of the data-parallel ranks, got {rows} "
            f"sequences over {data} ranks; change batch_size or gradient_accumulation_steps"
        )
    if dist.is_initialized():
        raise SettingError("train: this process belongs to a process group already, and a run starts its own")
    is_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    # It warns at every start that parameters which are sharded twice are gathered by two calls.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
    timeout = timedelta(seconds=settings.start_timeout_seconds)
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage] - documented, and in no list of names
    if count > 1:
        store, _, _ = next(rendezvous("env://", timeout=timeout))
        store = dist.PrefixStore(agree_on_restart(store, rank, count), store)  # pyright: ignore[reportPrivateImportUsage] - likewise
    hook = sys.excepthook  # torch wraps it at each start, to name the rank, and never unwraps it
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=timeout)
    try:
        files = dist.new_group(backend="gloo", timeout=timeout)
        ranks = Ranks(
            rank=rank,
            world_size=count,
            device=device,
            store=store,
            checkpoint_group=files,
            start_timeout_seconds=settings.start_timeout_seconds,
            step_timeout_seconds=settings.step_timeout_seconds,
        )
        yield ranks if count == 1 else with_device_meshes(ranks, settings)
    finally:
        dist.destroy_process_group()
        if count == 1:
            sys.excepthook = hook


def agree_on_restart(store: Any, rank: int, count: int) -> str:
    """A prefix of keys in the store that is unique to these processes, and on which all of them agree.

    After a rank was killed, torchrun restarts all ranks with the same store, where gloo would find the addresses of the
    old processes. So each process sets a random mark, rank 0 lists the marks of all ranks, and a list is valid when
    every process has found its own mark in it. A list with the mark of an old process never becomes valid; rank 0
    writes it again until the new process has replaced the mark.
    """
    mark, seen = uuid4().hex, ""
    store.set(f"mark {rank}", mark)
    while not seen or store.add(seen, 0) < count:
        if rank == 0:
            store.set("marks", " ".join(store.get(f"mark {each}").decode() for each in range(count)))
        marks = store.get("marks")
        name = sha256(marks).hexdigest()
        if mark in marks.decode() and name != seen:
            store.add(seen := name, 1)
        time.sleep(0.01)
    return seen


def with_device_meshes(ranks: Ranks, settings: Settings) -> Ranks:
    """The ranks with their device meshes and the group of context parallelism."""
    kind, tensor, context = ranks.device.type, settings.tensor_parallel_size, settings.context_parallel_size
    num_replicas = ranks.world_size // tensor
    spread = init_device_mesh(kind, (num_replicas, tensor), mesh_dim_names=("replica", "tensor"))
    parts = (num_replicas // context, context, tensor)
    reading = init_device_mesh(kind, parts, mesh_dim_names=("data", "context", "tensor"))
    groups = (None, *spread.get_all_groups(), *reading.get_all_groups())
    return replace(
        ranks,
        tensor_parallel_size=tensor,
        context_parallel_size=context,
        shard_mesh=spread,
        context_group=reading["context"].get_group(),
        training_groups=groups,
    )


@contextmanager
def name_missing_ranks(ranks: Ranks) -> Iterator[None]:
    """Turn a timeout of communication into an error that names the ranks that did not answer."""
    try:
        yield
    except RuntimeError as error:
        if ranks.world_size == 1:
            raise
        is_timeout = "timed out" in str(error).lower()
        missing = find_missing_ranks(ranks, seconds=MISSING_SECONDS if is_timeout else 0.0)
        if not is_timeout:  # most often, a rank that was killed has closed its connections
            raise
        named = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing)) or '(unknown)'}"
        raise SettingError(
            f"train: {named} of {ranks.world_size} did not answer in time, so rank {ranks.rank} has ended; if it was "
            "only slow, increase step_timeout_seconds (within a step) or start_timeout_seconds (else)"
        ) from error


def find_missing_ranks(ranks: Ranks, *, seconds: float) -> list[int]:
    """The ranks that do not report a failure of communication within some seconds, as this one does."""
    deadline = time.monotonic() + seconds
    try:
        ranks.store.set_timeout(timedelta(seconds=max(seconds, 1.0)))
        ranks.store.set(f"{TIMED_OUT} {ranks.rank}", "")
        while True:
            missing = [rank for rank in range(ranks.world_size) if not ranks.store.check([f"{TIMED_OUT} {rank}"])]
            if not missing or time.monotonic() >= deadline:
                return missing
            time.sleep(POLL)
    except RuntimeError:  # without torchrun, the store is in the process of the first rank
        return [0]


def apply_tensor_parallel(model: Decoder, mesh: DeviceMesh) -> None:
    """Shard the heads and the feed-forward network of every block over the ranks of a mesh, in place."""
    config, ranks = model.config, mesh.size()
    num_kv_heads = config.num_kv_heads or config.num_heads
    if config.qk_norm:
        raise UnsupportedError("tensor parallel: this model has norms that all heads share (qk_norm); use context")
    sizes = {
        "num_heads": config.num_heads,
        "num_kv_heads": num_kv_heads,
        "intermediate_size": config.intermediate_size,
    }
    for name, size in sizes.items():
        if size % ranks:
            raise SettingError(f"tensor parallel: {name} is {size}, which does not divide over {ranks} ranks")
    plan = {
        "attention.query_key_value": ColwiseParallel(),
        "attention.output": RowwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(),
    }
    for name, parameter in model.named_parameters():
        order = fused_row_order(model, name, ranks)
        if order is not None:
            parameter.data = parameter.data[order]
    for block in model.blocks:
        assert isinstance(block, Block)
        parallelize_module(block, mesh, plan)
        block.attention.num_heads //= ranks
        block.attention.num_kv_heads //= ranks


def interleave_shards(parts: Sequence[int], ranks: int) -> Tensor:
    """The order of rows in which equal chunks, one for each rank, have equal chunks of every part.

    >>> interleave_shards((4, 2), 2)
    tensor([0, 1, 4, 2, 3, 5])
    """
    numbered = torch.arange(sum(parts)).split(list(parts))
    return torch.cat([part.chunk(ranks)[rank] for rank in range(ranks) for part in numbered])


def fused_row_order(model: nn.Module, name: str, ranks: int) -> Tensor | None:
    """The order of the rows of a parameter that fuses several projections, sharded over so many ranks.

    None if the rows are not reordered.
    """
    if ranks == 1 or not isinstance(model, Decoder):
        return None
    config = model.config
    head_dim = config.head_dim or config.hidden_size // config.num_heads
    num_kv_heads = config.num_kv_heads or config.num_heads
    layer = name.rpartition(".")[0]
    if layer.endswith("attention.query_key_value"):
        return interleave_shards([count * head_dim for count in (config.num_heads, num_kv_heads, num_kv_heads)], ranks)
    if layer.endswith("feed_forward.up") and config.gated:
        return interleave_shards((config.intermediate_size, config.intermediate_size), ranks)
    return None


def clip_grad_norm(parameters: Sequence[nn.Parameter], longest: float) -> float:
    """Clip the norm of all gradients, and return it as it was before.

    torch.nn.utils sums only over parameters with the same sharding, and these have different ones.

    Args:
        parameters: Parameters with gradients.
        longest: The largest norm; 0 to clip nothing.
    """
    alike: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        cut = (parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else None
        if parameter.grad is not None:
            alike.setdefault(cut, []).append(parameter)
    gradients = [[parameter.grad for parameter in some if parameter.grad is not None] for some in alike.values()]
    norms = [get_total_norm(some) for some in gradients]
    norm = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).norm()
    if longest:
        for some in alike.values():
            clip_grads_with_norm_(some, longest, norm)
    return float(norm)
