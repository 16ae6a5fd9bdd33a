"""Scores of pairs equal their definitions over dense weights, and budgets count pairs alike for all policies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.cache import POLICIES, evicted, recommend_budgets, score_pairs
from attnscope.cache.budgets import later_weights, lost_weight
from attnscope.cache.kept_pairs import PairScores
from attnscope.errors import SettingError, UnsupportedError
from attnscope.heads import HeadTable
from attnscope.models import Decoder
from attnscope.recording import Trace, read, record
from tests.cache.test_eviction import CONTEXT, IDS, LATER, own

GROUP, KV_HEADS, LAYERS = 2, 2, 3


@pytest.fixture(scope="module")
def model() -> Decoder:
    found = own().double()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.mul_(8.0)
    return found


@pytest.fixture(scope="module")
def trace(model: Decoder) -> Trace:
    return read(model, IDS[:, :CONTEXT], progress=False)


@pytest.fixture(scope="module")
def later(model: Decoder) -> Trace:
    """The queries after the context."""
    cache = model.new_cache()
    with torch.no_grad():
        model.features(IDS[:, :CONTEXT], cache=cache)
        with record(model) as found:
            model.features(IDS[:, CONTEXT:], cache=cache)
    return found


def dense(trace: Trace, layer: str) -> Tensor:
    """Attention weights (heads, queries, keys)."""
    return trace[layer].batch(0).to_dense().double()


def test_received_is_the_column_mean_over_the_queries_that_see_a_key(trace: Trace) -> None:
    found = score_pairs(trace, "received", progress=False)
    for name, scores in found.scores.items():
        weights = dense(trace, name)
        means = weights.sum(1) / torch.arange(CONTEXT, 0, -1)
        expected = means.view(KV_HEADS, GROUP, CONTEXT).mean(1)
        torch.testing.assert_close(scores[0], expected, rtol=0, atol=1e-12)


def test_window_is_smoothed_and_keeps_its_own_tokens(trace: Trace) -> None:
    for name, scores in score_pairs(trace, "window", progress=False).scores.items():
        weights = dense(trace, name)[:, -64:, :-64].mean(1)
        padded = F.pad(weights, (2, 2))
        smooth = torch.stack([padded[:, at : at + 5].sum(-1) / 5 for at in range(CONTEXT - 64)], -1)
        torch.testing.assert_close(scores[0, :, :-64], smooth.view(KV_HEADS, GROUP, -1).mean(1), rtol=0, atol=1e-12)
        assert scores[0, :, -64:].isinf().all()


def test_recent_keeps_the_first_four_and_the_last(trace: Trace) -> None:
    kept = score_pairs(trace, "recent", progress=False).keep(10 / CONTEXT)
    for keep in kept.keep.values():
        assert keep[0, 1].nonzero().flatten().tolist() == [0, 1, 2, 3, *range(CONTEXT - 6, CONTEXT)]


def test_norm_and_random_and_expected_are_what_they_say(trace: Trace) -> None:
    name = next(iter(trace))
    call = trace.layer(name).merge_calls()  # pyright: ignore[reportAttributeAccessIssue]
    torch.testing.assert_close(score_pairs(trace, "norm", progress=False).scores[name], -call.key.norm(dim=-1))
    first, again, other = (score_pairs(trace, "random", seed=seed, progress=False).scores[name] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    key, query = call.key[0, 1].double(), call.query[0, 2:4].double()  # the second key-value head and its queries
    weights = []
    for rows in query:
        mean, covariance = rows.mean(0), rows.T.cov(correction=0)
        weights.append((key @ mean / 8**0.5 + (key @ covariance @ key.T).diagonal() / 16).softmax(-1))
    found = score_pairs(trace, "expected", progress=False).scores[name][0, 1]
    torch.testing.assert_close(found, torch.stack(weights).mean(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("by", POLICIES)
@pytest.mark.parametrize("per", ["head", "layer"])
def test_budgets_count_pairs_alike(trace: Trace, by: str, per: str) -> None:
    scores = score_pairs(trace, by, progress=False)
    for share in (1.0, 0.5, 0.29, 0.01):
        kept = scores.keep(share, per=per)  # pyright: ignore[reportArgumentType]
        count = max(1, round(100 * share) * CONTEXT // 100)
        assert {int(keep.sum()) for keep in kept.keep.values()} == {count * KV_HEADS}
        assert kept.num_pairs == count * KV_HEADS * LAYERS
        for name, keep in kept.keep.items():
            if per == "head":
                assert keep.sum(-1).tolist() == [[count] * KV_HEADS]
            inside, outside = scores.scores[name][keep], scores.scores[name][~keep]
            if per == "layer" and len(outside):
                assert inside.min() >= outside.max()


def test_lost_weight_is_the_weight_of_later_queries_on_what_is_gone(trace: Trace, later: Trace) -> None:
    kept = score_pairs(trace, "random", progress=False).keep(0.3)
    table = lost_weight(kept, later_weights(later, CONTEXT))
    expected = []
    for name, keep in kept.keep.items():
        weights = dense(later, name)
        assert weights.shape == (4, LATER, CONTEXT + LATER)
        for head in range(4):
            gone = [key for key in range(CONTEXT) if not keep[0, head // GROUP, key]]
            expected.append(weights[head][:, gone].sum(-1).mean())
    torch.testing.assert_close(table["lost"], torch.stack(expected), rtol=0, atol=1e-12)
    assert table["lost"].max() > 0.1


def test_recommended_budgets_are_the_smallest_that_keep_the_weight(trace: Trace, later: Trace) -> None:
    scores = score_pairs(trace, "received", progress=False)
    budgets = recommend_budgets(scores, later, weight=0.8)
    kept = scores.keep(budgets)
    weights = later_weights(later, CONTEXT)

    def lost_share(pairs: dict[str, Tensor]) -> Tensor:
        parts = []
        for name, keep in pairs.items():
            mean = weights[name][0].double().view(KV_HEADS, GROUP, CONTEXT).mean(1)
            parts.append((mean * ~keep[0]).sum(-1) / mean.sum(-1))
        return torch.cat(parts)

    assert (lost_share(dict(kept.keep)) <= 0.2 + 1e-9).all()
    fewer = HeadTable(budgets.layers, budgets.heads, {"pairs": budgets["pairs"] - 1})
    assert (lost_share(dict(scores.keep(fewer).keep)) > 0.2 - 1e-9).all()
    assert [int(keep.sum()) for keep in kept.keep.values()] == budgets["pairs"].view(LAYERS, 2).sum(1).int().tolist()
    torch.testing.assert_close(budgets["fraction"], budgets["pairs"] / CONTEXT)


def test_budgets_of_heads_can_be_used(model: Decoder, trace: Trace, later: Trace) -> None:
    scores = score_pairs(trace, "received", progress=False)
    kept = scores.keep(recommend_budgets(scores, later, weight=0.999999))
    with torch.no_grad(), evicted(model, kept):
        changed = model(IDS)
    with torch.no_grad():
        torch.testing.assert_close(changed, model(IDS), rtol=0, atol=1e-3)
        assert kept.fraction < 1


def test_mistakes_are_named(trace: Trace, later: Trace, model: Decoder) -> None:
    with pytest.raises(SettingError, match=r"unknown policy 'recieved' \(did you mean 'received'"):
        score_pairs(trace, "recieved")
    scores = score_pairs(trace, "norm", progress=False)
    for share in (0.0, 1.5, -1.0):
        with pytest.raises(SettingError, match="above 0 and at most 1"):
            scores.keep(share)
    with pytest.raises(SettingError, match="per='head' or 'layer'"):
        scores.keep(0.5, per="model")  # pyright: ignore[reportArgumentType]
    budgets = recommend_budgets(scores, later)
    with pytest.raises(SettingError, match="no valid number of pairs"):
        scores.keep(budgets.rows([0, 1]))
    with pytest.raises(SettingError, match="leave out per"):
        scores.keep(budgets, per="layer")
    with pytest.raises(SettingError, match="other layers"):
        scores.keep(HeadTable(("x",), (0,), {"pairs": torch.ones(1)}))
    with pytest.raises(SettingError, match="weight above 0"):
        recommend_budgets(scores, later, weight=0.0)
    with pytest.raises(SettingError, match="more than 64 tokens, got 20"):
        score_pairs(read(model, IDS[:, :20], progress=False), "window")
    with pytest.raises(SettingError, match="no queries and keys"):
        score_pairs(read(model, IDS[:, :20], progress=False, keep="statistics"))


def test_a_sliding_window_cache_is_refused() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        sliding_window=8,
    )
    model: Any = MistralForCausalLM(config).eval()
    kept = score_pairs(read(model, IDS[:, :CONTEXT], progress=False), progress=False).keep(0.5)
    with pytest.raises(UnsupportedError, match="sliding-window cache"), evicted(model, kept):
        model.generate(IDS[:, :CONTEXT], max_new_tokens=9)


def test_ties_are_broken_by_position() -> None:
    scores = PairScores({"a": torch.ones(1, 1, 6)}, {"a": 1}, "same")
    assert scores.keep(0.5).keep["a"].tolist() == [[[True, True, True, False, False, False]]]
