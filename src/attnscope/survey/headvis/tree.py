"""The files of a HeadVis tree, field by field, as Neuronpedia documents them.

In: totals and sequences of a head. Out: JSON. Does not know: models, traces. Memory: the sequences of one head.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.errors import SettingError
from attnscope.survey.headvis.measures import (
    DECIMALS,
    INDUCTION_THRESHOLD,
    KEYS_PER_QUERY,
    MIN_WEIGHT,
    HeadSums,
    QueryCounts,
    SparsePattern,
)
from attnscope.survey.headvis.sampling import NUM_INTERVALS, PER_INTERVAL, PER_TOP_INTERVAL, Chosen
from attnscope.survey.headvis.source import Source
from attnscope.version import __version__

Place = tuple[int, int]
"""The number of a layer in the model, and of a head in the layer."""

METRICS = {
    "self_attention_score": "Mean attention weight of a query on its own token.",
    "prev_token_score": "Mean attention weight of a query on the token before it.",
    "pattern_entropy": "Mean entropy of the attention weights of a query, in nats.",
    "qk_distance": "Mean number of tokens between query and key, weighted by attention.",
    "qk_distance_variance": "Variance of the number of tokens between query and key, weighted by attention.",
    "induction_score": "Mean attention weight of a query on tokens that follow an earlier occurrence of its own token; "
    f"weights below {INDUCTION_THRESHOLD} do not count.",
}
ACTIVATION_BINS = 50
DISTANCE_EDGES = (0, *(2**power for power in range(13)))
TOP_TOKENS = 50
IMPLEMENTATION = "attnscope"
"""Stands for the attention implementation: weights are computed from recorded queries and keys."""


def make_folder_name(name: str) -> str:
    """A name as that of a folder in the tree.

    Raises:
        SettingError: It has no letter or digit.

    >>> make_folder_name("monology/pile-uncopyrighted")
    'monology-pile-uncopyrighted'
    """
    found = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    if not found:
        raise SettingError(f"headvis: expected a name with a letter or a digit, got {name!r}")
    return found


def scatter_row(place: Place, sums: HeadSums, counts: QueryCounts) -> dict[str, Any]:
    """The metrics of a head; None for one that no query has.

    Args:
        place: The layer and the head.
        sums: The sums of this head over all sequences, as numbers.
        counts: The number of queries of all sequences.
    """
    mean_distance, mean_square = sums.distance / counts.all, sums.squared_distance / counts.all
    values = (
        sums.self_attention / counts.all,
        sums.previous / counts.previous,
        sums.entropy / counts.all,
        mean_distance,
        mean_square - mean_distance**2,
        sums.induction / counts.repeated if counts.repeated else None,
    )
    rounded = (None if value is None else round(float(value), DECIMALS) for value in values)
    return {"layer": place[0], "head": place[1], **dict(zip(METRICS, rounded, strict=True))}


def sequence_record(chosen: Chosen, tokens: list[str], pattern: SparsePattern, largest: float) -> dict[str, Any]:
    """A sequence of a head, with its sparse pattern."""
    return {
        "sequence_id": chosen.sequence,
        "interval": chosen.interval,
        "tokens": tokens,
        "attention_indices": pattern.indices,
        "attention_values": pattern.values,
        "seq_len": len(tokens),
        "max_activation": round(largest, DECIMALS),
    }


def head_file(sequences: Sequence[Mapping[str, Any]], largest: NDArray[np.float64]) -> dict[str, Any]:
    """The content of the file of a head.

    Args:
        sequences: Its chosen sequences.
        largest: Its largest weight in every sequence, (sequences,).
    """
    bins = (largest * ACTIVATION_BINS).astype(np.int64).clip(0, ACTIVATION_BINS - 1)
    distances = [0.0] * (len(DISTANCE_EDGES) - 1)
    sides: tuple[dict[str, float], ...] = defaultdict(float), defaultdict(float)
    for sequence in sequences:
        length, tokens = sequence["seq_len"], sequence["tokens"]
        for index, value in zip(sequence["attention_indices"], sequence["attention_values"], strict=True):
            query, key = divmod(index, length)
            for side, position in zip(sides, (query, key), strict=True):
                side[tokens[position]] += value
            if abs(query - key) < DISTANCE_EDGES[-1]:
                distances[bisect_right(DISTANCE_EDGES, abs(query - key)) - 1] += value
    return {
        "sequences": list(sequences),
        "qk_distance_histogram": {
            "bin_edges": list(DISTANCE_EDGES),
            "bin_values": [round(value, DECIMALS) for value in distances],
        },
        "top_query_tokens": _top_tokens(sides[0]),
        "top_key_tokens": _top_tokens(sides[1]),
        "histogram": {
            "bin_edges": [round(number / ACTIVATION_BINS, DECIMALS) for number in range(ACTIVATION_BINS + 1)],
            "bin_values": np.bincount(bins, minlength=ACTIVATION_BINS).tolist(),
        },
        "statistics": {
            "n_samples": len(sequences),
            "mean_max_activation": round(float(largest.mean()), DECIMALS),
        },
    }


def _top_tokens(weights: Mapping[str, float]) -> list[dict[str, Any]]:
    ranked = sorted(weights.items(), key=lambda item: -item[1])[:TOP_TOKENS]
    return [{"token": token, "weight": round(weight, DECIMALS)} for token, weight in ranked]


def config_file(source: Source, places: Sequence[Place], model_id: str) -> dict[str, Any]:
    """The content of config.json, with the settings of the export in `pipeline_config`."""
    layers = sorted({layer for layer, _ in places})
    num_layers = layers[-1] + 1 if source.num_layers is None else source.num_layers
    num_heads = max(head for _, head in places) + 1
    names = {
        "model_name": source.model_name,
        "np_model_id": model_id,
        "dataset_name": source.dataset_name,
    }
    return {
        **names,
        "heads": [list(place) for place in places],
        "n_layers": num_layers,
        "n_heads": num_heads,
        "n_intervals": NUM_INTERVALS,
        "metrics": list(METRICS),
        "metric_descriptions": METRICS,
        "head_data_pattern": "L{layer}H{head}.json",
        "has_umap": False,
        "umap_heads": [],
        "custom_plots": [
            {"key": "qk_distance_histogram", "label": "Q-K distance"},
            {"key": "histogram", "label": "Activation distribution"},
        ],
        "custom_tables": [
            {"key": "top_query_tokens", "label": "Top query tokens"},
            {"key": "top_key_tokens", "label": "Top key tokens"},
        ],
        "statistics_display": {
            "n_samples": {"label": "Samples kept", "format": "default"},
            "mean_max_activation": {"label": "Mean max activation", "format": "default"},
        },
        "pipeline_config": {
            **names,
            "generator": f"attnscope {__version__}",
            "n_sequences": len(source.sequences),
            "actual_sequences_processed": len(source.sequences),
            "seq_len": source.max_length,
            "batch_size": 1,
            "dtype": source.dtype,
            "attn_implementation": IMPLEMENTATION,
            "induction_attention_threshold": INDUCTION_THRESHOLD,
            "n_intervals": NUM_INTERVALS,
            "samples_per_interval": PER_INTERVAL,
            "samples_per_top_interval": PER_TOP_INTERVAL,
            "sparse_topk_per_row": KEYS_PER_QUERY,
            "sparse_threshold": MIN_WEIGHT,
            "warmup_size": 0,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "attention_layer_indices": layers,
            **source.provenance,
        },
    }


def to_json(content: Any) -> str:
    """JSON in one line; NaN is an error."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"))
