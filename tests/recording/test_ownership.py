"""What was recorded does not change when the model, its caches, its masks or its parameters do."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import StaticCache

from attnscope import ALiBi, Sinks, attend, from_bool
from attnscope.recording import Trace, record
from attnscope.recording.hooks import mask_tensors
from attnscope.recording.layers.recorded import Layer
from tests.recording.zoo import EXHIBITS

BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
IDS = torch.randint(3, 99, (1, 7), generator=torch.Generator().manual_seed(3))


class Calls(nn.Module):
    """Whatever is given, called inside of a module."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self) -> Tensor:
        return self.function()


def recorded(function: Callable[[], Tensor], **options: Any) -> Trace:
    model = Calls(function)
    with torch.no_grad(), record(model, **options) as trace:
        model()
    return trace


def check(trace: Trace, change: Callable[[], object]) -> None:
    before = [trace[name].to_dense().clone() for name in trace]
    change()
    for name, weights in zip(trace, before, strict=True):
        assert torch.equal(trace[name].to_dense(), weights)


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@pytest.mark.parametrize("room", [7, 8, 20])
def test_a_static_cache_is_used_again(name: str, room: int):
    model: Any = BY_NAME[name].build()
    cache = StaticCache(config=model.config, max_cache_len=room)
    with torch.no_grad(), record(model) as trace:
        model(IDS, past_key_values=cache, use_cache=True)

    def use_again() -> None:
        cache.reset()
        with torch.no_grad():
            model(IDS.flip(1), past_key_values=cache, use_cache=True)

    check(trace, use_again)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_queries_keys_masks_and_scores_are_written_to(dtype: torch.dtype | None):
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    allowed = torch.rand(2, 1, 6, 6) > 0.3
    allowed[..., 0] = True
    added, slopes, sinks = torch.randn(1, 4, 6, 6), torch.rand(4), torch.randn(4)
    functions = [
        lambda: F.scaled_dot_product_attention(query, key, key, attn_mask=allowed, enable_gqa=True),
        lambda: F.scaled_dot_product_attention(query, key, key, attn_mask=added, enable_gqa=True),
        lambda: attend(query, key, key, mask=from_bool(attend=allowed), score_mod=ALiBi(slopes) + Sinks(sinks)),
    ]
    traces = [recorded(function, dtype=dtype) for function in functions]
    before = [trace[0].to_dense().clone() for trace in traces]
    for tensor in (query, key, added, slopes, sinks):
        tensor.mul_(3.0)
    allowed.logical_not_()
    for trace, weights in zip(traces, before, strict=True):
        assert torch.equal(trace[0].to_dense(), weights)


def test_parameters_take_a_step():
    model: Any = BY_NAME["gpt-oss"].build()
    with torch.no_grad(), record(model, dtype=torch.bfloat16) as trace:
        model(IDS)

    def step() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5)

    check(trace, step)


def test_masks_that_all_layers_share_are_held_once_and_let_go_with_the_trace():
    def three_layers() -> int:
        allowed = torch.rand(1, 1, 30, 30) > 0.3
        allowed[..., 0] = True
        query = torch.randn(1, 2, 30, 8)

        def call() -> Tensor:
            return F.scaled_dot_product_attention(query, query, query, attn_mask=allowed)

        model = nn.ModuleList(Calls(call) for _ in range(3))
        with record(model) as trace:
            for layer in model:
                layer()
        masks = {id(layer.merge_calls().mask) for layer in trace.layers.values() if isinstance(layer, Layer)}
        assert len(masks) == 1
        return len(mask_tensors._cache)

    gc.collect()
    before = len(mask_tensors._cache)
    assert three_layers() == before + 1
    gc.collect()
    assert len(mask_tensors._cache) == before
