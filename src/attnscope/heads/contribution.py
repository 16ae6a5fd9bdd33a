"""`contributions`: how much each head adds to the logit of a token, through its own slab of the output projection.

In: a language model, one text, a position, and a token or a pair of tokens. Out: what each head, the biases of the
output projections and everything else add to the logit; the sum is the model's own logit.
Does not know: attention weights, charts. Memory: that of two passes, and a vector of the model's width for each head.

What a head adds to the residual stream is a vector. The last norm, frozen at the scale that it has at this position,
and the token's row of the unembedding turn that vector into a number. This is bookkeeping of one pass, no experiment:

- It is the direct path alone. What a head makes later layers do is counted there, not here.
- A head may add as much to the logits of all tokens, which changes no probability; the difference of two tokens,
  `against`, says more than one logit.
- With a head removed, the norm would have another scale, which the numbers do not say.

What a head causes is measured by `ablate` and `patch`. Layers that mix tokens without a softmax have no heads here, and
count as everything else. Models are refused where this sum is not what they compute: norms behind attention (BERT,
Gemma 2), gated heads (Qwen3-Next), factors on what layers add (Granite), factors and caps behind the unembedding.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, ShapeError, UnsupportedError
from attnscope.heads.flow import Flow, Place, same
from attnscope.heads.residual import check_arrival, room, written
from attnscope.models import Decoder, Seq2Seq
from attnscope.recording.hooks.eager import eagerly, uncompiled


class Contributions(NamedTuple):
    """Parts of a logit that add up to it: those of `heads` and `biases`, and the `rest`."""

    heads: dict[str, Tensor]
    """For each attention layer, in the order in which they run, what each of its heads adds: (heads,)."""
    biases: float
    """What the biases of all output projections add."""
    rest: float
    """What everything else adds: embeddings, feed-forward layers, biases of the last norm and the unembedding."""
    logit: float
    """The logit of `token`, minus that of `against` if there is one."""
    token: int
    against: int | None
    position: int


@torch.no_grad()
def contributions(
    model: nn.Module, ids: Tensor, *, token: int | None = None, position: int = -1, against: int | None = None
) -> Contributions:
    """What each head adds to the logit of a token after `position`, along the direct path.

    `ids` are those of one text, (position,) or (1, position). The token is the likeliest next one unless you choose.
    With `against`, everything is about the difference of two logits: token minus against.

    >>> from attnscope.models import DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> parts = contributions(Decoder(config).eval(), torch.tensor([3, 1, 4, 1, 5]), token=9, against=2)
    >>> [(name, len(heads)) for name, heads in parts.heads.items()]
    [('blocks.0.attention', 4), ('blocks.1.attention', 4)]
    """
    ids, position = _checked(model, ids, position)
    flow = Flow(uncompiled(model), Place(ids.shape[1], position))
    with eagerly(model, "contributions"):
        logits = _logits(flow.run(ids), flow.place)
    token = int(logits.argmax()) if token is None else token
    for name, value in {"token": token, "against": against}.items():
        if value is not None and not 0 <= value < len(logits):
            raise SettingError(f"contributions: {name}={value}; the model has logits for tokens 0 to {len(logits) - 1}")
    row, features = _unembedding(flow, logits, token, against)
    norm, stream, direction = _through_norm(flow, features, row)
    layers = written(flow)
    check_arrival(flow, layers, ids, norm, stream)
    heads = {layer.attention.name: layer.heads @ direction for layer in layers}
    biases = sum(float(layer.bias @ direction) for layer in layers)
    logit = float(logits[token]) - (0.0 if against is None else float(logits[against]))
    rest = logit - biases - sum(float(parts.sum()) for parts in heads.values())
    return Contributions(heads, biases, rest, logit, token, against, position)


def _checked(model: nn.Module, ids: Tensor, position: int) -> tuple[Tensor, int]:
    """The ids as (1, position) and the position from the beginning."""
    if not isinstance(model, nn.Module):
        raise SettingError(f"contributions: wants a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, Seq2Seq) or getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise UnsupportedError(
            f"contributions: {type(model).__name__} reads two texts, an encoder's and a decoder's; this is for models "
            "that read one"
        )
    if model.training:
        raise SettingError("contributions: the model is in training, where dropout changes logits; call model.eval()")
    ids = torch.as_tensor(ids)
    if ids.dim() == 1:
        ids = ids[None]
    if ids.dim() != 2 or len(ids) != 1 or not ids.shape[1] or ids.is_floating_point():
        raise ShapeError(
            f"contributions: wants the ids of one text, (position,) or (1, position), got {tuple(ids.shape)} of "
            f"{ids.dtype}"
        )
    length = ids.shape[1]
    if not -length <= position < length:
        raise SettingError(f"contributions: position={position} in a text of {length} tokens")
    return ids, position % length


def _logits(output: Any, place: Place) -> Tensor:
    """The row of logits in what a model returns."""
    found = getattr(output, "logits", None)
    found = found if found is not None else output[0] if isinstance(output, tuple) else output
    row = place.row(found)
    if row is None or row.dim() != 1:
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UnsupportedError(
            f"contributions: wants a language model, which returns logits (1, {place.length}, vocabulary) for one text "
            f"of {place.length} tokens; this one returned {what}"
        )
    return row


def _unembedding(flow: Flow, logits: Tensor, token: int, against: int | None) -> tuple[Tensor, Tensor]:
    """The token's row of the unembedding, minus that of the other, and the features that it is multiplied with."""
    weight, bias, features = _projection_to(flow, logits)
    chosen = [token] if against is None else [token, against]
    rows = weight[chosen].cpu().double()
    terms = rows * features.cpu().double()
    found = terms.sum(-1) + (0 if bias is None else bias[chosen].cpu().double())
    allowed = room(features.dtype) * (terms.norm(dim=-1) + found.abs())
    if ((found - logits[chosen].cpu().double()).abs() > allowed).any():
        raise UnsupportedError(
            f"contributions: the unembedding of {type(flow.model).__name__} is no plain product with its weight, so "
            "that a token has no row of it"
        )
    return rows[0] if against is None else rows[0] - rows[1], features


def _projection_to(flow: Flow, logits: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Weight, bias and input of the linear layer whose output the logits are."""
    if isinstance(flow.model, Decoder) and flow.model.head is None:  # multiplies with the embeddings by a function
        features = next(step.said[0] for step in flow.steps if step.module is flow.model.norm)
        assert features is not None
        return flow.model.embedding.weight, None, features
    for step in flow.steps:
        weight = getattr(step.module, "weight", None)
        if step.given is None or not isinstance(weight, Tensor) or not same(step.said[0], logits):
            continue
        if weight.shape == (len(logits), *step.given.shape):
            return weight, getattr(step.module, "bias", None), step.given
    raise UnsupportedError(
        f"contributions: the logits of {type(flow.model).__name__} are not what a linear layer of it says: a cap or a "
        "factor comes behind its unembedding, or it has none"
    )


def _through_norm(flow: Flow, features: Tensor, row: Tensor) -> tuple[nn.Module, Tensor, Tensor]:
    """The last norm, the stream that it is given, and the row of the unembedding seen through it.

    The product of that with a vector is what the vector adds to the logit as long as the norm keeps its scale.
    """
    for step in flow.steps:
        if step.given is None or step.given.shape != features.shape or not same(step.said[0], features):
            continue
        if step.hands_on or flow.around_attention(step.module):  # a dropout; a block, in a model without a last norm
            continue
        gain, centred = _frozen(flow, step.module, step.given, features)
        direction = row * gain
        return step.module, step.given, direction - direction.mean() if centred else direction
    raise UnsupportedError(
        f"contributions: what the unembedding of {type(flow.model).__name__} is given is not what a norm says: another "
        "operation lies between, or there is no last norm"
    )


def _frozen(flow: Flow, norm: nn.Module, stream: Tensor, said: Tensor) -> tuple[Tensor, bool]:
    """What a norm multiplies this stream with, (width,), and whether it subtracts the mean before.

    Families write the weight as it is or as what is added to one. The reading that comes closest for the stream and for
    random rows is the right one; the scale is measured, so that epsilon need not be known.
    """
    noise = torch.randn(4, len(stream), generator=torch.Generator().manual_seed(0)) + 1
    probes = noise.to(stream) * stream.float().square().mean().sqrt().to(stream)
    rows = torch.cat((stream[None], probes)).cpu().double()
    bias, weight = (getattr(norm, name, None) for name in ("bias", "weight"))
    shift = torch.zeros(()) if bias is None else bias.cpu().double()
    outputs = torch.cat((said[None], norm(probes[None])[0])).cpu().double() - shift
    gains = [torch.ones(())] if weight is None else [weight.cpu().double(), 1 + weight.cpu().double()]
    readings = []
    for gain, centred in product(gains, (True, False)):
        shaped = (rows - rows.mean(-1, keepdim=True) if centred else rows) * gain
        scales = (outputs * shaped).sum(-1, keepdim=True) / shaped.square().sum(-1, keepdim=True)
        errors = (outputs - scales * shaped).norm(dim=-1) / outputs.norm(dim=-1)
        readings.append((float(errors.nan_to_num(torch.inf).max()), gain * scales[0], centred))
    error, gain, centred = min(readings, key=lambda reading: reading[0])
    if error > room(said.dtype):
        raise UnsupportedError(
            f"contributions: the last norm, {flow.names[id(norm)]} ({type(norm).__name__}), is neither a LayerNorm nor "
            "an RMSNorm, so that it cannot be frozen at its scale"
        )
    return gain, centred
