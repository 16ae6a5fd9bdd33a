"""A shard through a model: `read_shard` makes the part of a survey that one shard is.

In: a shard, and the `Reader` that a worker holds. Out: a `Partial`, which depends on the shard, the settings and the
weights, and on nothing that was read before. Does not know: folders, other shards, Ray.
Memory: one batch, and the sums.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention import Documents
from attnscope.errors import SettingError, UnsupportedError
from attnscope.heads.rows import row_scores
from attnscope.models import Decoder, Seq2Seq
from attnscope.recording import Trace, load, record
from attnscope.recording.chunks import run_in_chunks
from attnscope.recording.token_texts import as_tokenizer
from attnscope.survey.corpus.batches import Batch, Placed, batches_of
from attnscope.survey.corpus.documents import documents_of
from attnscope.survey.corpus.passages import Passage, Passages
from attnscope.survey.corpus.plan import Problem, Shard
from attnscope.survey.settings import Settings
from attnscope.survey.tally.examples import passage_id
from attnscope.survey.tally.gathering import Gathering
from attnscope.survey.tally.partial import Partial

PIECE = 2048
"""Tokens of a longer passage that go through a decoder at once."""


class Reader:
    """What a worker holds: a model, its tokenizer, and what they are to do."""

    def __init__(self, model: nn.Module, tokenizer: Any, settings: Settings, device: str = "cpu") -> None:
        self.settings, self.tokenizer = settings, as_tokenizer(tokenizer)
        self.device, self.model = torch.device(device), model.to(device).eval()
        self.passages, self.packed = Passages(self.tokenizer, settings), isinstance(model, Decoder)
        self.longest = longest_of(model)
        self.seconds = 0.0
        """In the model, so far."""
        if settings.window is not None and self.longest is not None and settings.window > self.longest:
            raise SettingError(
                f"survey: {settings.model} reads {self.longest:,} tokens at most, and windows of {settings.window:,} "
                f"were asked for; give --window {self.longest}"
            )

    @classmethod
    def load(cls, settings: Settings, device: str = "cpu") -> Reader:
        """The reader of a survey, with its model from the disk."""
        check_device(device)
        model, tokenizer = load(settings.model)
        if tokenizer is None:
            raise UnsupportedError(f"survey: {settings.model} has no tokenizer, so that it can read no text")
        if isinstance(model, Seq2Seq) or getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            raise UnsupportedError(f"survey: {settings.model} reads two texts at a time, and a corpus has one")
        return cls(model, tokenizer, settings, device)

    def trace(self, batch: Batch) -> Trace:
        """The statistics of every head over a batch."""
        start = time.perf_counter()
        ids = batch.ids.to(self.device)
        with torch.inference_mode(), record(self.model, keep="statistics", length=ids.shape[1]) as trace:
            self._run(ids, batch)
        self.seconds += time.perf_counter() - start
        return trace

    def _run(self, ids: Tensor, batch: Batch) -> None:
        if isinstance(self.model, Decoder) and batch.documents is not None:
            documents = Documents(batch.documents.to(self.device))
            positions = positions_of(ids.shape, batch.passages).to(self.device)
            self.model.features(ids, mask=documents, position_ids=positions)
        elif isinstance(self.model, Decoder) and ids.shape[1] <= PIECE:
            self.model.features(ids)
        else:
            for _ in run_in_chunks(self.model, ids, PIECE):
                pass

    def readable(self, passages: Iterable[Passage | Problem]) -> Iterator[Passage | Problem]:
        """Passages that are not too long for the model; of the others, that they are."""
        for found in passages:
            if isinstance(found, Passage) and self.longest is not None and len(found.ids) > self.longest:
                what = f"{len(found.ids):,} tokens, and the model reads {self.longest:,} at most"
                yield Problem(found.file, f"document at {found.start:,}", what)
            else:
                yield found


def read_shard(shard: Shard, reader: Reader, told: Callable[[int], object] | None = None) -> Partial:
    """The part of a survey that one shard is; `told` hears after each batch how many tokens have been read."""
    settings, problems = reader.settings, list[Problem]()
    gathering, tokens, number = Gathering(settings.seed), 0, 0
    reading = documents_of(shard, settings)
    passages = reader.readable(reader.passages.of(reading))
    for found in batches_of(passages, settings, packed=reader.packed):
        if isinstance(found, Problem):
            problems.append(found)
            continue
        numbers = [passage_id(shard.number, number + at) for at in range(len(found.passages))]
        gather(reader.trace(found), found, numbers, reader, gathering)
        number += len(numbers)
        tokens += found.ids.numel()
        if told is not None:
            told(tokens)
    return gathering.partial(shard.number, reading.digest, documents=reading.documents, problems=problems)


def gather(trace: Trace, batch: Batch, numbers: list[int], reader: Reader, gathering: Gathering) -> None:
    """Add the statistics of a batch to what has been gathered."""
    texts = [reader.tokenizer.texts(placed.passage.ids) for placed in batch.passages]
    gathering.begin(batch, numbers, texts)
    with torch.inference_mode():
        for name, layer in trace.layers.items():
            gathering.add(name, range(layer.shape[1]), row_scores(trace, name, documents=batch.documents))
    gathering.finish()


def positions_of(shape: tuple[int, ...], passages: Iterable[Placed]) -> Tensor:
    """(rows, tokens): how far each token stands behind the first one of its passage."""
    positions = torch.zeros(shape, dtype=torch.int64)
    for passage, row, start in passages:
        positions[row, start : start + len(passage.ids)] = torch.arange(len(passage.ids))
    return positions


def longest_of(model: nn.Module) -> int | None:
    """The most tokens that a model can read; None where nothing but its training sets a limit."""
    config = getattr(model, "config", None)
    if isinstance(model, Decoder):
        return model.config.max_position_embeddings if model.config.position_encoding == "learned" else None
    longest = getattr(config, "max_position_embeddings", None)
    if not isinstance(longest, int):
        return None
    for module in model.modules():  # the RoBERTa family counts positions from behind the padding
        if isinstance(module, nn.Embedding) and module.num_embeddings == longest and module.padding_idx is not None:
            return longest - module.padding_idx - 1
    return longest


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).strip().partition("\n")[0]
        raise SettingError(f"survey: there is no device {device!r} here: {first}") from error
