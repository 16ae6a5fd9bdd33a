"""torch's own transformer layers, with their weights copied into ours."""

from __future__ import annotations

import torch
from torch import nn

from attnscope.models.layers import Block, MultiHeadAttention
from attnscope.models.seq2seq import Seq2Seq, Seq2SeqConfig


@torch.no_grad()
def copy_attention(source: nn.MultiheadAttention, target: MultiHeadAttention) -> None:
    assert source.in_proj_weight is not None
    target.query_key_value.weight.copy_(source.in_proj_weight)
    target.query_key_value.bias.copy_(source.in_proj_bias)
    target.output.load_state_dict(source.out_proj.state_dict())


@torch.no_grad()
def copy_layer(source: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, target: Block) -> None:
    copy_attention(source.self_attn, target.attention)
    target.attention_norm.load_state_dict(source.norm1.state_dict())
    last = source.norm2
    if isinstance(source, nn.TransformerDecoderLayer):
        assert target.cross_attention is not None
        assert target.cross_norm is not None
        copy_attention(source.multihead_attn, target.cross_attention)
        target.cross_norm.load_state_dict(source.norm2.state_dict())
        last = source.norm3
    target.feed_forward_norm.load_state_dict(last.state_dict())
    target.feed_forward.up.load_state_dict(source.linear1.state_dict())
    target.feed_forward.down.load_state_dict(source.linear2.state_dict())


def seq2seq_of(source: nn.Transformer, config: Seq2SeqConfig) -> Seq2Seq:
    """Our encoder-decoder with all weights of torch's; the embeddings, which torch's has not, stay random."""
    target = Seq2Seq(config).double().eval()
    for theirs, ours in ((source.encoder, target.encoder), (source.decoder, target.decoder)):
        for layer, block in zip(theirs.layers, ours, strict=True):
            copy_layer(layer, block)  # pyright: ignore[reportArgumentType]
    assert target.encoder_norm is not None
    assert target.decoder_norm is not None
    for theirs, ours in ((source.encoder.norm, target.encoder_norm), (source.decoder.norm, target.decoder_norm)):
        assert theirs is not None
        ours.load_state_dict(theirs.state_dict())
    return target


def randomize(module: nn.Module) -> None:
    """Weights large enough, and norms uneven enough, that a part in the wrong place shows."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if parameter.dim() == 1 else 0.0))
