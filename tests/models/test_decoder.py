"""The decoder: cached, chunked, batched, packed and compiled passes are the plain one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnscope.attention import Documents, Padding
from attnscope.attention.positions import sinusoidal
from attnscope.attention.rotary import Rotary
from attnscope.errors import ShapeError
from attnscope.models.decoder import Decoder, DecoderConfig
from tests.models.copied import randomize

GPT2 = DecoderConfig(
    vocab_size=40, hidden_size=24, num_layers=3, num_heads=4, intermediate_size=32, max_position_embeddings=64
)
LLAMA = replace(
    GPT2,
    num_kv_heads=2,
    head_dim=8,
    position_encoding=Rotary(dim=8, layout="half"),
    norm="rms",
    activation="silu",
    gated=True,
    qkv_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    sliding_windows=(None, 5, None),
    tie_word_embeddings=False,
)
CONFIGS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "qwen3": replace(LLAMA, qk_norm=True, sliding_windows=None),
    "sinusoidal": replace(GPT2, position_encoding="sinusoidal"),
    "none": replace(GPT2, position_encoding="none"),
}
TOKENS = torch.randint(40, (2, 19), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Decoder:
    decoder = Decoder(CONFIGS[request.param]).double().eval()
    randomize(decoder)
    return decoder


@torch.no_grad()
@pytest.mark.parametrize("capacity", [19, None])
@pytest.mark.parametrize("chunk", [1, 4, 18])
def test_chunks_with_a_cache_are_the_whole_pass(model: Decoder, capacity: int | None, chunk: int) -> None:
    cache = model.new_cache(capacity)
    pieces = [model(piece, cache=cache) for piece in TOKENS.split(chunk, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(TOKENS), rtol=1e-9, atol=1e-9)
    assert cache.length == 19


@torch.no_grad()
def test_a_batch_is_its_rows_alone(model: Decoder) -> None:
    alone = torch.cat([model(TOKENS[:1]), model(TOKENS[1:])])
    torch.testing.assert_close(model(TOKENS), alone, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_padding_after_a_text_changes_nothing_in_it(model: Decoder) -> None:
    padded = model(TOKENS, mask=Padding([19, 6]))
    torch.testing.assert_close(padded[1:, :6], model(TOKENS[1:, :6]), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_packed_documents_are_those_documents_alone(model: Decoder) -> None:
    ids = torch.tensor([0] * 8 + [1] * 11)
    positions = torch.cat([torch.arange(8), torch.arange(11)])
    packed = model(TOKENS[:1], mask=Documents(ids), position_ids=positions)
    alone = torch.cat([model(TOKENS[:1, :8]), model(TOKENS[:1, 8:])], dim=1)
    torch.testing.assert_close(packed, alone, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_no_token_sees_a_later_one(model: Decoder) -> None:
    changed = TOKENS.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 40
    difference = (model(changed) - model(TOKENS)).abs().amax(-1)
    assert (difference[:, :10] == 0).all()
    assert (difference[:, 10:] > 0).all()


@torch.no_grad()
def test_a_window_ends_where_it_says() -> None:
    model = Decoder(replace(LLAMA, num_layers=1, sliding_windows=(5,))).double().eval()
    randomize(model)
    changed = TOKENS.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 40
    difference = (model(changed) - model(TOKENS)).abs().amax(-1)
    assert (difference[:, 10:15] > 0).all()
    assert (difference[:, 15:] == 0).all()


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "qwen3"))])
@torch.no_grad()
def test_a_compiled_forward_gives_the_same(name: str) -> None:
    torch.compiler.reset()
    model = Decoder(CONFIGS[name]).eval()
    randomize(model)
    compiled = torch.compile(model, fullgraph=True)
    exact = Decoder(CONFIGS[name]).double().eval()
    exact.load_state_dict(model.state_dict())
    wanted = exact(TOKENS)
    error = max(distance(model(TOKENS), wanted), torch.finfo(torch.float32).eps * wanted.abs().max().item())
    assert distance(compiled(TOKENS), wanted) <= 4 * error


def distance(found: Tensor, wanted: Tensor) -> float:
    return (found.double() - wanted).abs().max().item()


def test_gradients_reach_every_parameter(model: Decoder) -> None:
    model(TOKENS).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_weights_are_drawn_smaller_where_they_are_added_up() -> None:
    model = Decoder(replace(GPT2, hidden_size=256, num_layers=8, num_heads=4, intermediate_size=512))
    weights = dict(model.named_parameters())
    assert weights["blocks.0.feed_forward.up.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert weights["blocks.0.feed_forward.down.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert weights["blocks.7.attention_norm.weight"].eq(1).all()


@torch.no_grad()
def test_a_text_longer_than_learned_positions_is_refused() -> None:
    model = Decoder(replace(GPT2, max_position_embeddings=8))
    with pytest.raises(ShapeError, match=r"LearnedPositions.*0 to 7, got 0 to 18"):
        model(TOKENS)


def test_sinusoidal_positions_are_added_to_the_embeddings() -> None:
    model = Decoder(replace(GPT2, position_encoding="sinusoidal", num_layers=1)).double().eval()
    plain = Decoder(replace(GPT2, position_encoding="none", num_layers=1)).double().eval()
    plain.load_state_dict(model.state_dict())
    waves = sinusoidal(19, 24, dtype=torch.float64)
    plain.embedding.register_forward_hook(lambda _, __, x: torch.add(x, waves))  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(plain(TOKENS), model(TOKENS))


@torch.no_grad()
def test_a_pass_that_broke_off_is_noticed_also_with_positions() -> None:
    model = Decoder(GPT2)
    cache = model.new_cache()
    model(TOKENS, cache=cache)
    cache[0].extend(*torch.zeros(2, 2, 4, 1, 6))
    with pytest.raises(ShapeError, match=r"crop\("):
        model(TOKENS[:, :1], position_ids=torch.tensor([20]), cache=cache)


@pytest.mark.parametrize("shape", [(1,), (2, 1), (1, 19), (3, 19)])
def test_positions_that_do_not_belong_to_the_tokens_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="position_ids"):
        Decoder(GPT2)(TOKENS, position_ids=torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize("batch", [0, 1])
def test_a_text_without_tokens_is_refused(batch: int) -> None:
    with pytest.raises(ShapeError, match="input_ids: expected at least one token per row, got none"):
        Decoder(GPT2)(torch.zeros(batch, 0, dtype=torch.long))


def test_tokens_without_a_batch_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"input_ids.* \(19,\)"):
        Decoder(GPT2)(TOKENS[0])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("position_encoding", "rotary"),
        ("norm", "layernorm"),
        ("activation", "swish"),
        ("dropout", 2.0),
        ("head_dim", 0),
    ],
)
def test_a_setting_that_means_nothing_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"DecoderConfig\.{setting} .*{value}"):
        replace(GPT2, **{setting: value})


def test_impossible_sizes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"DecoderConfig\.num_layers must be at least 1, got 0"):
        replace(GPT2, num_layers=0)
    with pytest.raises(ValueError, match=r"sliding_windows: .* 3 blocks, got 2"):
        replace(GPT2, sliding_windows=(3, None))
