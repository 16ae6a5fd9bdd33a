"""The published approximations are what they are said to be, and the benchmark finds their errors."""

from __future__ import annotations

import math

import torch

from attnscope.attention import Causal
from attnscope.bench import watch
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording.call import Call


def make_call() -> Call:
    query, key = torch.randn(1, 4, 300, 8), torch.randn(1, 2, 300, 8)
    return Call(query=query, key=key, value=None, mask=Causal(), scale=None)


def test_the_norm_bound_and_the_unmasked_logit_are_too_large_and_samples_too_small() -> None:
    call = make_call()
    exact = watch.brute_force(call)
    assert (watch.norm_bound(call) > exact).all()
    assert (watch.unmasked(call) >= exact).all()
    assert (watch.sampled(call) <= exact).all()
    assert not torch.equal(watch.sampled(call), exact)


def test_a_planted_logit_is_missed_by_samples_and_found_without_the_mask() -> None:
    call = make_call()
    call.query[0, :, 7] = 9.0
    call.key[0, :, 3] = 9.0  # allowed, and not one of the sampled queries 0, 2, 4, ...
    assert math.isclose(watch.brute_force(call).max().item(), 81 * 8 / math.sqrt(8), rel_tol=1e-6)
    assert watch.sampled(call).max() < 100
    call.key[0, :, 200] = 90.0  # not allowed for query 7
    assert watch.unmasked(call).max() > 10 * 81 * 8 / math.sqrt(8) - 1


def test_the_table_has_the_exact_way_without_errors() -> None:
    config = DecoderConfig(
        vocab_size=64, max_position_embeddings=64, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64
    )
    table = watch.compare_ways(Decoder(config).train(), torch.randint(64, (1, 60)), is_trained=False)
    assert not table.missed
    rows = {row[0]: row for row in table.rows}
    assert rows["attnscope"][3] == "0 of 8"
    assert float(rows["attnscope"][1]) < 1e-5


def test_costs_are_compared_with_their_bounds() -> None:
    table = watch.cost_table({512: {"plain": 1.0, "not measured": 1.0, "measured": 1.3}}, rounds=1)
    assert table.missed
    assert not watch.cost_table({512: {"plain": 1.0, "not measured": 1.0, "measured": 1.2}}, rounds=1).missed
