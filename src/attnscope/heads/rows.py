"""`row_scores`: the scores of each query of a layer, and which queries count.

A query counts if it may attend to at least two keys and is not padding; some scores require more.
In: a trace of matrices or of statistics. Out: a `RowScores` for each score that the layer has. A layer takes one
blockwise pass, without an n x n matrix. Does not know: models, labels, means over texts.
Memory: the statistics of one layer, O(n) per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import SettingError, ShapeError
from attnscope.heads.mask_inference import with_inferred_mask
from attnscope.matrix.summary import LOCAL_DISTANCE, Summary
from attnscope.recording import Trace
from attnscope.recording.files.saving import AnyLayer
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.statistics import StatisticsLayer
from attnscope.recording.token_pairs import Pairs, document_starts, find_pairs, has_previous, ids_before


class RowScores(NamedTuple):
    """A score of each query."""

    values: Tensor
    """The scores, (batch, heads, queries)."""
    counted: Tensor
    """Whether a query counts; expands to the shape of `values`."""

    def mean(self) -> Tensor:
        """Return the mean over the queries that count, (heads,), on the CPU; NaN without any."""
        rows = self.counted.expand_as(self.values).cpu()
        return self.values.cpu().double().masked_fill(~rows, 0.0).sum((0, 2)) / rows.sum((0, 2))


def row_scores(
    trace: Trace, name: str | int, *, documents: Tensor | Sequence[int] | None = None
) -> dict[str, RowScores]:
    """Compute the scores of every query of a layer, before `score_heads` takes their mean.

    Args:
        trace: Any trace.
        name: The name of a layer, or its index.
        documents: The document number of each token, (tokens,) or (batch, tokens), for `leakage`. If the mask separates
            the documents, each counts as a text.

    Returns:
        The scores by name; those that the layer does not have are left out.

    Raises:
        ShapeError: `documents` does not fit the layer.

    >>> trace = Trace.from_attentions([torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.25, 0.5, 0.25]])[None, None]])
    >>> values, counted = row_scores(trace, 0)["previous"]
    >>> values[counted]
    tensor([0.5000, 0.5000])
    """
    documents = None if documents is None else torch.as_tensor(documents)
    rows = LayerRows.from_trace(trace, name, documents)
    if documents is not None and rows.documents is None and not rows.layer.cross:
        raise ShapeError(
            f"row_scores: expected one document number per token, got documents {tuple(documents.shape)} for the "
            f"{rows.layer.shape[3]:,} keys of {rows.layer.name}"
        )
    return rows.scores()


class LayerRows(NamedTuple):
    """The statistics of a layer, and which of its queries count."""

    layer: AnyLayer
    summary: Summary
    names: tuple[str, ...]  # of its pairings
    ids: Tensor | None
    documents: Tensor | None  # (batch, keys), if given for this text
    begins: Tensor | None  # (batch, keys): the start of each token's document, if the mask separates documents
    is_token: Tensor  # (batch, heads, queries): not padding, to which no query attends
    counted: Tensor  # (batch, heads, queries): tokens that may attend to at least two keys
    first: Tensor  # (batch,): the first key that is not padding

    @staticmethod
    def from_trace(trace: Trace, name: str | int, documents: Tensor | None) -> LayerRows:
        """Compute the statistics of a layer; the queries of cross-attention are never taken for padding."""
        layer = trace.layer(name)
        batch, _, queries, keys = layer.shape
        aligned = not layer.cross and queries <= keys  # with more queries than keys, positions mean nothing
        ids = trace.ids(name)[1] if aligned else None
        fits = documents is not None and aligned and documents.shape[-1:] == (keys,)
        documents = documents.expand(batch, keys) if documents is not None and fits else None
        # Ids are where the model reads them, documents where the caller has them, and the layer may be elsewhere.
        ids, documents = (None if one is None else one.cpu() for one in (ids, documents))
        if isinstance(layer, StatisticsLayer):
            summary, names = layer.summary(), layer.pairings
        else:
            pairs = _pairs(layer, ids, documents) if aligned else Pairs()
            matrix = with_inferred_mask(layer.weights) if isinstance(layer, DenseLayer) else layer.matrix()
            summary, names = matrix.summary(1, 1, pairings=pairs.pairings), pairs.names
        attended = summary.visible_queries > 0
        is_token = (
            attended[..., keys - queries :] if aligned else torch.ones_like(summary.visible_keys, dtype=torch.bool)
        )
        counted, first = is_token & (summary.visible_keys > 1), attended.any(1).long().argmax(-1)
        ids = None if ids is None else ids.to(first.device)
        found = LayerRows(layer, summary, names, ids, documents, None, is_token, counted, first)
        return found if documents is None else found._replace(begins=found._document_starts(documents, attended.any(1)))

    def scores(self) -> dict[str, RowScores]:
        """Return every score that this layer has."""
        summary = self.summary
        found = {
            "entropy": self._row_scores(summary.entropy),
            "evenness": self._row_scores(_evenness(summary)),
            "effective_keys": self._row_scores(summary.effective_keys * summary.mass.square()),
        }
        sink = self._first_token_weight()
        if sink is not None:
            found["sink"] = self._row_scores(sink)
        if not self.layer.cross and self.layer.shape[2] <= self.layer.shape[3]:
            found |= {
                "reach": self._row_scores(summary.mean_abs_distance),
                "self": self._row_scores(summary.self_weight),
            }
            # In a short text, all keys are local.
            found["local"] = self._row_scores(summary.local_weight, summary.visible_keys > 2 * LOCAL_DISTANCE + 1)
            found["previous"] = self._row_scores(summary.previous_weight, self._has_previous())
        return found | self._pairing_scores()

    def _row_scores(self, values: Tensor, rows: Tensor | None = None) -> RowScores:
        return RowScores(values, self.counted if rows is None else self.counted & rows)

    def _pairing_scores(self) -> dict[str, RowScores]:
        """Compute the scores from the weight on matching keys."""
        weights = dict(zip(self.names, self.summary.matched_weight.unbind(2), strict=True))
        counts = dict(zip(self.names, self.summary.num_matches.unbind(2), strict=True))
        found = {}
        if "next" in weights:
            found["next"] = self._row_scores(weights["next"], counts["next"] > 0)
        if "duplicate" in weights:
            elsewhere = [kind["duplicate"] - kind["own"] for kind in (weights, counts)]
            found["duplicate"] = self._row_scores(elsewhere[0].clamp(min=0.0), elsewhere[1] > 0)
        after = "induction" if self.begins is None else "continuation"
        if after in weights and self.ids is not None:
            # The next token is not a repetition, and a token that occurs twice in a row follows itself.
            twice = self._repeats_previous(self.ids).to(counts["own"].device)
            elsewhere = [kind[after] - kind["next"] - kind["own"] * twice for kind in (weights, counts)]
            found["induction"] = self._row_scores(elsewhere[0].clamp(min=0.0), elsewhere[1] > 0)
        if "document" in weights:
            found["leakage"] = self._row_scores((self.summary.mass - weights["document"]).clamp(min=0.0))
        elif self.begins is not None:  # statistics, of documents that the mask separates
            found["leakage"] = self._row_scores(torch.zeros_like(self.summary.mass))
        return found

    def _document_starts(self, documents: Tensor, is_token: Tensor) -> Tensor | None:
        """Return where documents begin, or None if the mask does not separate them."""
        if isinstance(self.layer, StatisticsLayer):
            begins = document_starts(documents)
            if self.layer.begins is None or not torch.equal(begins.cpu(), self.layer.begins.cpu()):
                raise SettingError(
                    f"row_scores: the statistics of {self.layer.name} were recorded without these documents in the "
                    "mask; record with mask=Documents(documents), or with keep='matrix'"
                )
            return begins.to(is_token.device)
        at = self.names.index("document")
        separated = self.summary.num_matches[:, :, at] == self.summary.visible_keys
        if not bool(separated[self.is_token].all()):
            return None
        return document_starts(documents.to(is_token.device), is_token)

    def _repeats_previous(self, ids: Tensor) -> Tensor:
        """Whether a query has the same token as the position before it, (batch, 1, queries)."""
        return (ids == ids_before(ids, self.begins))[:, None, ids.shape[1] - self.layer.shape[2] :]

    def _has_previous(self) -> Tensor:
        """Whether there is a token before a query, (batch, 1, queries)."""
        _, _, queries, keys = self.layer.shape
        positions = torch.arange(keys - queries, keys, device=self.first.device)
        found = positions > self.first[:, None]
        return (found if self.begins is None else found & has_previous(self.begins)[:, keys - queries :])[:, None]

    def _first_token_weight(self) -> Tensor | None:
        """Return the weight of each row on the first token of its text, which may follow left padding."""
        layer, summary = self.layer, self.summary
        if isinstance(layer, Layer) and layer.columns.start > 0:  # a sliding-window cache has dropped it
            return None
        if self.begins is None and not self.first.any():
            return summary.first_weight
        if isinstance(layer, StatisticsLayer):
            return None if self.begins is None else self._document_start_weight(self.begins)
        _, _, queries, keys = layer.shape
        first = self.first[:, None].expand(-1, queries) if self.begins is None else self.begins[:, keys - queries :]
        matrix, rows = layer.matrix(), torch.arange(queries, device=first.device)
        return torch.stack([matrix.batch(at).at(rows, key) for at, key in enumerate(first)])

    def _document_start_weight(self, begins: Tensor) -> Tensor | None:
        """Return the weight on the first token of the document, or None if that is padding."""
        attended = (self.summary.visible_queries > 0).any(1)
        padded = attended & ~attended.gather(1, begins)
        return None if bool(padded.any()) else self.summary.matched_weight[:, :, self.names.index("start")]


def _pairs(layer: AnyLayer, ids: Tensor | None, documents: Tensor | None) -> Pairs:
    """Return the pairings of a layer, for separated and for mixed documents, as that is not yet known."""
    _, _, queries, keys = layer.shape
    whole = find_pairs(range(keys), queries, ids, None)
    if documents is None:
        return whole
    found = dict(zip(*whole, strict=True)) | {"document": (documents[:, keys - queries :], documents)}
    if ids is not None:
        apart = find_pairs(range(keys), queries, ids, document_starts(documents))
        found["continuation"] = apart.pairings[apart.names.index("continuation")]
    return Pairs(tuple(found), tuple(found.values()))


def _evenness(summary: Summary) -> Tensor:
    """Return the entropy of the weights, scaled to sum to 1, divided by that of uniform weights."""
    mass = summary.mass.clamp(min=torch.finfo(summary.mass.dtype).tiny)
    return (summary.entropy / mass + mass.log()) / summary.visible_keys.clamp(min=2).log()
