"""The layers, against torch's own with copied weights and against the formulas written out."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.attention import Causal, Full, Mask, Padding, Window
from attnscope.attention.algebra import Sizes
from attnscope.attention.rotary import Rotary, rotate, rotation
from attnscope.errors import ShapeError
from attnscope.models.kv_cache import LayerCache
from attnscope.models.layers import Block, FeedForward, MultiHeadAttention
from tests.largest import LargestTensor
from tests.models.copied import copy_attention, copy_layer, randomize

ROTARY = Rotary(dim=4, layout="half")


def dense(layer: MultiHeadAttention, x: Tensor, memory: Tensor, mask: Mask, rotary: Rotary | None = None) -> Tensor:
    """The textbook: three projections, one softmax a head, heads side by side, one projection back."""
    dim, group = layer.head_dim, layer.num_heads // layer.num_kv_heads
    ends = (layer.num_heads * dim, (layer.num_heads + layer.num_kv_heads) * dim)
    weights = layer.query_key_value.weight.tensor_split(ends)
    biases = layer.query_key_value.bias.tensor_split(ends)
    projected = [F.linear(*parts) for parts in zip((x, memory, memory), weights, biases, strict=True)]
    query, key, value = (part.unflatten(-1, (-1, dim)).transpose(1, 2) for part in projected)
    if layer.query_norm is not None and layer.key_norm is not None:
        query, key = layer.query_norm(query), layer.key_norm(key)
    if rotary is not None:
        query, key = rotate(query, rotary), rotate(key, rotary)
    outputs = []
    allowed = mask.to_dense(Sizes(x.shape[0], layer.num_heads, x.shape[1], memory.shape[1])).expand(
        x.shape[0], -1, -1, -1
    )
    for head in range(layer.num_heads):
        scores = query[:, head] @ key[:, head // group].transpose(-1, -2) / dim**0.5
        scores = scores.masked_fill(~allowed[:, 0], -torch.inf)
        outputs.append(scores.softmax(-1) @ value[:, head // group])
    return layer.output(torch.cat(outputs, dim=-1))


@pytest.mark.parametrize("num_kv_heads", [6, 3, 1])
@pytest.mark.parametrize("qk_norm", [None, partial(nn.RMSNorm, eps=1e-6)])
@pytest.mark.parametrize("rotary", [None, ROTARY])
@pytest.mark.parametrize("mask", [Full(), Causal(), Window(3), Causal() & Padding([7, 4])])
def test_attention_is_the_textbook_in_every_grouping(num_kv_heads: int, qk_norm, rotary: Rotary | None, mask: Mask):
    layer = MultiHeadAttention(
        hidden_size=12, num_heads=6, num_kv_heads=num_kv_heads, head_dim=8, qk_norm=qk_norm
    ).double()
    randomize(layer)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    turn = None if rotary is None else rotation(rotary, torch.arange(7), dtype=torch.float64)
    torch.testing.assert_close(layer(x, mask=mask, rotation=turn), dense(layer, x, x, mask, rotary))


def test_cross_attention_is_the_textbook_and_may_project_its_memory_once() -> None:
    layer = MultiHeadAttention(
        hidden_size=12, num_heads=6, num_kv_heads=2, qk_norm=partial(nn.RMSNorm, eps=1e-6)
    ).double()
    randomize(layer)
    x, memory = torch.randn(2, 5, 12, dtype=torch.float64), torch.randn(2, 9, 12, dtype=torch.float64)
    wanted = dense(layer, x, memory, Padding([9, 3]))
    torch.testing.assert_close(layer(x, memory, mask=Padding([9, 3])), wanted)
    torch.testing.assert_close(layer(x, layer.project_memory(memory), mask=Padding([9, 3])), wanted)


def test_self_and_cross_attention_are_those_of_torch() -> None:
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64).eval()
    randomize(theirs)
    ours = MultiHeadAttention(hidden_size=12, num_heads=3).double()
    copy_attention(theirs, ours)
    x, memory = torch.randn(2, 5, 12, dtype=torch.float64), torch.randn(2, 9, 12, dtype=torch.float64)
    dropped = torch.arange(9) >= torch.tensor([[9], [4]])
    output, weights = theirs(x, memory, memory, key_padding_mask=dropped, average_attn_weights=False)
    found, matrix = ours(x, memory, mask=Padding(keep=~dropped), return_matrix=True)
    torch.testing.assert_close(found, output)
    torch.testing.assert_close(matrix.to_dense(), weights)


def test_the_matrix_beside_the_output_holds_its_weights_and_is_never_built() -> None:
    layer = MultiHeadAttention(hidden_size=16, num_heads=2)
    x = torch.randn(1, 1500, 16)
    with LargestTensor() as largest:
        output, matrix = layer(x, mask=Causal(), return_matrix=True)
        matrix.entropy()
    assert largest.elements < 1500 * 1500 / 4
    heads = matrix.to_dense() @ layer._split_heads(layer.query_key_value(x))[:, 4:]
    torch.testing.assert_close(layer.output(heads.transpose(1, 2).flatten(2)), output, rtol=1e-4, atol=1e-5)


def test_a_matrix_of_a_cached_step_speaks_of_all_keys() -> None:
    layer, cache = MultiHeadAttention(hidden_size=8, num_heads=2).double(), LayerCache()
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    with torch.no_grad():
        layer(x[:, :5], mask=Causal(), cache=cache)
        _, matrix = layer(x[:, 5:], mask=Causal(), cache=cache, return_matrix=True)
        _, whole = layer(x, mask=Causal(), return_matrix=True)
    assert matrix.shape == (1, 2, 1, 6)
    torch.testing.assert_close(matrix.to_dense(), whole[..., 5:6, :])


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_blocks_are_those_of_torch(norm_first, activation) -> None:
    options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first, "dtype": torch.float64}
    x, memory = torch.randn(2, 5, 12, dtype=torch.float64), torch.randn(2, 9, 12, dtype=torch.float64)
    for kind in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        cross = kind is nn.TransformerDecoderLayer
        theirs = kind(12, 3, 20, activation=activation, **options)
        randomize(theirs)
        ours = Block(
            attention=MultiHeadAttention(hidden_size=12, num_heads=3),
            feed_forward=FeedForward(hidden_size=12, intermediate_size=20, activation=activation),
            cross_attention=MultiHeadAttention(hidden_size=12, num_heads=3) if cross else None,
            norm=partial(nn.LayerNorm, 12),
            norm_first=norm_first,
        ).double()
        copy_layer(theirs, ours)
        hidden = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
        wanted = theirs(x, memory, tgt_mask=hidden) if cross else theirs(x, src_mask=hidden)
        torch.testing.assert_close(ours(x, memory if cross else None, mask=Causal()), wanted)


def test_swiglu_is_its_formula() -> None:
    layer = FeedForward(hidden_size=4, intermediate_size=6, activation="silu", gated=True, bias=False).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    gate, up = layer.up.weight.chunk(2)
    wanted = (x @ gate.T * torch.sigmoid(x @ gate.T) * (x @ up.T)) @ layer.down.weight.T
    torch.testing.assert_close(layer(x), wanted)


@pytest.mark.parametrize(("activation", "module"), [("gelu", nn.GELU()), ("gelu_tanh", nn.GELU("tanh"))])
def test_the_two_gelus_are_told_apart(activation, module: nn.Module) -> None:
    layer = FeedForward(hidden_size=4, intermediate_size=6, activation=activation).double()
    randomize(layer)
    x = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x), layer.down(module(layer.up(x))), rtol=1e-12, atol=1e-12)


def test_dropout_is_for_training_only() -> None:
    layer = MultiHeadAttention(hidden_size=8, num_heads=2, dropout=0.5)
    x = torch.randn(1, 6, 8)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


def test_gradients_reach_every_parameter() -> None:
    block = Block(
        attention=MultiHeadAttention(hidden_size=12, num_heads=6, num_kv_heads=2, qk_norm=nn.RMSNorm),
        cross_attention=MultiHeadAttention(hidden_size=12, num_heads=3),
        feed_forward=FeedForward(hidden_size=12, intermediate_size=20, gated=True),
        norm=partial(nn.RMSNorm, 12),
    )
    block(torch.randn(2, 5, 12), torch.randn(2, 4, 12), mask=Causal()).square().sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"multiple of num_kv_heads.* 6 and 4"):
        MultiHeadAttention(hidden_size=12, num_heads=6, num_kv_heads=4)
    with pytest.raises(ShapeError, match=r"hidden_size .* 10 and 4"):
        MultiHeadAttention(hidden_size=10, num_heads=4)


def test_cross_attention_refuses_what_belongs_to_self_attention() -> None:
    layer = MultiHeadAttention(hidden_size=8, num_heads=2)
    with pytest.raises(ShapeError, match=r"project_memory\(memory\)"):
        layer(torch.zeros(1, 2, 8), torch.zeros(1, 3, 8), cache=LayerCache())


def test_a_block_with_cross_attention_wants_a_memory() -> None:
    attention = partial(MultiHeadAttention, hidden_size=8, num_heads=2)
    block = Block(
        attention=attention(),
        cross_attention=attention(),
        feed_forward=FeedForward(hidden_size=8, intermediate_size=8),
        norm=partial(nn.LayerNorm, 8),
    )
    with pytest.raises(ShapeError, match=r"cross-attention.* memory"):
        block(torch.zeros(1, 2, 8))
