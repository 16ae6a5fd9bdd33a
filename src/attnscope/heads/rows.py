"""`row_scores`: what each query of a layer does, score by score, and which queries count.

A query counts if it has a choice, that is, may see two keys or more, and is no padding; some scores ask for more.
In: a trace of matrices or of statistics. Out: a `RowScores` for each score that the trace can tell. The layer is walked
once, and no n x n matrix is built. Does not know: models, labels, means over texts.
Memory: the statistics of one layer, O(n) a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import SettingError, ShapeError
from attnscope.heads.visibility import with_mask
from attnscope.matrix.summary import LOCAL_DISTANCE, Summary
from attnscope.recording import Trace
from attnscope.recording.files.saving import AnyLayer
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.statistics import StatisticsLayer
from attnscope.recording.token_pairs import Pairs, beginnings, find_pairs, goes_on, ids_before


class RowScores(NamedTuple):
    """A score of each query, (batch, heads, queries), and whether it counts."""

    values: Tensor
    counted: Tensor

    def mean(self) -> Tensor:
        """(heads,): the mean over the queries that count; NaN without any."""
        rows = self.counted.expand_as(self.values)
        return self.values.double().masked_fill(~rows, 0.0).sum((0, 2)) / rows.sum((0, 2))


def row_scores(
    trace: Trace, name: str | int, *, documents: Tensor | Sequence[int] | None = None
) -> dict[str, RowScores]:
    """The scores of `SCORES` that are means over queries, before the mean is taken; what cannot be told is left out.

    `documents` (tokens,) or (batch, tokens) numbers the document of each token: `leakage` is told then. If the mask
    has kept the documents apart, each is a text of its own, and all scores are those of reading it alone.

    >>> trace = Trace.from_attentions([torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.25, 0.5, 0.25]])[None, None]])
    >>> values, counted = row_scores(trace, 0)["previous"]
    >>> values[counted]
    tensor([0.5000, 0.5000])
    """
    documents = None if documents is None else torch.as_tensor(documents)
    rows = LayerRows.of(trace, name, documents)
    if documents is not None and rows.documents is None and not rows.layer.cross:
        raise ShapeError(
            f"row_scores: documents {tuple(documents.shape)} number the tokens of a text, and {rows.layer.name} has "
            f"{rows.layer.shape[3]:,} keys; give one a token"
        )
    return rows.scores()


class LayerRows(NamedTuple):
    """The statistics of a layer, and the queries of it that count."""

    layer: AnyLayer
    summary: Summary
    names: tuple[str, ...]  # of its pairings
    ids: Tensor | None
    documents: Tensor | None  # (batch, keys), if they were given and are of this text
    begins: Tensor | None  # (batch, keys): where the document of each token begins, if they were kept apart
    real: Tensor  # (batch, heads, queries): all but padding, which is seen by nobody
    counted: Tensor  # those of them that have a choice
    first: Tensor  # (batch,): the first key that is no padding

    @staticmethod
    def of(trace: Trace, name: str | int, documents: Tensor | None) -> LayerRows:
        """Walk a layer; the queries of cross-attention are not among the keys, and all are taken for real."""
        layer = trace.layer(name)
        batch, _, queries, keys = layer.shape
        aligned = not layer.cross and queries <= keys  # with more queries than keys, positions mean nothing
        ids = trace.ids(name)[1] if aligned else None
        fits = documents is not None and aligned and documents.shape[-1:] == (keys,)
        documents = documents.expand(batch, keys) if documents is not None and fits else None
        if isinstance(layer, StatisticsLayer):
            summary, names = layer.summary(), layer.pairings
        else:
            pairs = _pairs(layer, ids, documents) if aligned else Pairs()
            matrix = with_mask(layer.weights) if isinstance(layer, DenseLayer) else layer.matrix()
            summary, names = matrix.summary(1, 1, pairings=pairs.pairings), pairs.names
        seen = summary.visible_queries > 0
        real = seen[..., keys - queries :] if aligned else torch.ones_like(summary.visible_keys, dtype=torch.bool)
        first = seen.any(1).long().argmax(-1)
        found = LayerRows(layer, summary, names, ids, documents, None, real, real & (summary.visible_keys > 1), first)
        return found if documents is None else found._replace(begins=found._kept_apart(documents, seen.any(1)))

    def scores(self) -> dict[str, RowScores]:
        """Every score that can be told."""
        summary = self.summary
        found = {
            "entropy": self._of(summary.entropy),
            "evenness": self._of(_evenness(summary)),
            "effective_keys": self._of(summary.effective_keys * summary.mass.square()),
        }
        sink = self._on_first_token()
        if sink is not None:
            found["sink"] = self._of(sink)
        if not self.layer.cross and self.layer.shape[2] <= self.layer.shape[3]:
            found |= {"reach": self._of(summary.mean_abs_distance), "self": self._of(summary.self_weight)}
            found["local"] = self._of(
                summary.local_weight, summary.visible_keys > 2 * LOCAL_DISTANCE + 1
            )  # in a short text, all is near
            found["previous"] = self._of(summary.previous_weight, self._has_previous())
        return found | self._of_pairs()

    def _of(self, values: Tensor, rows: Tensor | None = None) -> RowScores:
        return RowScores(values, self.counted if rows is None else self.counted & rows)

    def _of_pairs(self) -> dict[str, RowScores]:
        """Scores from the weight on matching keys beside the query's own position."""
        weights = dict(zip(self.names, self.summary.matched_weight.unbind(2), strict=True))
        counts = dict(zip(self.names, self.summary.num_matches.unbind(2), strict=True))
        found = {}
        if "next" in weights:
            found["next"] = self._of(weights["next"], counts["next"] > 0)
        if "duplicate" in weights:
            elsewhere = [kind["duplicate"] - kind["own"] for kind in (weights, counts)]
            found["duplicate"] = self._of(elsewhere[0].clamp(min=0.0), elsewhere[1] > 0)
        after = "induction" if self.begins is None else "continuation"
        if after in weights and self.ids is not None:
            # The token after the query's own is no repetition, and a token that comes twice in a row is behind itself.
            twice = self._stands_behind_itself(self.ids).to(counts["own"].device)
            elsewhere = [kind[after] - kind["next"] - kind["own"] * twice for kind in (weights, counts)]
            found["induction"] = self._of(elsewhere[0].clamp(min=0.0), elsewhere[1] > 0)
        if "document" in weights:
            found["leakage"] = self._of((self.summary.mass - weights["document"]).clamp(min=0.0))
        elif self.begins is not None:  # statistics, of documents that a mask has kept apart
            found["leakage"] = self._of(torch.zeros_like(self.summary.mass))
        return found

    def _kept_apart(self, documents: Tensor, real: Tensor) -> Tensor | None:
        """Where documents begin, if nobody could see another than its own."""
        if isinstance(self.layer, StatisticsLayer):
            begins = beginnings(documents)
            if self.layer.begins is None or not torch.equal(begins.cpu(), self.layer.begins.cpu()):
                raise SettingError(
                    f"row_scores: {self.layer.name} was summed while the model ran, and these documents were not told "
                    "by its mask; record with mask=Documents(documents), or with keep='matrix'"
                )
            return begins.to(real.device)
        at = self.names.index("document")
        apart = self.summary.num_matches[:, :, at] == self.summary.visible_keys
        return beginnings(documents.to(real.device), real) if bool(apart[self.real].all()) else None

    def _stands_behind_itself(self, ids: Tensor) -> Tensor:
        """(batch, 1, queries): whether the token before a query is the same."""
        return (ids == ids_before(ids, self.begins))[:, None, ids.shape[1] - self.layer.shape[2] :]

    def _has_previous(self) -> Tensor:
        """(batch, 1, queries): whether there is a token before a query."""
        _, _, queries, keys = self.layer.shape
        positions = torch.arange(keys - queries, keys, device=self.first.device)
        found = positions > self.first[:, None]
        return (found if self.begins is None else found & goes_on(self.begins)[:, keys - queries :])[:, None]

    def _on_first_token(self) -> Tensor | None:
        """The weight of each row on the first token of its text: in a batch, a text may begin with padding."""
        layer, summary = self.layer, self.summary
        if isinstance(layer, Layer) and layer.columns.start > 0:  # a window's cache has let go of it
            return None
        if self.begins is None and not self.first.any():
            return summary.first_weight
        if isinstance(layer, StatisticsLayer):
            return None if self.begins is None else self._on_start(self.begins)
        _, _, queries, keys = layer.shape
        first = self.first[:, None].expand(-1, queries) if self.begins is None else self.begins[:, keys - queries :]
        matrix, rows = layer.matrix(), torch.arange(queries, device=first.device)
        return torch.stack([matrix.batch(at).at(rows, key) for at, key in enumerate(first)])

    def _on_start(self, begins: Tensor) -> Tensor | None:
        """As the pairing with the first token of the document has it, unless that is padding."""
        seen = (self.summary.visible_queries > 0).any(1)
        padded = seen & ~seen.gather(1, begins)
        return None if bool(padded.any()) else self.summary.matched_weight[:, :, self.names.index("start")]


def _pairs(layer: AnyLayer, ids: Tensor | None, documents: Tensor | None) -> Pairs:
    """Those of a layer; whether documents were kept apart is not known yet, so that both ways of counting are there."""
    _, _, queries, keys = layer.shape
    whole = find_pairs(range(keys), queries, ids, None)
    if documents is None:
        return whole
    found = dict(zip(*whole, strict=True)) | {"document": (documents[:, keys - queries :], documents)}
    if ids is not None:
        apart = find_pairs(range(keys), queries, ids, beginnings(documents))
        found["continuation"] = apart.pairings[apart.names.index("continuation")]
    return Pairs(tuple(found), tuple(found.values()))


def _evenness(summary: Summary) -> Tensor:
    """The entropy of weights that are scaled to sum to 1, as a share of the largest there is."""
    mass = summary.mass.clamp(min=torch.finfo(summary.mass.dtype).tiny)
    return (summary.entropy / mass + mass.log()) / summary.visible_keys.clamp(min=2).log()
