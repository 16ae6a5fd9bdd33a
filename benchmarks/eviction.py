"""Eviction from the KV cache: policies and budgets on many passages, and whether lost weight predicts lost quality.

A passage is a context and its continuation. Every policy keeps the same number of key-value pairs. Standard errors are
over passages. The lost weight is the mean attention weight that queries of the continuation had on evicted pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.bench import Size
from attnscope.bench.report import Table
from attnscope.cache import POLICIES, EvictionReport, measure_eviction
from attnscope.labs import reference_text
from attnscope.recording import load
from benchmarks.peers import SMOLLM2

MODEL = SMOLLM2[0]
SHARES = (0.5, 0.25, 0.1)


class Row(NamedTuple):
    """The numbers of a policy and budget in one passage."""

    change: float
    kl: float
    lost: float
    found: float


def tables(size: Size, step: Callable[[str], None], model: str | None = None) -> Iterator[Table]:
    """Measure all passages; yield the table of policies and budgets, and the correlations."""
    passages, context, continuation = size.choose(small=(2, 128, 16), full=(20, 256, 32))
    decoder, tokenizer = load(MODEL if model is None else model, dtype=torch.float32)
    ids = tokenizer.encode(reference_text(), add_special_tokens=False)
    reports = []
    for number in range(passages):
        step(f"passage {number + 1} of {passages}")
        start = number * (len(ids) // passages)
        text = ids[start : start + context + continuation]
        reports.append(
            measure_eviction(
                decoder,
                text,
                tokenizer,
                keep=SHARES,
                continuation=continuation,
                needles=2,
                seed=number,
                progress=False,
            )
        )
    about = (
        f"{(model or MODEL).rpartition('/')[2]}, float32: {passages} passages of the Python language "
        f"reference, a context of {context:,} tokens with two needles, and {continuation} tokens of continuation. "
        "Budgets count key-value pairs, the same number in each head."
    )
    yield quality(reports, about)
    yield correlations(reports)


def quality(reports: Sequence[EvictionReport], about: str) -> Table:
    """The table of policies and budgets."""
    table = Table(
        title="policies and budgets",
        comparison=f"{about} Mean ± standard error over passages.",
        columns=("policy", "kept pairs", "change of the loss, nats", "KL, nats", "lost weight", "needles found"),
    )
    losses = torch.tensor([report.loss for report in reports])
    found = torch.cat([report.found for report in reports]).float()
    table.add("all pairs", "100%", f"loss {with_error(losses)}", "", "", f"{found.mean():.0%}")
    for at, result in enumerate(reports[0].results):
        rows = [row_of(report, at) for report in reports]
        change, kl, lost = (torch.tensor([getattr(row, name) for row in rows]) for name in ("change", "kl", "lost"))
        share = sum(row.found for row in rows) / len(rows)
        cells = (with_error(change, "+"), with_error(kl), with_error(lost), f"{share:.0%}")
        table.add(result.kept.policy, f"{result.kept.fraction:.0%}", *cells)
    return table


def row_of(report: EvictionReport, at: int) -> Row:
    """The numbers of one result of a passage."""
    result = report.results[at]
    lost, found = float(result.lost["lost"].mean()), float(result.found.float().mean())
    return Row(result.loss - report.loss, float(result.kl.mean()), lost, found)


def correlations(reports: Sequence[EvictionReport]) -> Table:
    """How well the lost weight predicts the change of the loss and the divergence."""
    table = Table(
        title="correlation of lost weight with quality",
        comparison="Rank correlation (Spearman) of the mean lost weight of all heads with the change of the loss and "
        "with the KL divergence: over all passages, policies and budgets; over policies within each budget (means over "
        "passages); and over passages within each policy and budget (mean of all, ± standard error).",
        columns=("over", "points", "loss", "KL"),
    )
    rows = torch.tensor([[row_of(report, at)[:3] for at in range(len(report.results))] for report in reports])
    change, kl, lost = rows.unbind(-1)
    table.add("everything", f"{lost.numel()}", *(f"{spearman(lost.flatten(), y.flatten()):.2f}" for y in (change, kl)))
    for number, share in enumerate(SHARES):
        some = slice(number, None, len(SHARES))
        cells = (f"{spearman(lost[:, some].mean(0), y[:, some].mean(0)):.2f}" for y in (change, kl))
        table.add(f"policies, {share:.0%} kept", f"{len(POLICIES)}", *cells)
    if len(reports) > 2:
        cells = []
        for y in (change, kl):
            each = [spearman(lost[:, at], y[:, at]) for at in range(lost.shape[1])]
            cells.append(with_error(torch.tensor([value for value in each if value == value])))
        table.add("passages, one policy and budget", f"{len(reports)}", *cells)
    return table


def spearman(x: Tensor, y: Tensor) -> float:
    """The rank correlation; NaN if one of both is constant.

    >>> spearman(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([2.0, 3.0, 4.0]))
    1.0
    """
    ranks = torch.stack([values.argsort().argsort().double() for values in (x, y)])
    return round(float(torch.corrcoef(ranks)[0, 1]), 6)


def with_error(values: Tensor, sign: str = "") -> str:
    """The mean and its standard error."""
    return f"{float(values.mean()):{sign}.3f} ± {float(values.std()) / len(values) ** 0.5:.3f}"
