"""Two tensor-parallel ranks, each with its own heads, sum what one process sums; a survey does not start them yet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.models import Decoder, load, load_tokenizer
from attnscope.survey import Settings
from attnscope.survey.corpus.batches import Batch, make_batches
from attnscope.survey.corpus.documents import ShardDocuments
from attnscope.survey.corpus.plan import plan_shards
from attnscope.survey.execution.shard_reader import ShardReader, read_shard
from attnscope.survey.partials.examples import Examples, PassageSample, TopPassages
from attnscope.survey.partials.moments import Moments
from attnscope.survey.partials.partial import PartialResult
from attnscope.train.parallel import apply_tensor_parallel
from tests.survey.random_shards import SUMS
from tests.survey.survey_process import SMALL, write_model, write_text
from tests.train.ranks import LastingRanks, call_in_gloo_group

LAYERS, HEADS, HIDDEN_SIZE = 2, 4, 32
EXCHANGES_NOTHING = "wait_tensor", "wrap_tensor_autograd"
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Of sums, means and extremes: scores are float32, and the all-reduce adds the ranks' outputs in another order."""


class CountBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that collectives of this process take."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it calls this again with plain tensors
        if "c10d" in func.namespace and not func.name().endswith(EXCHANGES_NOTHING):
            self.bytes += args[0].nbytes
        return func(*args, **(kwargs or {}))

    def per_token(self, batch: Batch) -> float:
        return self.bytes / batch.ids.numel()


def read(model: str, text: str, dtype: torch.dtype) -> tuple[PartialResult, float, float]:
    """Read a text as one shard with the heads of this process; bytes per token exchanged without and with recording."""
    settings = Settings(model=model, sources=(text,), **{**SMALL, "shard_bytes": 2**20})
    decoder = load(model).to(dtype)
    assert isinstance(decoder, Decoder)
    if dist.is_initialized():
        apply_tensor_parallel(decoder, init_device_mesh("cpu", (dist.get_world_size(),)))
    reader = ShardReader(decoder, load_tokenizer(model), settings)
    (shard,) = plan_shards(settings).shards
    found = read_shard(shard, reader)
    passages = reader.splitter.split(ShardDocuments(shard, settings))
    batch = next(each for each in make_batches(passages, settings, pack=False) if isinstance(each, Batch))
    with CountBytes() as plain, torch.inference_mode():
        decoder.features(batch.ids)
    with CountBytes() as recorded:
        reader.record(batch)
    return found, plain.per_token(batch), recorded.per_token(batch)


def concatenate_heads(parts: list[PartialResult]) -> PartialResult:
    """The partial result of all heads, from those of ranks that have read the same shard with consecutive heads."""
    per_rank = HEADS // len(parts)
    owners = np.repeat(np.arange(len(parts)), len(parts[0].layers))
    layers = [layer for part in parts for layer in part.layers]
    heads = np.concatenate([part.heads for part in parts]) + per_rank * owners
    order = sorted(range(len(layers)), key=lambda row: (layers[row], heads[row]))
    moments = [np.concatenate(arrays)[order] for arrays in zip(*(part.moments for part in parts), strict=True)]
    tops = [np.concatenate(arrays)[order] for arrays in zip(*(part.examples.top for part in parts), strict=True)]
    samples = [part.examples.sample for part in parts]
    assert all(np.array_equal(samples[0].passages, other.passages) for other in samples)  # it depends on their ids only
    means = np.concatenate([sample.means for sample in samples], 1)[:, order]
    passages = {number: passage for part in parts for number, passage in part.examples.passages.items()}
    return replace(
        parts[0],
        layers=tuple(layers[row] for row in order),
        heads=tuple(heads[order].tolist()),
        moments=Moments(*moments),
        examples=Examples.select(
            TopPassages(*tops), PassageSample(samples[0].priorities, samples[0].passages, means), passages
        ),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_two_ranks_sum_what_one_process_sums_and_exchange_nothing_more_than_the_model(
    ranks: LastingRanks, tmp_path: Path, dtype: torch.dtype
) -> None:
    model = str(
        write_model(tmp_path / "model", num_layers=LAYERS, num_heads=HEADS, num_kv_heads=2, hidden_size=HIDDEN_SIZE)
    )
    text = str(write_text(tmp_path / "text.txt", 6000))
    expected, *_ = read(model, text, dtype)
    answers = ranks.run(partial(call_in_gloo_group, read, model, text, dtype), 2)
    for _, plain, recorded in answers:
        assert plain == recorded == 2 * LAYERS * HIDDEN_SIZE * dtype.itemsize  # after attention and feed-forward
    parts = [part for part, _, _ in answers]
    assert [part.heads for part in parts] == [(0, 1) * LAYERS] * 2
    found = concatenate_heads(parts)
    assert found.moments.counts.sum() > 100_000
    for name in ("layers", "heads", "tokens", "passages", "documents", "digests", "problems"):
        assert getattr(found, name) == getattr(expected, name), name
    for name in ("counts", "passages", "squared_counts"):
        assert np.array_equal(getattr(found.moments, name), getattr(expected.moments, name)), name
    for name in (*SUMS, "minima", "maxima"):
        mine, others = getattr(found.moments, name), getattr(expected.moments, name)
        np.testing.assert_allclose(mine, others, rtol=ROUNDING[dtype], atol=ROUNDING[dtype], err_msg=name)
    moved = np.abs(found.moments.histograms - expected.moments.histograms).sum() / 2
    assert np.array_equal(found.moments.histograms.sum(1), expected.moments.histograms.sum(1))
    assert moved <= (0 if dtype == torch.float64 else 1e-4 * expected.moments.counts.sum())
    one, other = found.examples.sample, expected.examples.sample
    assert np.array_equal(one.passages, other.passages)
    np.testing.assert_allclose(one.means, other.means, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
