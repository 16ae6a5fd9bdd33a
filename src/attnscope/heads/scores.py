"""`score_heads`: what each head of a trace does, as a row of numbers.

Every score is a mean over the queries that have a choice: those that may see at least two keys, and that are no
padding. In: a trace. Out: a `HeadTable`. Each layer is walked once, and no n x n matrix is built.
Does not know: models, thresholds. Memory: the statistics of one layer, O(n) a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.errors import SettingError, ShapeError
from attnscope.heads.labels import labelled
from attnscope.heads.rows import LayerRows
from attnscope.heads.table import HeadTable
from attnscope.recording import Trace
from attnscope.recording.layers.statistics import StatisticsLayer
from attnscope.recording.progress import Progress, report_progress

SCORES = {
    "previous": "weight on the token before",
    "next": "weight on the token after, in models that look both ways",
    "self": "weight on the query's own token",
    "local": "weight on tokens at most 8 away, its own included, where others can be seen",
    "sink": "weight on the first token of the text",
    "entropy": "nats of a row: 0 is one key, log n is n keys alike",
    "reach": "how many tokens away a row looks, on either side",
    "induction": "weight on what came after the same token elsewhere, where there is any",
    "duplicate": "weight on other places of the same token, where there are any",
    "effective_keys": "how many keys a row spreads over: 1 / sum of weights^2",
    "evenness": "entropy as a share of that of equal weights: 1 is all keys alike, however many there are",
    "concentration": "the chance that two shares of attention fall on the same key: 1 is one key for all queries",
    "leakage": "weight on other documents",
}
"""Every score and what it is."""


def score_heads(
    trace: Trace,
    *,
    probe: Trace | None = None,
    documents: Tensor | Sequence[int] | None = None,
    progress: Progress | bool = True,
) -> HeadTable:
    """All scores of all heads, with labels.

    `probe` is a trace of the same model over `probe_ids`: from it come `duplicate_probe` and `induction_probe`, which
    labels are then given by. `documents` (tokens,) or (batch, tokens) numbers the document of each token, for
    `leakage`; if the mask has kept them apart, each is a text of its own. A score that cannot be told is NaN: those of
    positions in cross-attention, those of tokens where the trace has no ids.
    """
    documents = None if documents is None else torch.as_tensor(documents)
    if not len(trace):
        raise SettingError("score_heads: this trace is empty; run the model inside the with block of record first")
    names, heads, rows = [], [], []
    with report_progress(progress, "scoring") as tell:
        for layer, name in enumerate(trace):
            found = _layer_scores(trace, name, documents)
            names += [name] * len(found)
            heads += trace.layer(name).heads
            rows.append(found)
            tell(layer + 1, len(trace))
    columns = dict(zip(SCORES, torch.cat(rows).cpu().unbind(1), strict=True))
    if documents is not None and not _known(columns["leakage"]):
        lengths = sorted({layer.shape[3] for layer in trace.layers.values()})
        raise ShapeError(
            f"score_heads: documents {tuple(documents.shape)} number the tokens of a text, and the layers of this "
            f"trace have {', '.join(f'{length:,}' for length in lengths)} keys; give one a token"
        )
    table = HeadTable(tuple(names), tuple(heads), {name: column for name, column in columns.items() if _known(column)})
    if probe is not None:
        found = score_heads(probe, progress=False)
        both = {f"{name}_probe": found.columns[name] for name in ("induction", "duplicate") if name in found.columns}
        if not both:
            raise SettingError(
                "score_heads: the probe does not tell which tokens it has; record it as read_probe does, on ids that "
                "come twice"
            )
        table = table.joined(HeadTable(found.layers, found.heads, both))
        table = table.leading(*both)
    return labelled(table)


def _known(column: Tensor) -> bool:
    return not bool(column.isnan().all())


def _layer_scores(trace: Trace, name: str, documents: Tensor | None) -> Tensor:
    """(heads, scores) of a layer."""
    rows = LayerRows.of(trace, name, documents)
    found = {score: each.mean() for score, each in rows.scores().items()}
    found["concentration"] = _concentration(_received(rows))
    unknown = torch.full_like(found["entropy"], torch.nan)
    return torch.stack([found.get(score, unknown) for score in SCORES], 1)


def _received(rows: LayerRows) -> Tensor:
    """What each key receives from queries that are no padding."""
    received = rows.summary.received
    if rows.real.all():
        return received
    if isinstance(rows.layer, StatisticsLayer):
        return torch.full_like(received, torch.nan)
    return (rows.layer.matrix().T @ rows.real[..., None].to(received)).squeeze(-1)


def _concentration(received: Tensor) -> Tensor:
    """(heads,): the sum of squared shares of what keys receive."""
    share = received.double() / received.double().sum(-1, keepdim=True)
    return share.square().sum(-1).mean(0)
