"""Writing on: a decoder and prompts in, new tokens or new text out, as they come.

In: prompts of any lengths, as token ids or as text. Out: one new token a row and step, or pieces of text.
Does not know: how a model is built or loaded; anything with features, logits and new_cache will do.
Memory: the cache, O(n) a layer; the prompt is read in chunks, so that activations do not grow with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attnscope.attention import Full, Mask, Prefix
from attnscope.attention.positions import position_ids
from attnscope.errors import SettingError, ShapeError
from attnscope.models.cache import Cache
from attnscope.models.sampling import GREEDY, Sampler, Sampling
from attnscope.models.text.codec import Codec, TextStream
from attnscope.models.text.stops import TextUntil

CHUNK = 2048  # tokens read at once, of all prompts together: their activations then fit in a processor's caches


class Writer(Protocol):
    """What generation asks of a model: a Decoder has it, and a Seq2Seq that was given its source."""

    def features(
        self, tokens: Tensor, *, mask: Mask = ..., positions: Tensor | None = ..., cache: Cache | None = ...
    ) -> Tensor: ...

    def logits(self, features: Tensor) -> Tensor: ...

    def new_cache(self, capacity: int | None = None) -> Cache: ...


@torch.no_grad()
def generate_tokens(
    model: Writer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    ends: Collection[int] = (),
    cache: Cache | None = None,
    chunk: int = CHUNK,
    vocab_size: int | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[list[int | None]]:
    """At each step the new token of each row, or None for a row that has come to one of the `ends`.

    Rows may differ in length: shorter ones are padded on the left, and no token sees the padding. A cache that holds
    the beginning of a text is written on; the last token of an answer has not been read, so it begins the next prompt.
    Prompts are read `chunk` tokens at a time, all rows together, and `progress` is told how many positions are read,
    and of how many. Only tokens below `vocab_size` are chosen, for models with more rows than their tokenizer has
    tokens. The model should be in eval mode: dropout would take part.
    """
    for name, count, least in (("max_new_tokens", max_new_tokens, 0), ("chunk", chunk, 1)):
        if count < least:
            raise SettingError(f"generate: {name} must be at least {least}, but is {count}")
    tokens, padding = _on_the_right(prompts, device)
    cache = model.new_cache() if cache is None else cache
    if any(padding) and cache.length:
        raise ShapeError("prompts of different lengths cannot be added to a text: begin them with an empty cache")
    mask = ~Prefix(padding) if any(padding) else Full()
    sampler = Sampler(sampling, rows=len(prompts))
    features, done = tokens, 0
    for piece in tokens.split(max(chunk // len(prompts), 1), dim=1):
        features = _read(model, piece, padding, mask, cache)
        done += piece.shape[1]
        if progress is not None:
            progress(done, tokens.shape[1])
    running = [True] * len(prompts)
    for step in range(max_new_tokens):
        chosen = sampler.choose(model.logits(features[:, -1])[:, :vocab_size])
        found = chosen.tolist()
        yield [token if still else None for token, still in zip(found, running, strict=True)]
        running = [still and token not in ends for token, still in zip(found, running, strict=True)]
        if not any(running) or step + 1 == max_new_tokens:
            return
        features = _read(model, chosen[:, None], padding, mask, cache)


def generate(model: Writer, tokenizer: Codec, prompts: Sequence[str], **options: Any) -> list[str]:
    """The text that each prompt is continued with; the options are those of `stream`."""
    answers = [""] * len(prompts)
    for row, piece in stream(model, tokenizer, prompts, **options):
        answers[row] += piece
    return answers


def stream(
    model: Writer,
    tokenizer: Codec,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop: Sequence[str] = (),
    special: bool = True,
    **options: Any,
) -> Iterator[tuple[int, str]]:
    """(row, piece) as pieces of text become certain: characters are whole, and no stop string has begun in them.

    `special=False` puts no special tokens before the prompts, for text that has them already, as from a chat template.
    Further options: cache, chunk, device and progress, as in `generate_tokens`.
    """
    if isinstance(prompts, str):
        raise TypeError(f"prompts are a list of texts, got one text; write [{prompts[:20]!r}]")
    encoded = [tokenizer.encode(prompt, special=special) for prompt in prompts]
    first = [] if tokenizer.bos is None else [tokenizer.bos]
    encoded = [tokens or first for tokens in encoded]
    rows = [_Row(tokenizer.stream(after=tokens), TextUntil(stop)) for tokens in encoded]
    for tokens in generate_tokens(
        model,
        encoded,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        ends=tokenizer.eos,
        vocab_size=tokenizer.vocab_size,
        **options,
    ):
        for row, token in enumerate(tokens):
            if token is not None and token not in tokenizer.eos and (piece := rows[row].add(token)):
                yield row, piece
        if all(row.until.stopped or token is None for row, token in zip(rows, tokens, strict=True)):
            break
    for number, row in enumerate(rows):
        if piece := row.finish():
            yield number, piece


class _Row(NamedTuple):
    """One text on its way from tokens over whole characters to what stands before a stop string."""

    characters: TextStream
    until: TextUntil

    def add(self, token: int) -> str:
        return "" if self.until.stopped else self.until.add(self.characters.add(token))

    def finish(self) -> str:
        return "" if self.until.stopped else self.until.add(self.characters.finish()) + self.until.finish()


def _read(model: Writer, tokens: Tensor, padding: list[int], mask: Mask, cache: Cache) -> Tensor:
    """The features of these tokens, each row counting its positions after its padding."""
    if not any(padding):
        return model.features(tokens, cache=cache)
    offset = cache.length - torch.tensor(padding, device=tokens.device)
    positions = position_ids(tokens.shape[1], offset=offset).clamp(min=0)
    return model.features(tokens, mask=mask, positions=positions, cache=cache)


def _on_the_right(prompts: Sequence[Sequence[int]], device: torch.device | str) -> tuple[Tensor, list[int]]:
    """Prompts as one tensor that ends with the last token of each, and how much padding stands before each."""
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise ShapeError("a prompt needs at least one token; begin an empty one with the tokenizer's first token")
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    rows = [[0] * count + list(prompt) for count, prompt in zip(padding, prompts, strict=True)]
    return torch.tensor(rows, device=device), padding
