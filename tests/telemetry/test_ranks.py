"""Statistics over ranks equal those of one process: DDP, FSDP2, tensor, pipeline and context parallel."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from attnscope import open_trace
from attnscope.errors import UnsupportedError
from attnscope.telemetry.alerts import LargeLogit
from attnscope.telemetry.run_log import read_alerts
from attnscope.telemetry.statistics import HeadStatistics
from attnscope.telemetry.watcher import Report, Watch
from tests.telemetry.test_watcher import make_model
from tests.train.ranks import LastingRanks, call_in_gloo_group

IDS = torch.randint(64, (4, 24), generator=torch.Generator().manual_seed(2))


def step(model: nn.Module, ids: Tensor, watch: Watch) -> Report:
    model(ids, labels=ids).loss.backward()
    report = watch.step()
    assert report is not None
    return report


def on_one_process() -> Report:
    model = make_model(initializer_range=0.3)
    with Watch(model, every=1) as watch:
        return step(model, IDS, watch)


def shard(kind: str, model: Any) -> nn.Module:
    """The model as a rank has it."""
    if kind == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        if kind == "fsdp":
            fully_shard(layer, mesh=mesh)
        else:
            inner: dict[str, Any] = {name: ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")} | {
                "o_proj": RowwiseParallel()
            }
            parallelize_module(layer.self_attn, mesh, inner)
    if kind == "fsdp":
        fully_shard(model, mesh=mesh)
    return model


def on_rank(kind: str, folder: str) -> Report:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = shard(kind, make_model(initializer_range=0.3))
    ids = IDS if kind == "tensor" else IDS.chunk(ranks)[rank]
    with Watch(model, every=1, folder=folder, rules=[LargeLogit(0.0)]) as watch:
        return step(model, ids, watch)


def assert_equal(found: HeadStatistics, expected: HeadStatistics, *, without: tuple[str, ...] = ()) -> None:
    for name, values in expected._asdict().items():
        if name not in ("max_rank", *without):
            assert np.allclose(getattr(found, name), values, rtol=1e-5, equal_nan=True), name


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tensor"])
def test_two_ranks_equal_one_process(ranks: LastingRanks, kind: str, tmp_path: Path) -> None:
    expected = on_one_process()
    reports: list[Report] = ranks.run(partial(call_in_gloo_group, on_rank, kind, str(tmp_path)), 2)
    whole = kind == "tensor"
    for report in reports:
        assert [head for _, head in report.heads] == [head for _, head in expected.heads]
        assert_equal(report.statistics, expected.statistics, without=() if whole else ("max_sequence",))
        sequence = report.statistics.max_sequence + (0 if whole else 2 * report.statistics.max_rank)
        assert np.array_equal(sequence, expected.statistics.max_sequence)
    assert all(map(np.array_equal, reports[0].statistics, reports[1].statistics))
    alerts = list(read_alerts(tmp_path))
    assert len(alerts) == 8
    assert {alert.rank for alert in alerts if alert.trace} == {alert.rank for alert in alerts}
    for alert in alerts:
        if alert.trace is not None:
            assert open_trace(tmp_path / alert.trace).layer(0).heads == (alert.head,)


class Stage(nn.Module):
    """Some layers of a model."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleDict({name: nn.MultiheadAttention(16, 2, batch_first=True) for name in names})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = x + layer(x, x, x)[0]
        return x


def on_stage(rank_layers: list[list[str]], later: list[list[str]] | None = None) -> list[list[tuple[str, int]]]:
    rank = int(os.environ["RANK"])
    found = []
    with torch.no_grad():
        model = Stage(sorted({*rank_layers[rank], *(later or rank_layers)[rank]}))
        with Watch(model.train(), every=1) as watch:
            for names in (rank_layers, later or rank_layers):
                for name in names[rank]:
                    model.layers[name](*[torch.ones(1, 3, 16)] * 3)
                report = watch.step()
                assert report is not None
                found.append(report.heads)
    return found


def test_ranks_with_other_layers_are_put_together(ranks: LastingRanks) -> None:
    found = ranks.run(partial(call_in_gloo_group, on_stage, [["a"], ["b", "c"]]), 2)
    expected = [(f"layers.{name}", head) for name in "abc" for head in (0, 1)]
    assert found == [[expected, expected]] * 2


def refused_later() -> str:
    with pytest.raises(UnsupportedError) as error:
        on_stage([["a"], ["a"]], [["a"], ["a", "b"]])
    return str(error.value)


def test_layers_that_appear_later_are_refused_on_all_ranks(ranks: LastingRanks) -> None:
    messages = ranks.run(partial(call_in_gloo_group, refused_later), 2)
    assert all("did not have in the first measured step" in message for message in messages)


class GatheredKeys(nn.Module):
    """Context parallel: each rank has some queries, and gathers the keys and values of all positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor, start: int) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if dist.is_initialized():
            k, v = (torch.cat(gather(part), 2) for part in (k, v))
        positions = torch.arange(start, start + x.shape[1])[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.arange(k.shape[2]) <= positions)


def gather(part: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part.contiguous())
    return parts


def context_step() -> Report:
    x = torch.randn(2, 30, 16, generator=torch.Generator().manual_seed(4)) * 3
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    length = x.shape[1] // ranks
    model = GatheredKeys().train()
    positions = torch.arange(rank * length, (rank + 1) * length)
    with torch.no_grad(), Watch(model, every=1, positions=positions) as watch:
        model(x[:, rank * length : (rank + 1) * length], rank * length)
        report = watch.step()
    assert report is not None
    return report


def test_context_parallel_with_gathered_keys_equals_one_process(ranks: LastingRanks) -> None:
    expected = context_step()
    for report in ranks.run(partial(call_in_gloo_group, context_step), 2):
        assert_equal(report.statistics, expected.statistics)


class SequenceShards(nn.Module):
    """Attention on DTensors that are sharded over positions, as inside PyTorch's context_parallel."""

    def forward(self, x: Tensor) -> Tensor:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        shard = DTensor.from_local(x, mesh, [Shard(2)])
        return F.scaled_dot_product_attention(shard, shard, shard)


def refused_shards() -> str:
    model = SequenceShards().train()
    with Watch(model, every=1), pytest.raises(UnsupportedError) as error, torch.no_grad():
        model(torch.ones(1, 2, 4, 8))
    return str(error.value)


def test_sequence_shards_whose_keys_are_elsewhere_are_refused(ranks: LastingRanks) -> None:
    for message in ranks.run(partial(call_in_gloo_group, refused_shards), 2):
        assert "DTensor" in message
