"""`measure_effect`: the effect of an intervention on a model's predictions.

In: a decoder, a text, and an intervention: `ablate(...)`, `patch(...)`, or any context manager that changes the model
while it is open. Out: the loss of each token and the next-token probabilities, without and with the intervention.
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
    """The predictions of a model for a text."""

    losses: Tensor
    """Cross-entropy of each token after the first, in nats, (batch, tokens - 1)."""
    next_token_probs: Tensor
    """Probabilities of the token after the last one, (batch, vocab_size)."""


class NextToken(NamedTuple):
    """A candidate for the next token, and its probability before and after the intervention."""

    token: int
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class Effect:
    """Predictions for the same ids (batch, tokens), before and after an intervention."""

    ids: Tensor
    before: Predictions
    after: Predictions
    tokenizer: Any = None

    @property
    def loss_change(self) -> Tensor:
        """The change in loss at each token after the first, in nats, (batch, tokens - 1)."""
        return self.after.losses - self.before.losses

    def next_tokens(self, count: int = 5, *, batch: int = 0) -> list[NextToken]:
        """Return the next tokens whose probability changed most.

        Args:
            count: How many tokens to return.
            batch: The text of the batch.
        """
        before, after = self.before.next_token_probs[batch], self.after.next_token_probs[batch]
        most = (after - before).abs().topk(min(count, len(before))).indices.tolist()
        return [NextToken(token, float(before[token]), float(after[token])) for token in most]

    def __str__(self) -> str:
        """Describe the first text of the batch."""
        before, after = self.before.losses[0], self.after.losses[0]
        lines = [f"loss {before.mean():.3f} -> {after.mean():.3f} nats per token ({(after - before).mean():+.3f})"]
        rises = [at for at in (after - before).topk(min(5, len(before))).indices.tolist() if after[at] > before[at]]
        lines += ["harder to predict:" if rises else "no token became harder to predict"]
        for at in rises:
            token = self._format(int(self.ids[0, at + 1]))
            lines.append(f"  {f'{before[at]:.2f} -> {after[at]:.2f}':>14}  {token} at {at + 1}")
        changed = [one for one in self.next_tokens() if f"{one.before:.3f}" != f"{one.after:.3f}"]
        lines += ["probability of the next token:" if changed else "next-token probabilities did not change"]
        lines += [f"  {f'{one.before:.3f} -> {one.after:.3f}':>14}  {self._format(one.token)}" for one in changed]
        return "\n".join(lines)

    def _format(self, token: int) -> str:
        return str(token) if self.tokenizer is None else repr("".join(as_tokenizer(self.tokenizer).texts([token])))


def measure_effect(
    model: nn.Module,
    text: str | Sequence[int] | Tensor,
    intervention: AbstractContextManager[object],
    tokenizer: Any = None,
    *,
    target: Sequence[int] | Tensor | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> Effect:
    """Compare the predictions of a model for a text without and with an intervention.

    Args:
        model: A decoder, or an encoder-decoder with `target`.
        text: A text, or its token ids.
        intervention: `ablate(...)`, `patch(...)`, or any context manager that changes the model while it is open.
        tokenizer: Needed if `text` is a string; also used to print tokens.
        target: The decoder input ids of an encoder-decoder, including the start token.
        chunk_size: Longer texts are read in chunks with a KV cache. `patch` and `ablate(..., "mean")` need the whole
            text in one chunk.

    Returns:
        The predictions before and after, and the change in loss per token.

    >>> from attnscope.heads import ablate
    >>> from attnscope.models import DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> model = Decoder(config).eval()
    >>> measure_effect(model, [3, 1, 4, 1, 5], ablate(model, {0: [2]})).loss_change.shape
    torch.Size([1, 4])
    """
    ids = to_input_ids(text, tokenizer, caller="measure_effect")
    decoder_ids = None if target is None else to_input_ids(target, tokenizer, caller="measure_effect")
    before = predict(model, ids, target=decoder_ids, chunk_size=chunk_size)
    with intervention:
        after = predict(model, ids, target=decoder_ids, chunk_size=chunk_size)
    return Effect(ids if decoder_ids is None else decoder_ids, before, after, tokenizer)


@torch.no_grad()
def predict(
    model: nn.Module, input_ids: Tensor, *, target: Tensor | None = None, chunk_size: int = CHUNK_SIZE
) -> Predictions:
    """Compute the loss of each token of a text, and the probabilities of the next token.

    Args:
        model: A decoder in eval mode, or an encoder-decoder with `target`.
        input_ids: Token ids, (batch, tokens).
        target: The decoder input ids of an encoder-decoder, (batch, tokens); the losses are those of the target.
        chunk_size: Longer texts are read in chunks with a KV cache.

    Returns:
        Losses of the tokens, and the probabilities of the next token.

    Raises:
        SettingError: There is nothing to predict, or the model is in training mode.
        UnsupportedError: The model does not predict next tokens.

    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> model = Decoder(config).eval()
    >>> found = predict(model, torch.arange(12)[None])
    >>> found.losses.shape, found.next_token_probs.shape
    (torch.Size([1, 11]), torch.Size([1, 50]))
    """
    ids = input_ids if target is None else target
    if ids.shape[1] < 2:
        raise SettingError("predict: expected at least 2 tokens, got 1; there is nothing to predict")
    if chunk_size < 1:
        raise SettingError(f"predict: chunk_size must be at least 1, got {chunk_size}")
    losses, next_token_probs = [], torch.empty(0)
    for start, stop, logits in _logits(model, input_ids, target, chunk_size):
        following = ids[:, start + 1 : stop + 1].to(logits.device)
        known = logits[:, : following.shape[1]].float()
        loss = F.cross_entropy(known.flatten(0, 1), following.flatten(), reduction="none")
        losses.append(loss.view_as(following))
        next_token_probs = logits[:, -1].float().softmax(-1)
    return Predictions(torch.cat(losses, 1), next_token_probs)


def is_encoder_decoder(model: nn.Module | None) -> bool:
    """Whether a model takes two texts, one for its encoder and one for its decoder."""
    return isinstance(model, Seq2Seq) or bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def predicts_next_token(model: nn.Module | None) -> TypeGuard[nn.Module]:
    """Whether a model is a decoder-only language model of AttnScope or transformers."""
    if isinstance(model, Decoder):
        return True
    can_generate = getattr(model, "can_generate", lambda: False)()
    return bool(can_generate) and not getattr(getattr(model, "config", None), "is_encoder_decoder", True)


def _logits(model: nn.Module, ids: Tensor, target: Tensor | None, chunk_size: int) -> Iterator[Chunk]:
    """Yield the logits of each chunk of the predicted text."""
    if target is not None and not is_encoder_decoder(model):
        raise SettingError(f"predict: {type(model).__name__} is not an encoder-decoder; leave out target=")
    if target is None and not predicts_next_token(model):
        raise UnsupportedError(
            f"predict: {type(model).__name__} does not predict the next token of a text. Give target= for an "
            "encoder-decoder; for other models, run the model inside `with ablate(...)` and compare its outputs"
        )
    if model.training:
        raise SettingError("predict: the model is in training mode, where dropout changes losses; call model.eval()")
    if target is not None:
        device = next(model.parameters()).device
        output = model(input_ids=ids.to(device), decoder_input_ids=target.to(device))
        yield Chunk(0, target.shape[1], getattr(output, "logits", output))
        return
    for chunk in run_in_chunks(model, ids, chunk_size, logits=True):
        yield chunk._replace(result=getattr(chunk.result, "logits", chunk.result))
