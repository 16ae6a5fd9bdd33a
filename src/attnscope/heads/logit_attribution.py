"""`direct_logit_attribution`: how much each head adds to the logit of a token.

In: a language model, one text, a position, and a token or a pair of tokens. Out: what each head, the biases of the
output projections and everything else add to the logit; the sum is the model's own logit.
Does not know: attention weights, charts. Memory: that of two forward passes, and one vector per head.

A head adds a vector to the residual stream. The final norm, frozen at its scale at this position, and the token's row
of the unembedding turn that vector into a number (Elhage et al., 2021). This decomposes one forward pass. It is not a
causal experiment:

- It contains the direct path only. The effect of a head on later layers counts as theirs.
- A head may add the same to the logits of all tokens, which changes no probability. The difference of two tokens,
  `against`, tells more than one logit.
- Without a head, the norm would have another scale.

`ablate` and `patch` measure causal effects. Layers that mix tokens without a softmax have no heads here, and count as
everything else. Models where this sum is not what they compute are unsupported: norms after attention (BERT, Gemma 2),
gated heads (Qwen3-Next), scaled residuals (Granite), factors and caps after the unembedding.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, ShapeError, UnsupportedError
from attnscope.heads.activations import Activations, TokenPosition, rows_equal
from attnscope.heads.effects import is_encoder_decoder
from attnscope.heads.residual_stream import check_additive, relative_tolerance, residual_updates
from attnscope.models import Decoder
from attnscope.recording.hooks.eager import eagerly, uncompiled


class LogitAttribution(NamedTuple):
    """Parts of a logit that add up to it: those of `heads` and `biases`, and the `rest`."""

    heads: dict[str, Tensor]
    """What each head adds, (heads,), by attention layer in the order of execution."""
    biases: float
    """What the biases of all output projections add."""
    rest: float
    """What everything else adds: embeddings, feed-forward layers, biases of the final norm and the unembedding."""
    logit: float
    """The logit of `token`, minus that of `against` if it is given."""
    token: int
    against: int | None
    position: int


@torch.no_grad()
def direct_logit_attribution(
    model: nn.Module, input_ids: Tensor, *, token: int | None = None, position: int = -1, against: int | None = None
) -> LogitAttribution:
    """Split the logit of a token into the direct contributions of all heads, the biases and the rest.

    Args:
        model: A language model in eval mode.
        input_ids: The token ids of one text, (tokens,) or (1, tokens).
        token: The token whose logit is split; by default the most likely one.
        position: The position that predicts the token.
        against: Splits the difference of two logits instead: `token` minus `against`.

    Returns:
        The contributions, which add up to the model's own logit.

    Raises:
        UnsupportedError: The logit is not such a sum in this model.

    >>> from attnscope.models import DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> parts = direct_logit_attribution(Decoder(config).eval(), torch.tensor([3, 1, 4, 1, 5]), token=9, against=2)
    >>> [(name, len(heads)) for name, heads in parts.heads.items()]
    [('blocks.0.attention', 4), ('blocks.1.attention', 4)]
    """
    input_ids, position = _validate(model, input_ids, position)
    activations = Activations(uncompiled(model), TokenPosition(input_ids.shape[1], position))
    with eagerly(model, "direct_logit_attribution"):
        return _attribute(activations, input_ids, token, against)


def _attribute(activations: Activations, input_ids: Tensor, token: int | None, against: int | None) -> LogitAttribution:
    """Split the logit, in two forward passes."""
    logits = _logits_row(activations.run(input_ids), activations.position)
    token = int(logits.argmax()) if token is None else token
    for name, value in {"token": token, "against": against}.items():
        if value is not None and not 0 <= value < len(logits):
            raise SettingError(
                f"direct_logit_attribution: expected {name} from 0 to {len(logits) - 1}, the vocabulary, got {value}"
            )
    row, features = _unembedding(activations, logits, token, against)
    norm, stream, direction = _final_norm(activations, features, row)
    updates = residual_updates(activations)
    check_additive(activations, updates, input_ids, norm, stream)
    heads = {update.layer.name: update.heads @ direction for update in updates}
    biases = sum(float(update.bias @ direction) for update in updates)
    logit = float(logits[token]) - (0.0 if against is None else float(logits[against]))
    rest = logit - biases - sum(float(parts.sum()) for parts in heads.values())
    return LogitAttribution(heads, biases, rest, logit, token, against, activations.position.position)


def _validate(model: nn.Module, input_ids: Tensor, position: int) -> tuple[Tensor, int]:
    """Return the ids as (1, tokens), and the position counted from the start."""
    if not isinstance(model, nn.Module):
        raise SettingError(f"direct_logit_attribution: expected a torch.nn.Module, got {type(model).__name__}")
    if is_encoder_decoder(model):
        raise UnsupportedError(
            f"direct_logit_attribution: {type(model).__name__} is an encoder-decoder, which reads two texts; only "
            "models that read one text are supported"
        )
    if model.training:
        raise SettingError(
            "direct_logit_attribution: the model is in training mode, where dropout changes logits; call model.eval()"
        )
    input_ids = torch.as_tensor(input_ids)
    if input_ids.dim() == 1:
        input_ids = input_ids[None]
    is_one_text = input_ids.dim() == 2 and len(input_ids) == 1 and input_ids.shape[1] > 0
    if not is_one_text or input_ids.is_floating_point():
        raise ShapeError(
            "direct_logit_attribution: expected the ids of one text, (tokens,) or (1, tokens), got "
            f"{tuple(input_ids.shape)} of {input_ids.dtype}"
        )
    length = input_ids.shape[1]
    if not -length <= position < length:
        raise SettingError(f"direct_logit_attribution: position={position} is outside of a text of {length} tokens")
    return input_ids, position % length


def _logits_row(output: Any, position: TokenPosition) -> Tensor:
    """Return the logits at the position from the output of a model."""
    found = getattr(output, "logits", None)
    found = found if found is not None else output[0] if isinstance(output, tuple) else output
    row = position.row(found)
    if row is None or row.dim() != 1:
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UnsupportedError(
            f"direct_logit_attribution: expected a language model that returns logits (1, {position.length}, "
            f"vocab_size) for a text of {position.length} tokens, got {what}"
        )
    return row


def _unembedding(activations: Activations, logits: Tensor, token: int, against: int | None) -> tuple[Tensor, Tensor]:
    """Return the token's row of the unembedding, minus that of `against`, and the features it is multiplied by."""
    weight, bias, features = _find_unembedding(activations, logits)
    chosen = [token] if against is None else [token, against]
    rows = weight[chosen].cpu().double()
    terms = rows * features.cpu().double()
    found = terms.sum(-1) + (0 if bias is None else bias[chosen].cpu().double())
    allowed = relative_tolerance(features.dtype) * (terms.norm(dim=-1) + found.abs())
    if ((found - logits[chosen].cpu().double()).abs() > allowed).any():
        raise UnsupportedError(
            f"direct_logit_attribution: the unembedding of {type(activations.model).__name__} is not a plain product "
            "with its weight, so tokens have no rows"
        )
    return rows[0] if against is None else rows[0] - rows[1], features


def _find_unembedding(activations: Activations, logits: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return weight, bias and input of the linear layer that outputs the logits."""
    model = activations.model
    if isinstance(model, Decoder) and model.head is None:  # multiplies with the embeddings by a function
        features = next(call.outputs[0] for call in activations.calls if call.module is model.norm)
        assert features is not None
        return model.embedding.weight, None, features
    for call in activations.calls:
        weight = getattr(call.module, "weight", None)
        if call.input is None or not isinstance(weight, Tensor) or not rows_equal(call.outputs[0], logits):
            continue
        if weight.shape == (len(logits), *call.input.shape):
            return weight, getattr(call.module, "bias", None), call.input
    raise UnsupportedError(
        f"direct_logit_attribution: the logits of {type(model).__name__} are not the output of a linear layer: a cap "
        "or a factor follows its unembedding, or it has none"
    )


def _final_norm(activations: Activations, features: Tensor, row: Tensor) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the final norm, the stream it receives, and the unembedding row pulled back through the norm.

    The dot product of the latter with a vector is what the vector adds to the logit while the norm keeps its scale.
    """
    for call in activations.calls:
        if call.input is None or call.input.shape != features.shape or not rows_equal(call.outputs[0], features):
            continue
        if call.is_identity or activations.contains_attention(call.module):  # a dropout; a block without a final norm
            continue
        gain, is_centred = _freeze_norm(activations, call.module, call.input, features)
        direction = row * gain
        return call.module, call.input, direction - direction.mean() if is_centred else direction
    raise UnsupportedError(
        f"direct_logit_attribution: the input of the unembedding of {type(activations.model).__name__} is not the "
        "output of a norm: another operation lies between, or there is no final norm"
    )


def _freeze_norm(activations: Activations, norm: nn.Module, stream: Tensor, output: Tensor) -> tuple[Tensor, bool]:
    """Return the factor of a norm for this stream, (hidden_size,), and whether it subtracts the mean first.

    Some families store the weight itself, others the weight minus one. All combinations are tried on the stream and on
    random rows, and the closest one is used. The scale is measured, so epsilon need not be known.
    """
    noise = torch.randn(4, len(stream), generator=torch.Generator().manual_seed(0)) + 1
    probes = noise.to(stream) * stream.float().square().mean().sqrt().to(stream)
    rows = torch.cat((stream[None], probes)).cpu().double()
    bias, weight = (getattr(norm, name, None) for name in ("bias", "weight"))
    shift = torch.zeros(()) if bias is None else bias.cpu().double()
    outputs = torch.cat((output[None], norm(probes[None])[0])).cpu().double() - shift
    gains = [torch.ones(())] if weight is None else [weight.cpu().double(), 1 + weight.cpu().double()]
    fits = []
    for gain, is_centred in product(gains, (True, False)):
        shaped = (rows - rows.mean(-1, keepdim=True) if is_centred else rows) * gain
        scales = (outputs * shaped).sum(-1, keepdim=True) / shaped.square().sum(-1, keepdim=True)
        errors = (outputs - scales * shaped).norm(dim=-1) / outputs.norm(dim=-1)
        fits.append((float(errors.nan_to_num(torch.inf).max()), gain * scales[0], is_centred))
    error, gain, is_centred = min(fits, key=lambda fit: fit[0])
    if error > relative_tolerance(output.dtype):
        raise UnsupportedError(
            f"direct_logit_attribution: the final norm, {activations.names[id(norm)]} ({type(norm).__name__}), is "
            "neither a LayerNorm nor an RMSNorm, so it cannot be frozen at its scale"
        )
    return gain, is_centred
