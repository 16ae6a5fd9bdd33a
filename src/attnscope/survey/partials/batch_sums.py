"""Sums, histograms, means and strongest queries of the passages of one batch, layer by layer.

In: a batch and `RowScores`, on any device. Out: arrays on the CPU, (passages, heads, statistics). Values are reduced on
the device that holds the scores, so that only a few numbers per passage and one histogram per head are copied from it;
each passage is summed in order, by one thread. Does not know: other batches, files. Memory: on the device, the scores
of one layer in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.errors import ShapeError
from attnscope.heads.rows import RowScores
from attnscope.survey.corpus.batches import Batch
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.partials.bins import NUM_BINS, STATISTICS, find_bins
from attnscope.survey.partials.moments import Moments

DEVICES = ("cpu", "cuda")
"""Where PyTorch reduces segments in float64; scores on other devices are copied to the CPU."""


class LayerSums(NamedTuple):
    """The sums of one layer in one batch; `means` and `positions` are (passages, heads, statistics)."""

    moments: Moments
    means: NDArray[np.float32]
    positions: NDArray[np.int64]


class BatchSums:
    """The sums of one batch.

    Args:
        batch: The batch.
        numbers: The id of each passage, see `passage_id`.
    """

    def __init__(self, batch: Batch, numbers: Sequence[int]):
        self.passages = batch.passages
        self.numbers = np.array(numbers, np.int64)
        self.means: dict[str, NDArray[np.float32]] = {}
        self._shape = tuple(batch.ids.shape)
        self._unknown = np.zeros(len(batch.passages), np.int64)
        self._layout = PassageLayout.of(batch)

    def sum_layer(self, name: str, heads: int, scores: Mapping[str, RowScores]) -> LayerSums:
        """Reduce the scores of a layer.

        Args:
            name: The name of the layer.
            heads: The number of its heads.
            scores: Scores per query (rows, heads, tokens), by statistic.

        Raises:
            ShapeError: The scores have another shape.
        """
        device = _find_device(scores)
        if self._layout.lengths.device != device:
            self._layout = self._layout.to(device)
        found = reduce_layer(*self._order_by_passage(name, heads, scores), self._layout)
        arrays = {field: _to_array(values) for field, values in found._asdict().items()}
        self._unknown += arrays.pop("unknown")
        means, positions = arrays.pop("means"), arrays.pop("positions")
        self.means[name] = means
        return LayerSums(Moments(**arrays), means, positions)

    def problems(self) -> list[Problem]:
        """A problem for each passage with NaN or infinite scores, which are not counted."""
        return [
            Problem(
                passage.file,
                f"document at {passage.start:,}, token {passage.offset:,}",
                f"has {number:,} scores that are NaN or infinite; they are not counted",
            )
            for (passage, _, _), number in zip(self.passages, self._unknown.tolist(), strict=True)
            if number
        ]

    def _order_by_passage(self, name: str, heads: int, scores: Mapping[str, RowScores]) -> tuple[Tensor, Tensor]:
        """Values and whether they count, each (statistics, heads, tokens), in passage order."""
        device, shape = self._layout.lengths.device, (self._shape[0], heads, self._shape[1])
        for statistic in (name for name in STATISTICS if name in scores):
            if (found := scores[statistic].values.shape) != shape:
                raise ShapeError(
                    f"{statistic} of {name}: expected shape (rows, heads, tokens) = {shape}, got {tuple(found)}"
                )
        missing = RowScores(torch.zeros(1, device=device).expand(shape), torch.zeros(1, device=device).bool())
        found = [scores.get(statistic, missing) for statistic in STATISTICS]
        values = torch.stack([each.values.detach().to(device, torch.float32) for each in found])
        counted = torch.stack([each.counted.to(device, torch.bool).expand(shape) for each in found])
        return self._layout.sort(values), self._layout.sort(counted)


class PassageLayout(NamedTuple):
    """Which tokens of a batch belong to which passage; tensors on one device, (passages,) or (tokens,)."""

    lengths: Tensor
    """The number of tokens of each passage."""
    numbers: Tensor
    """For each token in passage order, the index of its passage."""
    within: Tensor
    """Its position in the passage."""
    places: Tensor | None
    """Its position in the batch; None where the batch has passage order already."""

    @staticmethod
    def of(batch: Batch) -> PassageLayout:
        """The layout of a batch, on the CPU."""
        lengths = torch.tensor([len(placed.passage.ids) for placed in batch.passages])
        first = torch.tensor([placed.row * batch.ids.shape[1] + placed.start for placed in batch.passages])
        numbers = torch.arange(len(lengths)).repeat_interleave(lengths)
        within = torch.arange(len(numbers)) - (lengths.cumsum(0) - lengths)[numbers]
        places = first[numbers] + within
        is_ordered = torch.equal(places, torch.arange(batch.ids.numel()))
        return PassageLayout(lengths, numbers, within, None if is_ordered else places)

    def to(self, device: torch.device) -> PassageLayout:
        """The layout on another device."""
        places = None if self.places is None else self.places.to(device)
        return PassageLayout(self.lengths.to(device), self.numbers.to(device), self.within.to(device), places)

    def sort(self, values: Tensor) -> Tensor:
        """Bring (statistics, rows, heads, tokens) into passage order, (statistics, heads, tokens)."""
        flat = values.transpose(1, 2).flatten(2)
        return flat if self.places is None else flat[..., self.places]


class LayerReductions(NamedTuple):
    """The fields of `Moments` (statistics, heads), and what else is known of the passages; on the device."""

    counts: Tensor
    sums: Tensor
    squares: Tensor
    histograms: Tensor
    minima: Tensor
    maxima: Tensor
    passages: Tensor
    squared_sums: Tensor
    squared_counts: Tensor
    sum_count_products: Tensor
    means: Tensor
    """Of each passage, (statistics, heads, passages); NaN without a value."""
    positions: Tensor
    """The first query of each passage with its largest value, (statistics, heads, passages)."""
    unknown: Tensor
    """How many scores of each passage are NaN or infinite, (passages,)."""


def reduce_layer(values: Tensor, counted: Tensor, layout: PassageLayout) -> LayerReductions:
    """Reduce the scores of a layer on their device, without a wait for it.

    Args:
        values: Scores (statistics, heads, tokens) in passage order, float32.
        counted: Whether each counts.
        layout: The passages.
    """

    def reduce(reduction: str, given: Tensor) -> Tensor:
        # As one axis: on CUDA, PyTorch gives each segment of several axes to a single thread.
        flat = torch.segment_reduce(given.flatten(), reduction, lengths=lengths, unsafe=True)
        return flat.view(*values.shape[:2], -1)

    lengths = layout.lengths.expand(*values.shape[:2], -1).flatten()
    finite = values.isfinite()
    unknown = reduce("sum", (counted & ~finite).float()).sum((0, 1)).long()  # counts below 2**24 are exact
    counted = counted & finite
    values = values.masked_fill(~counted, 0.0)
    doubles = values.double()
    counts = reduce("sum", counted.float()).long()
    sums = reduce("sum", doubles)
    maxima = reduce("max", values.masked_fill(~counted, -torch.inf))
    strongest = counted & (values == maxima[..., layout.numbers])
    return LayerReductions(
        counts=counts.sum(-1),
        sums=sums.sum(-1),
        squares=reduce("sum", doubles.square_()).sum(-1),
        histograms=_histograms(values, counted).T,
        minima=values.masked_fill(~counted, torch.inf).amin(-1),
        maxima=maxima.amax(-1),
        passages=(counts > 0).sum(-1),
        squared_sums=(sums * sums).sum(-1),
        squared_counts=(counts * counts).sum(-1),
        sum_count_products=(sums * counts).sum(-1),
        means=(sums / counts).float(),
        positions=reduce("min", torch.where(strongest, layout.within, lengths.amax()).float()).long(),
        unknown=unknown,
    )


def _histograms(values: Tensor, counted: Tensor) -> Tensor:
    """Histograms (heads, NUM_BINS) of values (statistics, heads, tokens), where `counted`."""
    heads = values.shape[1]
    starts = torch.arange(heads, device=values.device)[:, None] * NUM_BINS
    histograms = torch.zeros(heads * NUM_BINS, dtype=torch.long, device=values.device)
    histograms.scatter_add_(0, (find_bins(values) + starts).flatten(), counted.long().flatten())
    return histograms.view(heads, NUM_BINS)


def _find_device(scores: Mapping[str, RowScores]) -> torch.device:
    """The device of the scores, if they can be reduced there; otherwise the CPU."""
    devices = {found.values.device for found in scores.values()}
    device = devices.pop() if len(devices) == 1 else torch.device("cpu")
    return device if device.type in DEVICES else torch.device("cpu")


def _to_array(values: Tensor) -> NDArray:
    """Copy to the CPU, with the last axis first."""
    return values.permute(*reversed(range(values.ndim))).cpu().numpy()
