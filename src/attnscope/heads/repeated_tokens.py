"""The repeated-token probe: a sequence of random tokens, followed by the same sequence.

Only the repetition helps to predict the second half. A head that attends to the token after the previous occurrence of
the current token is an induction head, and one that attends to that occurrence is a duplicate-token head.
In: a model, and optionally its tokenizer. Out: token ids, or a trace of them.
Does not know: scores. Memory: that of a trace of a few hundred tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError, VocabularyError
from attnscope.heads.effects import is_encoder_decoder
from attnscope.progress import Progress
from attnscope.recording import Trace, read
from attnscope.recording.token_texts import as_tokenizer

LENGTH = 256


def repeated_token_ids(vocab_size: int, length: int = LENGTH, *, seed: int = 0, tokenizer: Any = None) -> Tensor:
    """Draw distinct random token ids, and repeat the sequence once.

    Args:
        vocab_size: Ids are drawn from 0 to vocab_size - 1.
        length: The number of distinct tokens, half the length of the result.
        seed: Seeds the draw.
        tokenizer: If given, special tokens and ids without a text are left out.

    Returns:
        Token ids, (2 * length,).

    Raises:
        SettingError: The vocabulary has fewer tokens.

    >>> repeated_token_ids(50, 3)
    tensor([44, 39,  7, 44, 39,  7])
    """
    if length < 1:
        raise SettingError(f"repeated_token_ids: expected a length of at least 1, got {length}")
    order = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(seed)).tolist()
    codec = None if tokenizer is None else as_tokenizer(tokenizer)
    ordinary = (token for token in order if codec is None or _is_ordinary(codec, token))
    half = [token for token, _ in zip(ordinary, range(length), strict=False)]
    if len(half) < length:
        raise SettingError(
            f"repeated_token_ids: the vocabulary has only {len(half)} tokens that are not special, got length={length}"
        )
    return torch.tensor(half + half)


def _is_ordinary(codec: Any, token: int) -> bool:
    """Whether a token has a text; many models have more ids than their tokenizer."""
    try:
        return bool(codec.decode([token], skip_special_tokens=True))
    except VocabularyError:
        return False


def ids_for_model(model: nn.Module, tokenizer: Any = None, *, length: int = LENGTH, seed: int = 0) -> Tensor:
    """Draw the probe from the vocabulary of a model, no longer than its context length."""
    config = getattr(model, "config", None)
    if is_encoder_decoder(model):
        raise UnsupportedError(
            f"read_repeated_tokens: {type(model).__name__} is an encoder-decoder, which reads two texts; record it on "
            "repeated_token_ids(...) yourself, as the text of either"
        )
    vocab_size = getattr(config, "vocab_size", None)
    if not isinstance(vocab_size, int):
        raise SettingError(
            f"read_repeated_tokens: {type(model).__name__} has no config.vocab_size; record it on "
            "repeated_token_ids(...) yourself"
        )
    limit = getattr(config, "max_position_embeddings", None)
    max_length = limit // 2 if isinstance(limit, int) else length
    return repeated_token_ids(vocab_size, min(length, max_length), seed=seed, tokenizer=tokenizer)


def read_repeated_tokens(
    model: nn.Module,
    tokenizer: Any = None,
    *,
    length: int = LENGTH,
    seed: int = 0,
    progress: Progress | bool = True,
) -> Trace:
    """Record a model on the repeated-token probe, for `score_heads(trace, probe=...)`.

    Args:
        model: A model that reads one text, with `config.vocab_size`.
        tokenizer: Leaves out special tokens.
        length: The number of distinct tokens; less if the context length of the model is shorter than twice that.
        seed: Seeds the draw.
        progress: False for no progress bar, or a function to call instead.

    Returns:
        The trace of random tokens that come twice.

    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> model = Decoder(config).eval()
    >>> read_repeated_tokens(model, length=8, progress=False)[0].shape
    torch.Size([1, 4, 16, 16])
    """
    return read(model, ids_for_model(model, tokenizer, length=length, seed=seed), tokenizer, progress=progress)
