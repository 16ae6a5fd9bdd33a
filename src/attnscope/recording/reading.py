"""`read`: record a model while it reads a text of any length, chunk by chunk.

In: a model and a text or ids. Out: a `Trace`. Decoders read in chunks, with a KV cache between them and a progress bar;
other models read the whole sequence at once. Does not know: how attention is intercepted or stored.
Memory: the trace, the KV cache, and the activations of one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError
from attnscope.progress import Progress, report_progress
from attnscope.recording.chunks import run_in_chunks
from attnscope.recording.estimates import check_memory
from attnscope.recording.hooks.eager import uncompiled
from attnscope.recording.recorder import record
from attnscope.recording.trace import Trace

CHUNK_SIZE = 2048


def read(
    model: nn.Module,
    text: str | Sequence[int] | Tensor,
    tokenizer: Any = None,
    *,
    chunk_size: int = CHUNK_SIZE,
    progress: Progress | bool = True,
    **options: Any,
) -> Trace:
    """Record a model while it reads a text.

    Args:
        model: Any PyTorch model that `record` supports.
        text: A string, or token ids (positions,) or (batch, positions).
        tokenizer: Needed for a string; it also names the tokens of the trace.
        chunk_size: A decoder reads this many tokens per forward pass, with a KV cache between the passes, so that
            activations of the whole sequence are never held at once.
        progress: True for a progress bar on a terminal, False for none, or a function `(done, total)`.
        **options: Those of `record`.

    Returns:
        The trace.

    Raises:
        SettingError: A string without a tokenizer, ids of a wrong shape, or more memory than the machine has.

    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> model = Decoder(config).eval()
    >>> read(model, list(range(20)), progress=False)[1].shape  # layer 1
    torch.Size([1, 4, 20, 20])
    """
    ids = to_input_ids(text, tokenizer)
    if chunk_size < 1:
        raise SettingError(f"read: chunk_size must be at least 1, got {chunk_size}")
    check_memory(uncompiled(model), ids, options)
    if options.get("keep") == "statistics":
        options["length"] = ids.shape[1]
    with torch.no_grad(), report_progress(progress, "reading") as report, record(model, tokenizer, **options) as trace:
        for chunk in run_in_chunks(uncompiled(model), ids, chunk_size):
            report(chunk.stop, ids.shape[1])
    return trace


def to_input_ids(text: str | Sequence[int] | Tensor, tokenizer: Any, *, caller: str = "read") -> Tensor:
    """Ids (1, position) or (batch, position); `caller` is the function that error messages name."""
    if isinstance(text, str):
        if tokenizer is None:
            raise SettingError(f"{caller}: a text needs a tokenizer; give one, or give ids instead of the text")
        text = tokenizer.encode(text)
    ids = torch.as_tensor(text)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or ids.is_floating_point() or not ids.numel():
        raise SettingError(
            f"{caller}: expected ids (position,) or (batch, position), got {tuple(ids.shape)} {ids.dtype}"
        )
    return ids
