"""Text generation: prompts in, new tokens or new text out, as they are sampled.

In: prompts of any lengths, as token ids or as text. Out: one new token per row and step, or chunks of text.
Does not know: how a model is built or loaded; any `CausalLM` works.
Memory: the KV cache, O(n) per layer; prefill runs in chunks, so activations do not grow with the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attnscope.attention import Full, Mask, Prefix
from attnscope.attention.positions import position_ids as count_positions
from attnscope.errors import SettingError, ShapeError
from attnscope.models.kv_cache import KVCache
from attnscope.models.sampling import GREEDY, Sampler, Sampling
from attnscope.models.text.any_tokenizer import AnyTokenizer, TextStream
from attnscope.models.text.stop_strings import StopStringFilter

CHUNK_SIZE = 2048  # tokens per forward pass of the prefill, all prompts together: activations then fit in CPU caches


class CausalLM(Protocol):
    """The interface that generation needs: a `Decoder`, or a `Seq2Seq` conditioned on a source."""

    @property
    def device(self) -> torch.device: ...

    def features(
        self, input_ids: Tensor, *, mask: Mask = ..., position_ids: Tensor | None = ..., cache: KVCache | None = ...
    ) -> Tensor: ...

    def logits(self, features: Tensor) -> Tensor: ...

    def new_cache(self, capacity: int | None = None) -> KVCache: ...


@torch.no_grad()
def generate_tokens(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    eos_token_ids: Collection[int] = (),
    cache: KVCache | None = None,
    chunk_size: int = CHUNK_SIZE,
    vocab_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[list[int | None]]:
    """Generate tokens, one step at a time.

    Args:
        model: A decoder in eval mode, since dropout would change the result.
        prompts: Token ids of each row. Rows may differ in length: shorter ones are padded on the left, and no token
            attends to the padding.
        max_new_tokens: Number of steps, unless every row ends before.
        sampling: How the next token is chosen.
        eos_token_ids: Tokens that end a row.
        cache: KV cache with the beginning of the sequence, which is extended. The last generated token is not in it,
            so it is the first token of the next prompt.
        chunk_size: Tokens per forward pass of the prefill, all rows together.
        vocab_size: Only ids below it are chosen, for models with more embeddings than their tokenizer has tokens.
        device: Device of the token ids; None for the device of the model.
        progress: Called during prefill with the number of positions done, and of all positions.

    Yields:
        The new token of each row, or None for a row that has ended.

    Raises:
        SettingError: If a count is too small.
        ShapeError: If a prompt is empty, or prompts of different lengths are used with a cache that is not empty.

    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> steps = generate_tokens(Decoder(config).eval(), [[3, 1, 4], [1, 5]], max_new_tokens=4)
    >>> [len(row) for row in zip(*steps)]
    [4, 4]
    """
    for name, count, minimum in (("max_new_tokens", max_new_tokens, 0), ("chunk_size", chunk_size, 1)):
        if count < minimum:
            raise SettingError(f"generate: {name} must be at least {minimum}, got {count}")
    input_ids, padding = _pad_left(prompts, model.device if device is None else device)
    cache = model.new_cache() if cache is None else cache
    if any(padding) and cache.length:
        raise ShapeError("prompts of different lengths need an empty cache, got one that already holds tokens")
    mask = ~Prefix(padding) if any(padding) else Full()
    sampler = Sampler(sampling, rows=len(prompts))
    features, done = input_ids, 0
    for chunk in input_ids.split(max(chunk_size // len(prompts), 1), dim=1):
        features = _run_step(model, chunk, padding, mask, cache)
        done += chunk.shape[1]
        if progress is not None:
            progress(done, input_ids.shape[1])
    running = [True] * len(prompts)
    for step in range(max_new_tokens):
        chosen = sampler.choose(model.logits(features[:, -1])[:, :vocab_size])
        tokens = chosen.tolist()
        yield [token if still else None for token, still in zip(tokens, running, strict=True)]
        running = [still and token not in eos_token_ids for token, still in zip(tokens, running, strict=True)]
        if not any(running) or step + 1 == max_new_tokens:
            return
        features = _run_step(model, chosen[:, None], padding, mask, cache)


def generate(model: CausalLM, tokenizer: AnyTokenizer, prompts: Sequence[str], **options: Any) -> list[str]:
    """Generate the continuation of each prompt; the options are those of `stream`.

    Args:
        model: A model that predicts next tokens.
        tokenizer: Its tokenizer.
        prompts: The texts to continue.
        **options: As in `stream`.

    Returns:
        The continuations, without the prompts.
    """
    continuations = [""] * len(prompts)
    for row, text in stream(model, tokenizer, prompts, **options):
        continuations[row] += text
    return continuations


def stream(
    model: CausalLM,
    tokenizer: AnyTokenizer,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop: Sequence[str] = (),
    add_special_tokens: bool = True,
    **options: Any,
) -> Iterator[tuple[int, str]]:
    """Generate text, and yield it as soon as its characters are complete and cannot be part of a stop string.

    Args:
        model: A decoder in eval mode.
        tokenizer: The tokenizer of the model.
        prompts: Texts to continue.
        max_new_tokens: Number of tokens to generate for each prompt.
        sampling: How the next token is chosen.
        stop: Stop strings; text ends before the first of them.
        add_special_tokens: Whether to add special tokens to the prompts; False for text that has them, as from a chat
            template.
        options: `cache`, `chunk_size`, `device` and `progress`, as in `generate_tokens`.

    Yields:
        The number of a prompt, and the next chunk of its continuation.

    Raises:
        TypeError: `prompts` is a string instead of a list.
    """
    if isinstance(prompts, str):
        raise TypeError(f"prompts: expected a list of strings, got a string; pass [{prompts[:20]!r}]")
    encoded = [tokenizer.encode(prompt, add_special_tokens=add_special_tokens) for prompt in prompts]
    first = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    encoded = [tokens or first for tokens in encoded]
    rows = [_Row(tokenizer.stream(after=tokens), StopStringFilter(stop)) for tokens in encoded]
    for tokens in generate_tokens(
        model,
        encoded,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        eos_token_ids=tokenizer.eos_token_ids,
        vocab_size=tokenizer.vocab_size,
        **options,
    ):
        for row, token in enumerate(tokens):
            if token is not None and token not in tokenizer.eos_token_ids and (text := rows[row].add(token)):
                yield row, text
        if all(row.stop_filter.stopped or token is None for row, token in zip(rows, tokens, strict=True)):
            break
    for number, row in enumerate(rows):
        if text := row.finish():
            yield number, text


class _Row(NamedTuple):
    """The continuation of one prompt: tokens to text, and text up to a stop string."""

    decoder: TextStream
    stop_filter: StopStringFilter

    def add(self, token: int) -> str:
        return "" if self.stop_filter.stopped else self.stop_filter.add(self.decoder.add(token))

    def finish(self) -> str:
        if self.stop_filter.stopped:
            return ""
        return self.stop_filter.add(self.decoder.finish()) + self.stop_filter.finish()


def _run_step(model: CausalLM, input_ids: Tensor, padding: list[int], mask: Mask, cache: KVCache) -> Tensor:
    """The features of the next tokens, with positions that count from the end of each row's padding."""
    if not any(padding):
        return model.features(input_ids, cache=cache)
    offset = cache.length - torch.tensor(padding, device=input_ids.device)
    position_ids = count_positions(input_ids.shape[1], offset=offset).clamp(min=0)
    return model.features(input_ids, mask=mask, position_ids=position_ids, cache=cache)


def _pad_left(prompts: Sequence[Sequence[int]], device: torch.device | str) -> tuple[Tensor, list[int]]:
    """Left-padded prompts (batch, sequence), and the padding of each row."""
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise ShapeError("a prompt needs at least one token; start an empty one with the tokenizer's bos token")
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    rows = [[0] * count + list(prompt) for count, prompt in zip(padding, prompts, strict=True)]
    return torch.tensor(rows, device=device), padding
