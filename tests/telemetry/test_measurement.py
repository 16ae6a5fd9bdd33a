"""Measurements equal brute force in fp64, and merge as if all calls had been one."""

from __future__ import annotations

import math

import pytest
import torch

from attnscope.attention import Causal, Full, Padding, Sinks
from attnscope.recording.call import Call
from attnscope.telemetry.measurement import ENTROPY_BIN, Measurement, measure, merge
from attnscope.telemetry.reduction import decode, encode


def make_call(batch: int = 3, seed: int = 0, **options: object) -> Call:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, 4, 20, 8, generator=generator) * 2
    key = torch.randn(batch, 2, 20, 8, generator=generator)
    return Call(**{"query": query, "key": key, "value": None, "mask": Causal(), "scale": None, **options})


def brute_force(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and weights of all cells in fp64, (batch, heads, queries, keys)."""
    key = call.key.double().repeat_interleave(2, 1)
    logits = call.query.double() @ key.mT * call.query.shape[-1] ** -0.5
    queries, keys = torch.arange(20)[:, None], torch.arange(20)[None]
    sizes = torch.Size((call.query.shape[0], 4, 20, 20))
    logits = logits.masked_fill(~call.mask.allows(queries, keys, call.matrix()._source.sizes).expand(sizes), -math.inf)
    return logits, logits.softmax(-1).nan_to_num(0.0)


@pytest.mark.parametrize("mask", [Causal(), Full(), Causal() & Padding([20, 11, 0])], ids=str)
def test_a_measurement_equals_brute_force(mask: object) -> None:
    call = make_call(mask=mask)
    found, (logits, weights) = measure(call), brute_force(call)
    counted = (logits > -math.inf).any(-1)
    assert torch.allclose(found.maxima.logit.double(), logits.amax((0, 2, 3)), rtol=1e-6)
    for head in range(4):
        place = [int(part[head]) for part in found.place[1:]]
        assert math.isclose(logits[place[0], head, place[1], place[2]], logits[:, head].max(), rel_tol=1e-6)
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    assert torch.equal(found.sums.rows, counted.sum((0, 2)).double())
    assert torch.allclose(found.sums.entropy, (entropy * counted).sum((0, 2)), rtol=1e-5)
    assert torch.allclose(found.sums.first_weight, weights[..., 0].sum((0, 2)), rtol=1e-5)
    assert torch.allclose(
        found.sums.effective_keys, (1 / weights.square().sum(-1)).masked_fill(~counted, 0).sum((0, 2)), rtol=1e-5
    )
    assert torch.equal(found.sums.entropy_counts.sum(-1), found.sums.rows)
    low = ((entropy < ENTROPY_BIN) & counted).sum((0, 2)).double()
    assert torch.equal(found.sums.entropy_counts[:, 0], low)
    norms = call.query.norm(dim=-1).amax((0, 2)), call.key.norm(dim=-1).amax((0, 2)).repeat_interleave(2)
    assert torch.allclose(found.maxima.query_norm, norms[0])
    assert torch.allclose(found.maxima.key_norm, norms[1])


def test_positions_are_those_in_the_sequence() -> None:
    whole = make_call(batch=1)
    last = Call(query=whole.query[:, :, -1:], key=whole.key, value=None, mask=Causal(), scale=None, row=19)
    assert measure(last).place.query.tolist() == [19] * 4


def test_merging_two_calls_equals_one_call_of_both() -> None:
    whole = make_call(batch=4)
    halves = [make_call(batch=4, query=whole.query[part], key=whole.key[part]) for part in (slice(2), slice(2, 4))]
    first, second = map(measure, halves)
    second = second._replace(place=second.place._replace(sequence=second.place.sequence + 2))
    merged, expected = merge(first, second), measure(whole)
    for name in ("maxima", "place", "sums"):
        for one, other in zip(getattr(merged, name), getattr(expected, name), strict=True):
            assert torch.allclose(one, other)


def test_sinks_take_weight_and_leave_logits() -> None:
    plain, sinks = measure(make_call()), measure(make_call(score_mod=Sinks(torch.full((4,), 2.0))))
    assert torch.allclose(plain.maxima.logit, sinks.maxima.logit)
    assert (sinks.sums.first_weight < plain.sums.first_weight).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_counted_and_not_hidden(bad: float) -> None:
    call = make_call()
    call.query[1, 2, 5, 0] = bad
    found = measure(call)
    assert found.sums.not_finite.tolist() == [0, 0, 1, 0]
    assert found.maxima.logit.isnan().tolist() == [False, False, True, False]
    merged: Measurement = merge(found, measure(make_call(seed=1)))
    assert merged.maxima.logit.isnan().tolist() == [False, False, True, False]


def test_the_order_of_encoded_numbers_is_that_of_the_numbers() -> None:
    values = torch.tensor([-math.inf, -3.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, math.inf, math.nan])
    encoded = encode(values, 5)
    assert (encoded.diff() > 0).all()
    assert torch.equal(decode(encoded)[:-1], values[:-1])
    assert decode(encoded)[-1].isnan()
    assert (encode(values, 0) > encode(values, 1)).all()
    assert encode(torch.tensor([-math.nan]), 0) == encode(torch.tensor([math.nan]), 0)
