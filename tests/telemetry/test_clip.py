"""QK-clip brings the largest logit to the limit, for layouts that it can prove, and refuses the others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2Model,
    GPT2Config,
    GPT2Model,
    GPTNeoXConfig,
    GPTNeoXModel,
    LlamaConfig,
    LlamaModel,
    Qwen3Config,
    Qwen3Model,
)

from attnscope.errors import AttnScopeError, UnsupportedError
from attnscope.telemetry.watcher import Report, Watch

IDS = torch.randint(64, (2, 20), generator=torch.Generator().manual_seed(1))
SIZES: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


def make_model(family: str) -> Any:
    torch.manual_seed(0)
    if family == "llama":
        return LlamaModel(LlamaConfig(**SIZES, **HEADS, initializer_range=0.5))
    if family == "qwen3":
        return Qwen3Model(Qwen3Config(**SIZES, **HEADS, initializer_range=0.5))
    if family == "gemma2":
        return Gemma2Model(Gemma2Config(**SIZES, **HEADS, initializer_range=0.5, layer_types=["full_attention"] * 2))
    if family == "gpt2":
        return GPT2Model(
            GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, initializer_range=1.0)
        )
    if family == "neox":
        return GPTNeoXModel(GPTNeoXConfig(**SIZES, num_attention_heads=4, initializer_range=0.5))
    return BertModel(BertConfig(**SIZES, num_attention_heads=4, initializer_range=0.5))


def measure_twice(model: nn.Module, limit: float, *, run: Any = None) -> list[Report]:
    """The reports of two steps on the same input; the first one clips."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    reports = []
    with torch.no_grad(), Watch(model, every=1) as watch:
        watch.clip(limit)
        for _ in range(2):
            model(IDS) if run is None else run(model)
            report = watch.step()
            assert report is not None
            reports.append(report)
    return reports


def first_layer(report: Report) -> np.ndarray:
    """The largest logits of the first layer, whose input does not depend on what is clipped."""
    return report.statistics.max_logit[:4]


@pytest.mark.parametrize("family", ["llama", "gpt2", "neox", "bert"])
def test_the_largest_logit_becomes_the_limit(family: str) -> None:
    model = make_model(family)
    with torch.no_grad(), Watch(make_model(family).train(), every=1) as watch:
        watch._model(IDS)
        report = watch.step()
    assert report is not None
    limit = float(np.sort(first_layer(report))[-2]) / 2  # at least two heads are above it
    before, after = measure_twice(model, limit)
    group = 2 if family == "llama" else 1
    largest = np.repeat(first_layer(before).reshape(-1, group).max(1), group)
    expected = first_layer(before) * np.minimum(limit / largest, 1)
    assert np.allclose(first_layer(after), expected, rtol=1e-4)
    clipped = {(one.layer, one.head) for one in before.clipped if one.layer == before.heads[0][0]}
    assert clipped == {head for head, value in zip(before.heads[:4], largest, strict=True) if value > limit}


def test_heads_below_the_limit_keep_the_same_bits() -> None:
    plain, model = make_model("llama"), make_model("llama")
    (before, after) = measure_twice(model, 1e6)
    assert not before.clipped
    assert not after.clipped
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))


def test_rows_of_other_heads_are_not_changed() -> None:
    plain, model = make_model("gpt2"), make_model("gpt2")
    with torch.no_grad():
        model.h[0].attn.c_attn.weight[:, 8:16] *= 20
        plain.h[0].attn.c_attn.weight[:, 8:16] *= 20
    before, _ = measure_twice(model, float(np.sort(before_clip(plain))[-2]) * 1.01)
    assert [(one.layer, one.head) for one in before.clipped if one.layer == "h.0.attn"] == [("h.0.attn", 1)]
    changed = (model.h[0].attn.c_attn.weight != plain.h[0].attn.c_attn.weight).any(0)
    assert changed.nonzero().flatten().tolist() == [*range(8, 16), *range(40, 48)]


def before_clip(model: nn.Module) -> np.ndarray:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad(), Watch(model.train(), every=1) as watch:
        model(IDS)
        report = watch.step()
    assert report is not None
    return first_layer(report)


@pytest.mark.parametrize(("family", "reason"), [("qwen3", "QK norm"), ("gemma2", "softcapping")])
def test_layers_whose_logits_do_not_follow_the_weights_are_refused(family: str, reason: str) -> None:
    model = make_model(family)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnsupportedError, match=reason):
        measure_twice(model, 1.0)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_multihead_attention_and_autocast() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(32, 4, batch_first=True)
    x = torch.randn(2, 10, 32) * 8

    def run(model: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            model.attention(x, x, x)

    before, after = measure_twice(nn.ModuleDict({"attention": attention}), 1.0, run=run)
    assert len(before.clipped) == 4
    assert np.allclose(after.statistics.max_logit, 1.0, rtol=0.02)  # bfloat16


def test_a_kv_cache_in_training_does_no_harm() -> None:
    model = make_model("llama")
    assert model.config.use_cache
    before, after = measure_twice(model, 0.5)
    assert before.clipped
    assert first_layer(after).max() <= 0.5 * (1 + 1e-4)


def test_a_head_whose_logits_are_all_negative_is_left_alone() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True, bias=False)
    x = torch.rand(1, 5, 8) + 1
    with torch.no_grad():
        attention.in_proj_weight.fill_(1.0)
        attention.in_proj_weight[:4] = -1.0  # the queries of head 0
    run = {"run": lambda model: model.attention(x, x, x)}
    before, _ = measure_twice(nn.ModuleDict({"attention": attention}), 1.0, **run)
    assert before.statistics.max_logit[0] < 0
    assert [one.head for one in before.clipped] == [1]


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_limits_are_positive_numbers(limit: float) -> None:
    with Watch(make_model("bert")) as watch, pytest.raises(AttnScopeError, match="limit"):
        watch.clip(limit)


def test_shared_rows_are_refused() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            q = self.both(x).unflatten(-1, (2, 8)).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(q, q, q)

    with pytest.raises(UnsupportedError, match="share"):
        measure_twice(Shared(), 0.1, run=lambda model: model(torch.ones(1, 5, 16)))
