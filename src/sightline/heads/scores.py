"""`score_heads`: what each head of a trace does, as a row of numbers.

Every score is a mean over the queries that have a choice: those that may see at least two keys, and that are no
padding. In: a trace. Out: a `HeadTable`. Each layer is walked once, and no n x n matrix is built.
Does not know: models, thresholds. Memory: the statistics of one layer, O(n) a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sightline.errors import SettingError, ShapeError
from sightline.heads.labels import labelled
from sightline.heads.table import HeadTable
from sightline.heads.visibility import with_mask
from sightline.matrix.summary import NEAR, Summary
from sightline.record import Trace
from sightline.record.files.saving import AnyLayer
from sightline.record.layers.dense import DenseLayer
from sightline.record.layers.recorded import Layer
from sightline.record.layers.summed import SummedLayer
from sightline.record.progress import Progress, told

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
    `leakage`. A score that cannot be told is NaN: those of positions in cross-attention, those of tokens where the
    trace has no ids or holds statistics alone.
    """
    documents = None if documents is None else torch.as_tensor(documents)
    if not len(trace):
        raise SettingError("score_heads: this trace is empty; run the model inside the with block of record first")
    names, heads, rows = [], [], []
    with told(progress, "scoring") as tell:
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
            f"trace have {', '.join(f'{length:,}' for length in lengths)} keys, or statistics alone; give one a token"
        )
    table = HeadTable(tuple(names), tuple(heads), {name: column for name, column in columns.items() if _known(column)})
    if probe is not None:
        found = score_heads(probe, progress=False)
        both = {f"{name}_probe": found.columns[name] for name in ("induction", "duplicate") if name in found.columns}
        if not both:
            raise SettingError(
                "score_heads: the probe does not tell which tokens it has; record it with keep='matrix', as read_probe "
                "does, on ids that come twice"
            )
        table = table.joined(HeadTable(found.layers, found.heads, both))
        table = table.leading(*both)
    return labelled(table)


def _known(column: Tensor) -> bool:
    return not bool(column.isnan().all())


def _layer_scores(trace: Trace, name: str, documents: Tensor | None) -> Tensor:
    """(heads, scores) of a layer."""
    layer = trace.layer(name)
    pairs = _Pairs.of(trace, name, documents)
    if isinstance(layer, SummedLayer):
        summary, pairs = layer.summary(), None
    else:
        matrix = with_mask(layer.weights) if isinstance(layer, DenseLayer) else layer.matrix()
        summary = matrix.summary(1, 1, pairings=pairs.pairings)
    within = _Rows.of(layer, summary)
    found = {
        "entropy": within.mean(summary.entropy),
        "evenness": within.mean(_evenness(summary)),
        "effective_keys": within.mean(summary.effective_keys * summary.mass.square()),
        "sink": within.mean(_on_first_token(layer, summary, within)),
        "concentration": _concentration(_received(layer, summary, within)),
    }
    if not layer.cross and layer.shape[2] <= layer.shape[3]:  # with more queries than keys, positions mean nothing
        found |= {"reach": within.mean(summary.reach), "self": within.mean(summary.own)}
        found["local"] = within.mean(summary.near, summary.choices > 2 * NEAR + 1)  # in a short text, all is near
        found["previous"] = within.mean(summary.previous, within.has_previous)
    if pairs is not None:
        found |= pairs.scores(summary, within)
    unknown = torch.full_like(found["entropy"], torch.nan)
    return torch.stack([found.get(score, unknown) for score in SCORES], 1)


class _Rows(NamedTuple):
    """The queries of a layer that count."""

    real: Tensor  # (batch, heads, queries): all but padding, which is seen by nobody
    counted: Tensor  # those of them that have a choice
    first: Tensor  # (batch,): the first key that is no padding
    has_previous: Tensor  # (batch, 1, queries)

    @staticmethod
    def of(layer: AnyLayer, summary: Summary) -> _Rows:
        """Those of a layer; the queries of cross-attention are not among the keys, and all are taken for real."""
        _, _, queries, keys = layer.shape
        seen = summary.audience > 0
        positions = torch.arange(queries, device=seen.device) + keys - queries
        aligned = not layer.cross and queries <= keys
        real = seen[..., positions] if aligned else torch.ones_like(summary.choices, dtype=torch.bool)
        first = seen.any(1).long().argmax(-1)
        return _Rows(real, real & (summary.choices > 1), first, (positions > first[:, None])[:, None])

    def mean(self, values: Tensor, rows: Tensor | None = None) -> Tensor:
        """(heads,): the mean of values (batch, heads, queries) over the rows that count; NaN without any."""
        rows = (self.counted if rows is None else self.counted & rows).expand_as(values)
        return values.double().masked_fill(~rows, 0.0).sum((0, 2)) / rows.sum((0, 2))


class _Pairs(NamedTuple):
    """What rows and keys of a text have in common, as pairings."""

    pairings: list[tuple[Tensor, Tensor]]
    names: list[str]

    @staticmethod
    def of(trace: Trace, name: str, documents: Tensor | None) -> _Pairs:
        """Those of a layer: none where queries and keys are of different texts, or where keys are no tokens."""
        layer = trace.layer(name)
        _, _, queries, keys = layer.shape
        if layer.cross or queries > keys:
            return _Pairs([], [])
        places = torch.arange(keys)
        found = {"own": (places[keys - queries :], places), "next": (places[keys - queries :], places - 1)}
        rows, columns = trace.ids(name)
        if columns is not None:
            own = columns[:, keys - queries :] if rows is None else rows
            before = torch.cat([columns.new_full((len(columns), 1), -1), columns[:, :-1]], 1)
            found |= {"duplicate": (own, columns), "induction": (own, before)}
        if documents is not None and documents.shape[-1:] == (keys,):
            found["document"] = documents[..., keys - queries :], documents
        return _Pairs(list(found.values()), list(found))

    def scores(self, summary: Summary, within: _Rows) -> dict[str, Tensor]:
        """Scores of heads, from the weight on matching keys beside the query's own position."""
        weights = dict(zip(self.names, summary.matched.unbind(2), strict=True))
        counts = dict(zip(self.names, summary.matches.unbind(2), strict=True))
        found = {}
        if "next" in weights:
            found["next"] = within.mean(weights["next"], counts["next"] > 0)
        if "duplicate" in weights:
            elsewhere = [kind["duplicate"] - kind["own"] for kind in (weights, counts)]
            found["duplicate"] = within.mean(elsewhere[0].clamp(min=0.0), elsewhere[1] > 0)
            # The token after the query's own is no repetition, and a token that comes twice in a row is behind itself.
            twice = self._stands_behind_itself().to(counts["own"].device).expand_as(counts["own"])
            elsewhere = [kind["induction"] - kind["next"] - kind["own"] * twice for kind in (weights, counts)]
            found["induction"] = within.mean(elsewhere[0].clamp(min=0.0), elsewhere[1] > 0)
        if "document" in weights:
            found["leakage"] = within.mean((summary.mass - weights["document"]).clamp(min=0.0))
        return found

    def _stands_behind_itself(self) -> Tensor:
        """(batch, 1, queries): whether the token before a query is the same."""
        queries, keys = self.pairings[self.names.index("induction")]
        return (queries == keys[..., keys.shape[-1] - queries.shape[-1] :])[:, None]


def _evenness(summary: Summary) -> Tensor:
    """The entropy of weights that are scaled to sum to 1, as a share of the largest there is."""
    mass = summary.mass.clamp(min=torch.finfo(summary.mass.dtype).tiny)
    return (summary.entropy / mass + mass.log()) / summary.choices.clamp(min=2).log()


def _on_first_token(layer: AnyLayer, summary: Summary, within: _Rows) -> Tensor:
    """The weight of each row on the first token: in a batch, a text may begin with padding."""
    if isinstance(layer, Layer) and layer.columns.start > 0:  # a window's cache has let go of it
        return torch.full_like(summary.first, torch.nan)
    if not within.first.any():
        return summary.first
    if isinstance(layer, SummedLayer):
        return torch.full_like(summary.first, torch.nan)
    matrix, rows = layer.matrix(), torch.arange(layer.shape[2])
    return torch.stack([matrix.batch(at).at(rows, rows * 0 + key) for at, key in enumerate(within.first.tolist())])


def _received(layer: AnyLayer, summary: Summary, within: _Rows) -> Tensor:
    """What each key receives from queries that are no padding."""
    if within.real.all():
        return summary.received
    if isinstance(layer, SummedLayer):
        return torch.full_like(summary.received, torch.nan)
    return (layer.matrix().T @ within.real[..., None].to(summary.received)).squeeze(-1)


def _concentration(received: Tensor) -> Tensor:
    """(heads,): the sum of squared shares of what keys receive."""
    share = received.double() / received.double().sum(-1, keepdim=True)
    return share.square().sum(-1).mean(0)
