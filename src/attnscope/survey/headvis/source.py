"""What a HeadVis tree is made from: the random sample of passages of a survey, or the text of a trace.

In: a survey and its model, or a trace. Out: sequences of token ids, and a function that records one of them.
Does not know: the tree. Memory: the ids, and the trace of one sequence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from attnscope.errors import CheckpointError, SettingError, UnsupportedError
from attnscope.models.fingerprint import fingerprint_model
from attnscope.recording import Trace, load, read
from attnscope.recording.layers.statistics import StatisticsLayer
from attnscope.recording.token_texts import as_tokenizer
from attnscope.survey.tables.survey import Survey

MIN_TOKENS = 2
NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class RecordedLayer(NamedTuple):
    """A layer of a trace by its number in the model."""

    name: str
    number: int
    num_heads: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """Sequences in random order, and how to record their attention."""

    sequences: Sequence[tuple[int, ...]]
    """Token ids, at least two each."""
    read_texts: Callable[[int], list[str]]
    """The text of each token of a sequence, by its index."""
    record: Callable[[int], Trace]
    """The attention on a sequence, by its index."""
    model_name: str
    dataset_name: str
    num_layers: int | None
    """Of the model; None if only the trace says it."""
    max_length: int
    """Tokens that a sequence has at most."""
    dtype: str
    provenance: dict[str, Any]


def open_survey_source(
    survey: Survey, *, model: str | Path | None, dataset: str | None, num_passages: int, progress: bool
) -> Source:
    """Load the model of a survey, and read the random sample of its passages.

    Args:
        survey: A finished survey.
        model: Where the model is now; by default where it was when the survey ran.
        dataset: The name of the corpus; by default that of its only file or folder.
        num_passages: How many passages of the sample to take.
        progress: Whether to draw a progress bar while the model is loaded.

    Raises:
        SettingError: The model has other parameters than the surveyed one, or the corpus has no name.
    """
    settings, surveyed = survey.manifest["settings"], survey.manifest["model"]
    name = dataset or _name_corpus(settings["sources"])
    passages = [one for one in survey.sample(num_passages) if len(one.ids) >= MIN_TOKENS]
    if not passages:
        raise SettingError("headvis: the survey has no passage of two or more tokens")
    place = str(model or settings["model"])
    found, tokenizer = load(place, progress=progress)
    if fingerprint_model(found, "")["hash"] != surveyed["hash"]:
        raise SettingError(
            f"headvis: {place} has other parameters than the model of the survey, {surveyed['name']}; "
            "give the surveyed model with --model"
        )
    codec = as_tokenizer(tokenizer)
    return Source(
        sequences=[one.ids for one in passages],
        read_texts=lambda number: codec.texts(passages[number].ids),
        record=lambda number: read(found, passages[number].ids, tokenizer, progress=False),
        model_name=surveyed["name"] if Path(settings["model"]).is_absolute() else settings["model"],
        dataset_name=name,
        num_layers=_count_layers(found),
        max_length=settings.get("max_length") or max(len(one.ids) for one in passages),
        dtype=str(next(found.parameters()).dtype).removeprefix("torch."),
        provenance={
            "model_hash": surveyed["hash"],
            "corpus_hash": survey.manifest["corpus"]["hash"],
            "corpus_passages": survey.manifest["corpus"]["passages"],
            "corpus_tokens": survey.manifest["corpus"]["tokens"],
            "sample_seed": settings["seed"],
        },
    )


def open_trace_source(trace: Trace, *, dataset: str) -> Source:
    """Take the text of a trace as the only sequence.

    Raises:
        UnsupportedError: The trace has several texts, none, or statistics instead of patterns.
    """
    if not len(trace):
        raise UnsupportedError("headvis: this trace has no layers")
    ids, _ = trace.ids(0)
    tokens = trace.tokens()
    if ids is None or tokens is None or ids.shape[1] < MIN_TOKENS:
        raise UnsupportedError("headvis: this trace has no token ids, or fewer than two; record a model of text")
    if len(ids) != 1:
        raise UnsupportedError(f"headvis: expected a trace of one text, got {len(ids)}; record one text at a time")
    layers = find_layers(trace, ids.shape[1])
    if [layer.number for layer in layers] != list(range(len(layers))):
        raise UnsupportedError("headvis: this trace lacks layers of the model; record all layers")
    sequence = tuple(ids[0].tolist())
    return Source(
        sequences=[sequence],
        read_texts=lambda _: tokens,
        record=lambda _: trace,
        model_name=trace.model or "a model",
        dataset_name=dataset,
        num_layers=None,
        max_length=len(sequence),
        dtype=str(next(trace.layer(0).tensors()).dtype).removeprefix("torch."),
        provenance={},
    )


def find_layers(trace: Trace, length: int) -> list[RecordedLayer]:
    """The layers of a trace by their number in the model.

    Raises:
        UnsupportedError: A layer has no patterns from all tokens to all tokens, only some heads, or no number of its
            own.

    >>> import torch
    >>> find_layers(Trace.from_attentions({"blocks.3.attention": torch.eye(2)[None, None]}), 2)
    [RecordedLayer(name='blocks.3.attention', number=3, num_heads=1)]
    """
    found = list[RecordedLayer]()
    for name, layer in trace.layers.items():
        numbers = NUMBER.findall(name)
        if isinstance(layer, StatisticsLayer):
            raise UnsupportedError("headvis: this trace has statistics instead of patterns; record without keep=")
        if layer.cross or layer.shape[2:] != (length, length):
            raise UnsupportedError(f"headvis: {name} is not self-attention over all {length:,} tokens of the text")
        if len(numbers) != 1:
            raise UnsupportedError(f"headvis: {name} has no layer number, or more than one; a HeadVis tree needs one")
        if tuple(layer.heads) != tuple(range(layer.shape[1])):
            raise UnsupportedError(f"headvis: the trace has only some heads of {name}; record all heads")
        found.append(RecordedLayer(name, int(numbers[0]), layer.shape[1]))
    if len({layer.number for layer in found}) < len(found):
        raise UnsupportedError(
            f"headvis: several layers of {trace.model or 'this trace'} have the same number; a HeadVis tree names "
            "heads by layer and head only"
        )
    return sorted(found, key=lambda layer: layer.number)


def _count_layers(model: nn.Module) -> int | None:
    """The number of layers in the config of a model."""
    config = getattr(model, "config", None)
    for fields in (config, getattr(config, "text_config", None)):
        for name in ("num_layers", "num_hidden_layers"):
            if isinstance(count := getattr(fields, name, None), int):
                return count
    return None


def _name_corpus(sources: Sequence[Any]) -> str:
    """The name of the only file or folder of a corpus, without its suffixes."""
    name = re.split(r"[/\\]", str(sources[0]).rstrip("/\\"))[-1].partition(".")[0] if len(sources) == 1 else ""
    if not re.search(r"[A-Za-z0-9]", name) or "*" in name:
        raise SettingError("headvis: the corpus of this survey has no name of its own; give one with --dataset NAME")
    return name


def check_places(layers: Sequence[RecordedLayer], expected: Sequence[RecordedLayer]) -> None:
    """Raise if a sequence has other layers or heads than the first one."""
    if list(layers) != list(expected):
        raise CheckpointError("headvis: the model has other layers or heads in some passages than in the first one")
