"""The standard probe: random tokens, and the same tokens once more.

Nothing but the repetition helps to predict the second half, so a head that looks at the token after the last place of
the current one can only be repeating, and one that looks at that place itself can only be comparing.
In: a model, and its tokenizer if there is one. Out: ids, or a trace of them.
Does not know: scores. Memory: that of a trace of a few hundred tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError, VocabularyError
from attnscope.models import Seq2Seq
from attnscope.recording import Trace, read
from attnscope.recording.progress import Progress
from attnscope.recording.token_texts import as_tokenizer

LENGTH = 256


def probe_ids(vocabulary: int, length: int = LENGTH, *, seed: int = 0, tokenizer: Any = None) -> Tensor:
    """(2 * length,): ids that are drawn without repetition, twice; of special tokens none, where a tokenizer tells.

    >>> probe_ids(50, 3)
    tensor([44, 39,  7, 44, 39,  7])
    """
    if length < 1:
        raise SettingError(f"probe_ids: {length} tokens were asked for; it takes one at least")
    order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed)).tolist()
    codec = None if tokenizer is None else as_tokenizer(tokenizer)
    plain = (number for number in order if codec is None or _is_plain(codec, number))
    half = [number for number, _ in zip(plain, range(length), strict=False)]
    if len(half) < length:
        raise SettingError(
            f"probe_ids: {length} different tokens were asked for, and the vocabulary has {len(half)} that are not "
            "special; ask for fewer"
        )
    return torch.tensor(half + half)


def _is_plain(codec: Any, number: int) -> bool:
    """Whether an id is a token with a text; models often have room for more ids than their tokenizer knows."""
    try:
        return bool(codec.decode([number], special=False))
    except VocabularyError:
        return False


def ids_for(model: nn.Module, tokenizer: Any = None, *, length: int = LENGTH, seed: int = 0) -> Tensor:
    """The probe for a model: of its vocabulary, and no longer than the texts that it can read."""
    config = getattr(model, "config", None)
    if isinstance(model, Seq2Seq) or getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(
            f"the probe: {type(model).__name__} reads two texts, an encoder's and a decoder's; record probe_ids(...) "
            "with it yourself, as the text of either"
        )
    vocabulary = getattr(config, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise SettingError(
            f"the probe: {type(model).__name__} does not say how large its vocabulary is (config.vocab_size); record "
            "probe_ids(...) with it yourself"
        )
    longest = getattr(config, "max_position_embeddings", None)
    room = longest // 2 if isinstance(longest, int) else length
    return probe_ids(vocabulary, min(length, room), seed=seed, tokenizer=tokenizer)


def read_probe(
    model: nn.Module,
    tokenizer: Any = None,
    *,
    length: int = LENGTH,
    seed: int = 0,
    progress: Progress | bool = True,
) -> Trace:
    """A trace of a model over the standard probe."""
    return read(model, ids_for(model, tokenizer, length=length, seed=seed), tokenizer, progress=progress)
