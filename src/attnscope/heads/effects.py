"""`effect`: what a change to a model does to its predictions.

In: a decoder, a text, and a change: `ablate(...)`, `patch(...)`, or any context manager that changes the model while it
is open. Out: the loss of each token and the probabilities of the next one, with and without.
Does not know: how the model is changed. Memory: the logits of one chunk, and O(n).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError
from attnscope.models import Decoder, Seq2Seq
from attnscope.recording.chunks import Chunk, run_in_chunks
from attnscope.recording.reading import CHUNK_SIZE, to_input_ids
from attnscope.recording.token_texts import as_tokenizer


class Predictions(NamedTuple):
    """What a model expects of a text."""

    losses: Tensor
    """Nats of surprise at each token after the first, (batch, tokens - 1)."""
    following: Tensor
    """Probabilities of the token after the last, (batch, vocabulary)."""


class NextToken(NamedTuple):
    """A token that may come next, and its probability without and with the change."""

    token: int
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class Effect:
    """Predictions before and after a change, of the same ids (batch, tokens)."""

    ids: Tensor
    before: Predictions
    after: Predictions
    tokenizer: Any = None

    @property
    def change(self) -> Tensor:
        """The rise of the loss at each token after the first, in nats, (batch, tokens - 1)."""
        return self.after.losses - self.before.losses

    def next_tokens(self, count: int = 5, *, batch: int = 0) -> list[NextToken]:
        """The tokens after the last whose probability has changed most."""
        before, after = self.before.following[batch], self.after.following[batch]
        most = (after - before).abs().topk(min(count, len(before))).indices.tolist()
        return [NextToken(token, float(before[token]), float(after[token])) for token in most]

    def __str__(self) -> str:
        """The first text of a batch, in words."""
        before, after = self.before.losses[0], self.after.losses[0]
        lines = [f"loss {before.mean():.3f} -> {after.mean():.3f} nats a token ({(after - before).mean():+.3f})"]
        rises = [at for at in (after - before).topk(min(5, len(before))).indices.tolist() if after[at] > before[at]]
        lines += ["harder to predict:" if rises else "no token became harder to predict"]
        for at in rises:
            shown = self._shown(int(self.ids[0, at + 1]))
            lines.append(f"  {f'{before[at]:.2f} -> {after[at]:.2f}':>14}  {shown} at {at + 1}")
        changed = [one for one in self.next_tokens() if f"{one.before:.3f}" != f"{one.after:.3f}"]
        lines += ["probability of the token after the last:" if changed else "the token after the last is as likely"]
        lines += [f"  {f'{one.before:.3f} -> {one.after:.3f}':>14}  {self._shown(one.token)}" for one in changed]
        return "\n".join(lines)

    def _shown(self, token: int) -> str:
        return str(token) if self.tokenizer is None else repr("".join(as_tokenizer(self.tokenizer).texts([token])))


def effect(
    model: nn.Module,
    text: str | Sequence[int] | Tensor,
    change: AbstractContextManager[object],
    tokenizer: Any = None,
    *,
    target: Sequence[int] | Tensor | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> Effect:
    """Predictions of a text without and with a change.

    `target` are the ids that the decoder of an encoder-decoder is given, beginning with the one that it starts with.
    Texts longer than `chunk_size` are read in chunks with a KV cache between them, which `patch` and the mean of
    `ablate` do not support: give them a larger `chunk_size`.
    """
    ids = to_input_ids(text, tokenizer, asked_by="effect")
    written = None if target is None else to_input_ids(target, tokenizer, asked_by="effect")
    before = predictions(model, ids, target=written, chunk_size=chunk_size)
    with change:
        after = predictions(model, ids, target=written, chunk_size=chunk_size)
    return Effect(ids if written is None else written, before, after, tokenizer)


@torch.no_grad()
def predictions(
    model: nn.Module, ids: Tensor, *, target: Tensor | None = None, chunk_size: int = CHUNK_SIZE
) -> Predictions:
    """What a model expects of ids (batch, tokens), or of the target that it writes to them."""
    told = ids if target is None else target
    if told.shape[1] < 2:
        raise SettingError("predictions: a text of one token has nothing to predict; give a longer one")
    if chunk_size < 1:
        raise SettingError(f"predictions: chunk_size must be at least 1, got {chunk_size}")
    losses, following = [], torch.empty(0)
    for start, stop, logits in _logits(model, ids, target, chunk_size):
        after = told[:, start + 1 : stop + 1].to(logits.device)
        known = logits[:, : after.shape[1]].float()
        losses.append(F.cross_entropy(known.flatten(0, 1), after.flatten(), reduction="none").view_as(after))
        following = logits[:, -1].float().softmax(-1)
    return Predictions(torch.cat(losses, 1), following)


def predicts_next_token(model: nn.Module | None) -> TypeGuard[nn.Module]:
    """Whether a model goes on with a text: a decoder of AttnScope or of transformers."""
    if isinstance(model, Decoder):
        return True
    generates = getattr(model, "can_generate", lambda: False)()
    return bool(generates) and not getattr(getattr(model, "config", None), "is_encoder_decoder", True)


def _logits(model: nn.Module, ids: Tensor, target: Tensor | None, chunk_size: int) -> Iterator[Chunk]:
    """The logits of each chunk of the text that is predicted."""
    writes = isinstance(model, Seq2Seq) or getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if target is not None and not writes:
        raise SettingError(f"predictions: {type(model).__name__} writes no target; leave out target=")
    if target is None and not predicts_next_token(model):
        raise UnsupportedError(
            f"predictions: {type(model).__name__} does not predict the next token of a text. Give target= for an "
            "encoder-decoder; for other models, run the model inside `with ablate(...)` and compare its outputs"
        )
    if model.training:
        raise SettingError("predictions: the model is in training, where dropout changes losses; call model.eval()")
    if target is not None:
        device = next(model.parameters()).device
        names = ("source", "target") if isinstance(model, Seq2Seq) else ("input_ids", "decoder_input_ids")
        found = model(**dict(zip(names, (ids.to(device), target.to(device)), strict=True)))
        yield Chunk(0, target.shape[1], getattr(found, "logits", found))
        return
    for some in run_in_chunks(model, ids, chunk_size, logits=True):
        yield some._replace(result=getattr(some.result, "logits", some.result))
