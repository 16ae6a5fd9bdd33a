"""Telemetry of training: the exact largest logits beside three published approximations, and the cost of a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from attnscope.bench import Size
from attnscope.bench.record import MODEL, transformers_model
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import race
from attnscope.downloads import find_download
from attnscope.models import Decoder, save
from attnscope.models.published_configs import DECODERS
from attnscope.recording import load, record
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from attnscope.telemetry import Watch

BOUNDS = {512: 1.25, 2048: 1.5}
"""The largest CPU time of a measured step, as a multiple of a plain one, by length."""
EVERY_BOUND = 0.01
EVERY = 50
ROUNDING = 4
"""Measured logits may differ from fp64 by this multiple of the rounding error of fp32."""
SAMPLED_QUERIES = 128


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Compare ways to find the largest logit, and measure the cost of watched steps; yield two tables."""
    length = size.choose(small=256, full=1536)
    lengths, rounds = size.choose(small=((128,), 2), full=(tuple(BOUNDS), 5))
    step("largest logits")
    source = find_download(MODEL)
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        save(Decoder(DECODERS[MODEL]), folder)
        model, tokenizer = load(source or folder, dtype=torch.float32, progress=False)
        ids = text_ids(tokenizer, length) if source else torch.randint(DECODERS[MODEL].vocab_size, (1, length))
        yield compare_ways(model.train(), ids, is_trained=source is not None)
        del model
        costs: dict[int, dict[str, float]] = {}
        trained = transformers_model(Path(folder), torch.float32).train()
        for count in lengths:
            step(f"steps of {count:,} tokens")
            costs[count] = race(step_calls(trained, count), rounds, clock=time.process_time)
    yield cost_table(costs, rounds)


def text_ids(tokenizer: Any, length: int) -> Tensor:
    """Token ids of English text that every installation has: documentation of torch."""
    texts = [getattr(torch.nn, name).__doc__ or "" for name in sorted(dir(torch.nn)) if name[0].isupper()]
    return torch.tensor([tokenizer.encode("\n".join(texts))[:length]])


def compare_ways(model: Any, ids: Tensor, *, is_trained: bool) -> Table:
    """Return the table of the largest logit of each head, found in five ways."""
    with torch.no_grad(), Watch(model, every=1) as watch:
        model(ids)
        report = watch.step()
    assert report is not None
    with torch.no_grad(), record(model) as trace:
        model(ids)
    calls = [layer.merge_calls() for layer in trace.layers.values() if isinstance(layer, Layer)]
    exact = torch.cat([brute_force(call) for call in calls])
    roundings = torch.cat([rounding(call) for call in calls])
    ways = {
        "attnscope": torch.from_numpy(report.statistics.max_logit),
        "bound by norms": torch.cat([norm_bound(call) for call in calls]),
        f"{SAMPLED_QUERIES} sampled queries": torch.cat([sampled(call) for call in calls]),
        "without the causal mask": torch.cat([unmasked(call) for call in calls]),
    }
    table = Table(
        title=f"Largest logit of {len(exact)} heads, {ids.shape[1]:,} tokens",
        comparison=f"{'trained' if is_trained else 'random'} {MODEL} in float32, "
        f"{'documentation of torch' if is_trained else 'random tokens'}; compared with all logits in float64. "
        f"The largest of all heads is {exact.max():.1f}. attnscope must be within {ROUNDING} times the rounding error "
        "of float32.",
        columns=("way", "largest error", "median ratio", "off by more than 1", "largest of all", "rank correlation"),
    )
    for way, found in ways.items():
        errors = (found - exact).abs()
        table.add(
            way,
            f"{errors.max():.2g}",
            f"{(found / exact).median():.2f}x",
            f"{int((errors > 1).sum())} of {len(exact)}",
            f"{found.max():.1f}",
            f"{rank_correlation(found, exact):.2f}",
        )
    if not (ways["attnscope"] - exact).abs().le(ROUNDING * roundings).all():
        table.missed.append("attnscope: a logit differs from float64 by more than rounding")
    return table


def logits_of(call: Call, rows: slice = slice(None)) -> Tensor:
    """All logits of a causal call in fp64, (heads, rows, keys), without the mask."""
    group = call.query.shape[1] // call.key.shape[1]
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
    return call.query[0, :, rows].double() @ call.key[0].double().repeat_interleave(group, 0).mT * scale


def brute_force(call: Call) -> Tensor:
    """The largest logit of each head over all pairs that the causal mask allows, in fp64."""
    logits = logits_of(call)
    return logits.masked_fill_(torch.ones(logits.shape[1:], dtype=torch.bool).triu_(1), -math.inf).amax((1, 2))


def rounding(call: Call) -> Tensor:
    """The rounding error of each head in fp32: of its largest dot product, and of a log-sum-exp over all keys."""
    return torch.finfo(torch.float32).eps * (norm_bound(call) + math.log(call.key.shape[2]))


def norm_bound(call: Call) -> Tensor:
    """The product of the largest norms of a query and of a key, as ms-swift computes it."""
    group = call.query.shape[1] // call.key.shape[1]
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
    queries, keys = (part[0].double().norm(dim=-1).amax(-1) for part in (call.query, call.key))
    return queries * keys.repeat_interleave(group) * scale


def sampled(call: Call) -> Tensor:
    """The largest allowed logit of evenly spaced queries, as the probe of xFormers takes them."""
    stride = max(call.query.shape[2] // SAMPLED_QUERIES, 1)
    logits = logits_of(call, slice(None, None, stride))
    rows = torch.arange(0, call.query.shape[2], stride)[:, None]
    return logits.masked_fill_(torch.arange(logits.shape[2]) > rows, -math.inf).amax((1, 2))


def unmasked(call: Call) -> Tensor:
    """The largest logit of all pairs, as SimpleTuner finds it if the mask is only a causal flag."""
    return logits_of(call).amax((1, 2))


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """The correlation of the ranks of two sets of values (Spearman).

    >>> rank_correlation(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([1.0, 4.0, 5.0]))
    1.0
    """
    ranks = torch.stack([values.argsort().argsort().double() for values in (first, second)])
    return round(float(torch.corrcoef(ranks)[0, 1]), 6)


def step_calls(model: Any, length: int) -> dict[str, Callable[[], object]]:
    """Return forward and backward passes of a step: plain, inside a watch that does not measure, and measured."""
    ids = torch.randint(model.config.vocab_size, (1, length))

    def train() -> None:
        model(ids, labels=ids, use_cache=False).loss.backward()
        model.zero_grad()

    def watched(every: int, done: int) -> None:
        with Watch(model, every=every, step=done) as watch:
            train()
            watch.step()

    return {
        "plain": train,
        "not measured": lambda: watched(EVERY, 1),
        "measured": lambda: watched(1, 0),
    }


def cost_table(costs: dict[int, dict[str, float]], rounds: int) -> Table:
    """Return the table of the cost of a step by length."""
    bounds = ", ".join(f"{bound:g}x at {length:,} tokens" for length, bound in BOUNDS.items())
    table = Table(
        title=f"A training step of {MODEL}",
        comparison="random parameters, float32, transformers with sdpa, one sequence, forward and backward, all 270 "
        f"heads. CPU time, best of {rounds} alternating runs. Bounds of a measured step: {bounds}; with "
        f"every={EVERY}, {EVERY_BOUND:.0%} of the training time.",
        columns=("tokens", "plain", "not measured", "measured", f"every={EVERY}", "bounds kept"),
    )
    for length, seconds in costs.items():
        ratios = {name: value / seconds["plain"] for name, value in seconds.items()}
        share = (ratios["measured"] - 1) / EVERY
        cells = (
            f"{length:,}",
            duration(seconds["plain"]),
            f"{ratios['not measured']:.2f}x",
            f"{ratios['measured']:.2f}x",
            f"{share:+.2%}",
        )
        if length in BOUNDS:
            table.add(*cells, met=ratios["measured"] <= BOUNDS[length] and share <= EVERY_BOUND)
        else:
            table.add(*cells, "")
    return table
