"""`score_heads`: numbers that describe the attention pattern of each head of a trace.

Every score except `concentration` is a mean over queries that may attend to at least two keys and are not padding.
In: a trace. Out: a `HeadTable`. Each layer takes one blockwise pass, without an n x n matrix.
Does not know: models, thresholds. Memory: the statistics of one layer, O(n) per head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.errors import SettingError, ShapeError
from attnscope.heads.labels import assign_labels
from attnscope.heads.rows import LayerRows
from attnscope.heads.table import HeadTable
from attnscope.progress import Progress, report_progress
from attnscope.recording import Trace
from attnscope.recording.layers.statistics import StatisticsLayer

SCORES = {
    "previous": "weight on the previous token",
    "next": "weight on the next token, in models without a causal mask",
    "self": "weight on the query's own token",
    "local": "weight on tokens at most 8 positions away, own token included, in rows that may attend further",
    "sink": "weight on the first token of the text",
    "entropy": "entropy of a row in nats: 0 for a single key, log n for n keys with equal weights",
    "reach": "mean distance in tokens between a query and the keys it attends to, in either direction",
    "induction": "weight on the token after another occurrence of the same token, in rows that have one",
    "duplicate": "weight on other occurrences of the same token, in rows that have one",
    "effective_keys": "effective number of keys per row: 1 / sum of weights^2",
    "evenness": "entropy divided by that of uniform weights: 1 for equal weights, at any sequence length",
    "concentration": "sum of squared shares of the attention that keys receive: 1 if one key receives everything",
    "leakage": "weight on other documents",
}
"""Every score and its definition."""


def score_heads(
    trace: Trace,
    *,
    probe: Trace | None = None,
    documents: Tensor | Sequence[int] | None = None,
    progress: Progress | bool = True,
) -> HeadTable:
    """Score all heads of a trace, and label them.

    Args:
        trace: Any trace: of matrices, of statistics, or of dense attention weights.
        probe: A trace of the same model on the repeated-token probe, from `read_repeated_tokens`. It adds the scores
            `duplicate_probe` and `induction_probe`, which then decide the labels.
        documents: The document number of each token, (tokens,) or (batch, tokens), for `leakage`. If the mask separates
            the documents, each counts as a text.
        progress: False for no progress bar, or a function called with the number of scored and of all layers.

    Returns:
        A table of all heads. Scores that a layer does not have are NaN: those of positions in cross-attention, and
        those of tokens if the trace has no ids. A score that no layer has is left out.

    Raises:
        SettingError: The trace is empty, or the probe has no token ids.
        ShapeError: `documents` does not fit the trace.

    >>> trace = Trace.from_attentions([torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.25, 0.5, 0.25]])[None, None]])
    >>> score_heads(trace, progress=False)["previous"]
    tensor([0.5000], dtype=torch.float64)
    """
    documents = None if documents is None else torch.as_tensor(documents)
    if not len(trace):
        raise SettingError("score_heads: this trace is empty; run the model inside the with block of record first")
    names, heads, rows = [], [], []
    with report_progress(progress, "scoring") as report:
        for layer, name in enumerate(trace):
            scores = _layer_scores(trace, name, documents)
            names += [name] * len(scores)
            heads += trace.layer(name).heads
            rows.append(scores)
            report(layer + 1, len(trace))
    columns = dict(zip(SCORES, torch.cat(rows).unbind(1), strict=True))
    if documents is not None and not _has_values(columns["leakage"]):
        lengths = sorted({layer.shape[3] for layer in trace.layers.values()})
        raise ShapeError(
            f"score_heads: expected one document number per token, got documents {tuple(documents.shape)} for layers "
            f"with {', '.join(f'{length:,}' for length in lengths)} keys"
        )
    columns = {name: column for name, column in columns.items() if _has_values(column)}
    table = HeadTable(tuple(names), tuple(heads), columns)
    if probe is not None:
        found = score_heads(probe, progress=False)
        both = {f"{name}_probe": found.columns[name] for name in ("induction", "duplicate") if name in found.columns}
        if not both:
            raise SettingError(
                "score_heads: the probe has no token ids, or they do not repeat; record it with read_repeated_tokens"
            )
        table = table.join(HeadTable(found.layers, found.heads, both)).with_first_columns(*both)
    return assign_labels(table)


def _has_values(column: Tensor) -> bool:
    return not bool(column.isnan().all())


def _layer_scores(trace: Trace, name: str, documents: Tensor | None) -> Tensor:
    """Compute the scores (heads, scores) of a layer, on the CPU: layers may be on several devices."""
    rows = LayerRows.from_trace(trace, name, documents)
    found = {score: each.mean() for score, each in rows.scores().items()}
    found["concentration"] = _concentration(_received(rows))
    unknown = torch.full_like(found["entropy"], torch.nan)
    return torch.stack([found.get(score, unknown) for score in SCORES], 1)


def _received(rows: LayerRows) -> Tensor:
    """Sum the attention that each key receives from queries that are not padding."""
    received = rows.summary.received
    if rows.is_token.all():
        return received
    if isinstance(rows.layer, StatisticsLayer):
        return torch.full_like(received, torch.nan)
    return (rows.layer.matrix().T @ rows.is_token[..., None].to(received)).squeeze(-1)


def _concentration(received: Tensor) -> Tensor:
    """Sum the squared shares of the attention that keys receive: (heads,), on the CPU."""
    exact = received.cpu().double()
    share = exact / exact.sum(-1, keepdim=True)
    return share.square().sum(-1).mean(0)
