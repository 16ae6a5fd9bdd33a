"""`read`: a text of any length through a model, piece by piece, into a trace.

In: a model and a text or ids. Out: a `Trace`. Decoders read in pieces, with a cache between them and a progress bar;
other models read all at once. Does not know: how attention is seen or kept. Memory: the trace, the cache, and
one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError
from attnscope.recording.estimates import refuse_too_much
from attnscope.recording.passes import passes
from attnscope.recording.progress import Progress, told
from attnscope.recording.recorder import record
from attnscope.recording.trace import Trace
from attnscope.recording.watch.eager import original_of

PIECE = 2048


def read(
    model: nn.Module,
    text: str | Sequence[int] | Tensor,
    tokenizer: Any = None,
    *,
    piece: int = PIECE,
    progress: Progress | bool = True,
    **options: Any,
) -> Trace:
    """Record a model while it reads a text. Options are those of `record`.

    A decoder reads `piece` tokens at a time, so that no pass has to hold activations for all of them. A progress bar
    shows on a terminal unless `progress` is False or a function of your own.
    """
    ids = ids_of(text, tokenizer)
    if piece < 1:
        raise SettingError(f"read: pieces have at least one token, but {piece} was asked for")
    refuse_too_much(original_of(model), ids, options)
    if options.get("keep") == "statistics":
        options["length"] = ids.shape[1]
    with torch.no_grad(), told(progress, "reading") as tell, record(model, tokenizer, **options) as trace:
        for some in passes(original_of(model), ids, piece):
            tell(some.stop, ids.shape[1])
    return trace


def ids_of(text: str | Sequence[int] | Tensor, tokenizer: Any, *, asked_by: str = "read") -> Tensor:
    """Ids (1, position) or (batch, position); `asked_by` is the function that errors speak of."""
    if isinstance(text, str):
        if tokenizer is None:
            raise SettingError(f"{asked_by}: a text needs a tokenizer; give one, or give ids instead of the text")
        text = tokenizer.encode(text)
    ids = torch.as_tensor(text)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or ids.is_floating_point() or not ids.numel():
        raise SettingError(
            f"{asked_by}: wants ids (position,) or (batch, position), got {tuple(ids.shape)} {ids.dtype}"
        )
    return ids
