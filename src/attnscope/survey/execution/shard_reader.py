"""`read_shard`: run one shard through a model and return its partial result.

In: a shard, and the `ShardReader` of a worker. Out: a `PartialResult`, which depends only on the shard, the settings
and the parameters of the model, not on what was read before. Does not know: folders, other shards, Ray.
Memory: one batch, and the partial result.
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
from attnscope.survey.corpus.batches import Batch, PlacedPassage, make_batches
from attnscope.survey.corpus.documents import ShardDocuments
from attnscope.survey.corpus.passages import Passage, PassageSplitter
from attnscope.survey.corpus.plan import Problem, Shard
from attnscope.survey.partials.accumulator import ShardAccumulator
from attnscope.survey.partials.examples import passage_id
from attnscope.survey.partials.partial import PartialResult
from attnscope.survey.settings import Settings

CHUNK_SIZE = 2048
"""Longer passages go through a decoder in chunks of so many tokens."""


class ShardReader:
    """A model, its tokenizer, and the settings of a survey.

    Args:
        model: The model; it is moved to `device` and put in eval mode.
        tokenizer: Its tokenizer.
        settings: The settings of the survey.
        device: Where the model runs.

    Raises:
        SettingError: `settings.max_length` is longer than the model supports.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, settings: Settings, device: str = "cpu") -> None:
        self.settings, self.tokenizer = settings, as_tokenizer(tokenizer)
        self.device, self.model = torch.device(device), model.to(device).eval()
        self.splitter, self.pack = PassageSplitter(self.tokenizer, settings), isinstance(model, Decoder)
        self.max_length = max_sequence_length(model)
        self.model_seconds = 0.0
        """Seconds spent in the model so far."""
        if settings.max_length is not None and self.max_length is not None and settings.max_length > self.max_length:
            raise SettingError(
                f"survey: {settings.model} supports at most {self.max_length:,} tokens, got max_length "
                f"{settings.max_length:,}; use --max-length {self.max_length}"
            )

    @classmethod
    def load(cls, settings: Settings, device: str = "cpu") -> ShardReader:
        """Load the model and the tokenizer that the settings name.

        Raises:
            UnsupportedError: The model has no tokenizer, or is an encoder-decoder.
            SettingError: The device is not available.
        """
        check_device(device)
        model, tokenizer = load(settings.model, progress=False)
        if tokenizer is None:
            raise UnsupportedError(f"survey: {settings.model} has no tokenizer")
        if isinstance(model, Seq2Seq) or getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            raise UnsupportedError(f"survey: {settings.model} is an encoder-decoder, which needs two texts at a time")
        return cls(model, tokenizer, settings, device)

    def record(self, batch: Batch) -> Trace:
        """Run a batch through the model, and record the statistics of every head."""
        start = time.perf_counter()
        ids = batch.ids.to(self.device)
        with torch.inference_mode(), record(self.model, keep="statistics", length=ids.shape[1]) as trace:
            self._forward(ids, batch)
        self.model_seconds += time.perf_counter() - start
        return trace

    def _forward(self, ids: Tensor, batch: Batch) -> None:
        if isinstance(self.model, Decoder) and batch.documents is not None:
            documents = Documents(batch.documents.to(self.device))
            positions = packed_position_ids(ids.shape, batch.passages).to(self.device)
            self.model.features(ids, mask=documents, position_ids=positions)
        elif isinstance(self.model, Decoder) and ids.shape[1] <= CHUNK_SIZE:
            self.model.features(ids)
        else:
            for _ in run_in_chunks(self.model, ids, CHUNK_SIZE):
                pass

    def skip_too_long(self, passages: Iterable[Passage | Problem]) -> Iterator[Passage | Problem]:
        """Replace passages that are too long for the model by problems."""
        for found in passages:
            if isinstance(found, Passage) and self.max_length is not None and len(found.ids) > self.max_length:
                reason = f"has {len(found.ids):,} tokens, but the model supports at most {self.max_length:,}"
                size = len("".join(self.tokenizer.texts(found.ids)).encode("utf-8", "replace"))
                yield Problem(found.file, f"document at {found.start:,}", reason, size)
            else:
                yield found


def read_shard(shard: Shard, reader: ShardReader, on_batch: Callable[[int], object] | None = None) -> PartialResult:
    """Run one shard through the model of a reader.

    Args:
        shard: The shard to read.
        reader: The model, tokenizer and settings.
        on_batch: Called after each batch with the number of tokens read so far.

    Returns:
        The partial result of the shard.

    Raises:
        AccessError: A file cannot be accessed, perhaps only now.
        CheckpointError: A file has changed since the shards were planned.
    """
    settings, problems = reader.settings, list[Problem]()
    accumulator, tokens, number = ShardAccumulator(settings.seed), 0, 0
    documents = ShardDocuments(shard, settings)
    passages = reader.skip_too_long(reader.splitter.split(documents))
    for found in make_batches(passages, settings, pack=reader.pack):
        if isinstance(found, Problem):
            problems.append(found)
            continue
        numbers = [passage_id(shard.number, number + at) for at in range(len(found.passages))]
        accumulate_batch(reader.record(found), found, numbers, reader, accumulator)
        number += len(numbers)
        tokens += found.ids.numel()
        if on_batch is not None:
            on_batch(tokens)
    return accumulator.to_partial(shard.number, documents.digest, documents=documents.num_documents, problems=problems)


def accumulate_batch(
    trace: Trace, batch: Batch, numbers: list[int], reader: ShardReader, accumulator: ShardAccumulator
) -> None:
    """Add the statistics of a batch to an accumulator."""
    texts = [reader.tokenizer.texts(placed.passage.ids) for placed in batch.passages]
    accumulator.begin_batch(batch, numbers, texts)
    with torch.inference_mode():
        for name, layer in trace.layers.items():
            accumulator.add_layer(name, range(layer.shape[1]), row_scores(trace, name, documents=batch.documents))
    accumulator.finish_batch()


def packed_position_ids(shape: tuple[int, ...], passages: Iterable[PlacedPassage]) -> Tensor:
    """Token positions (rows, tokens) that start at 0 with each passage."""
    positions = torch.zeros(shape, dtype=torch.int64)
    for passage, row, start in passages:
        positions[row, start : start + len(passage.ids)] = torch.arange(len(passage.ids))
    return positions


def max_sequence_length(model: nn.Module) -> int | None:
    """The maximum sequence length of a model; None if only its training limits it."""
    config = getattr(model, "config", None)
    if isinstance(model, Decoder):
        return model.config.max_position_embeddings if model.config.position_encoding == "learned" else None
    longest = getattr(config, "max_position_embeddings", None)
    if not isinstance(longest, int):
        return None
    for module in model.modules():  # the RoBERTa family counts positions from after the padding index
        if isinstance(module, nn.Embedding) and module.num_embeddings == longest and module.padding_idx is not None:
            return longest - module.padding_idx - 1
    return longest


def check_device(device: str) -> None:
    """Raise a `SettingError` if a device is not available."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).strip().partition("\n")[0]
        raise SettingError(f"survey: device {device!r} is not available: {first}") from error
