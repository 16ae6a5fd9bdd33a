"""GPT-2, Llama, Mistral, Qwen2 and Qwen3 with random weights compute what transformers computes, both ways."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from attnscope.attention.rotary import Rotary
from attnscope.attention.rotary_scaling import LinearScaling, Llama3Scaling, NTKScaling, YarnScaling
from attnscope.errors import CheckpointError
from attnscope.models.checkpoint import load, save
from attnscope.models.decoder import Decoder, DecoderConfig
from tests.models.checkpoint.theirs import DECODERS, loaded, logits, make, opened, randomized

# Logits are of size 10, made of sums of at most 45 products in 3 layers: roundings of 1e-15 that grow a little.
EXACT = {"rtol": 0, "atol": 1e-12}

INV_FREQ = "model.layers.0.self_attn.rotary_emb.inv_freq"


@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_transformers_both_ways(name: str, tmp_path: Path) -> None:
    theirs = make(DECODERS[name])
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert isinstance(ours, Decoder)
    assert not ours.training
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float64}
    expected = logits(theirs)
    assert expected.abs().max() > 1
    torch.testing.assert_close(logits(ours), expected, **EXACT)

    randomized(ours)
    save(ours, tmp_path / "ours")
    torch.testing.assert_close(logits(opened(tmp_path / "ours")), logits(ours), **EXACT)
    again = load(tmp_path / "ours")
    assert again.config == ours.config
    assert torch.equal(logits(again), logits(ours))
    family = "llama" if name == "mistral without a window" else DECODERS[name].model_type
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == family


def test_the_comparison_sees_a_float32_angle(tmp_path: Path) -> None:
    theirs = make(DECODERS["llama"])
    theirs.save_pretrained(tmp_path)
    theirs.model.rotary_emb.inv_freq = theirs.model.rotary_emb.inv_freq.float().double()
    assert (logits(load(tmp_path)) - logits(theirs)).abs().max() > 1e-9


@pytest.mark.parametrize(("name", "body"), [("gpt2", "transformer"), ("llama tied, with wide heads", "model")])
def test_the_bare_body_of_a_tied_model_is_the_model(name: str, body: str, tmp_path: Path) -> None:
    theirs = make(DECODERS[name])
    getattr(theirs, body).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert not any(key.startswith(body) for key in file.keys())  # noqa: SIM118
    torch.testing.assert_close(logits(load(tmp_path)), logits(theirs), **EXACT)


@pytest.mark.parametrize(
    ("name", "body"), [("gpt2 with its own head, width and activation", "transformer"), ("llama", "model")]
)
def test_the_bare_body_of_an_untied_model_is_refused(name: str, body: str, tmp_path: Path) -> None:
    getattr(make(DECODERS[name]), body).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no lm_head\.weight.* base model without its head"):
        load(tmp_path)


def with_tensors(folder: Path, **changed: torch.Tensor | None) -> None:
    """Put tensors into the file of a folder, or take them out."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | changed
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path, {"format": "pt"})


def test_old_buffers_and_a_copy_of_tied_embeddings_change_nothing(tmp_path: Path) -> None:
    theirs = make(DECODERS["llama tied, with wide heads"])
    theirs.save_pretrained(tmp_path)
    embeddings = theirs.model.embed_tokens.weight.detach()
    with_tensors(tmp_path, **{"lm_head.weight": embeddings.clone(), INV_FREQ: torch.ones(5)})
    torch.testing.assert_close(logits(load(tmp_path)), logits(theirs), **EXACT)
    with_tensors(tmp_path, **{"lm_head.weight": embeddings + 1})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight, which its config ties to model\.embed"):
        load(tmp_path)
    torch.testing.assert_close(logits(load(tmp_path, ignore=["lm_head.weight"])), logits(theirs), **EXACT)


def test_old_masks_of_gpt2_change_nothing(tmp_path: Path) -> None:
    theirs = make(DECODERS["gpt2"])
    theirs.save_pretrained(tmp_path)
    mask = torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril()
    with_tensors(
        tmp_path, **{"transformer.h.0.attn.bias": mask, "transformer.h.1.attn.masked_bias": torch.tensor(-1e4)}
    )
    torch.testing.assert_close(logits(load(tmp_path)), logits(theirs), **EXACT)


def test_the_fields_of_transformers_4_mean_the_same(tmp_path: Path) -> None:
    theirs = make(DECODERS["llama llama3"])
    theirs.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    scaling = fields.pop("rope_parameters")
    older = {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(fields | older))
    torch.testing.assert_close(logits(load(tmp_path)), logits(theirs), **EXACT)
    scaling["type"] = scaling.pop("rope_type")  # and older still
    (tmp_path / "config.json").write_text(json.dumps(fields | older))
    torch.testing.assert_close(logits(load(tmp_path)), logits(theirs), **EXACT)
    (tmp_path / "config.json").write_text(json.dumps(fields | older | {"rope_parameters": scaling}))
    with pytest.raises(CheckpointError, match="both rope_scaling and rope_parameters"):
        load(tmp_path)


GPT2 = DecoderConfig(
    vocab_size=61, hidden_size=24, num_layers=2, num_heads=6, intermediate_size=40, max_position_embeddings=64
)
LLAMA = replace(
    GPT2,
    position_encoding=Rotary(dim=4, layout="half"),
    norm="rms",
    gated=True,
    activation="silu",
    qkv_bias=False,
    output_bias=False,
    feed_forward_bias=False,
)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (GPT2, {"position_encoding": "sinusoidal"}, "gpt2 checkpoint has position_encoding = 'learned'"),
        (GPT2, {"position_encoding": "none"}, "position_encoding"),
        (GPT2, {"norm": "rms"}, "norm = 'layer', but this model has 'rms'"),
        (GPT2, {"gated": True}, "gated"),
        (GPT2, {"qk_norm": True}, "qk_norm"),
        (GPT2, {"sliding_windows": (3, 3)}, "sliding_windows"),
        (GPT2, {"num_kv_heads": 2}, "num_kv_heads = 6, but this model has 2"),
        (GPT2, {"head_dim": 8}, "head_dim = 4, but this model has 8"),
        (GPT2, {"qkv_bias": False}, "qkv_bias"),
        (GPT2, {"output_bias": False}, "output_bias"),
        (GPT2, {"feed_forward_bias": False}, "feed_forward_bias"),
        (LLAMA, {"norm": "layer"}, "llama checkpoint has norm = 'rms'"),
        (LLAMA, {"gated": False}, "gated"),
        (LLAMA, {"output_bias": True}, "output_bias = False"),
        (LLAMA, {"dropout": 0.1}, "dropout"),
        (LLAMA, {"num_heads": 5, "head_dim": 4}, "hidden_size .*num_heads"),
        (LLAMA, {"position_encoding": Rotary(dim=4, layout="interleaved")}, "interleaved"),
        (LLAMA, {"position_encoding": Rotary(dim=2, layout="half")}, "whole heads of 4"),
        (LLAMA, {"position_encoding": Rotary(dim=4, layout="half", scaling=NTKScaling(factor=2.0))}, "no NTKScaling"),
        (LLAMA, {"sliding_windows": (3, None)}, "in every layer or in none"),
        (LLAMA, {"sliding_windows": (3, 4)}, r"windows of one size, but this config has \[3, 4\]"),
        (
            LLAMA,
            {"sliding_windows": (3, 3), "feed_forward_bias": True},
            "mistral checkpoint has feed_forward_bias = False",
        ),
        (LLAMA, {"sliding_windows": (3, 3), "qkv_bias": True, "output_bias": True}, "qkv_bias"),
        (LLAMA, {"qkv_bias": True, "feed_forward_bias": True}, "qwen2 checkpoint has feed_forward_bias"),
        (LLAMA, {"qk_norm": True, "qkv_bias": True}, "qwen3 checkpoint has output_bias = True"),
    ],
)
def test_what_no_family_expresses_is_refused_by_name(config, changes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        save(Decoder(replace(config, **changes)), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "scaling",
    [
        LinearScaling(factor=3.0),
        Llama3Scaling(factor=3.0, original_length=20, low_frequency_factor=2.0, high_frequency_factor=3.0),
        YarnScaling(factor=3.0, original_length=20, beta_fast=9.0, beta_slow=2.0, attention_factor=1.1, truncate=False),
        YarnScaling(factor=3.0, original_length=20, mscale=0.5, mscale_all_dim=0.25),
    ],
)
def test_every_number_of_a_scaling_is_kept(scaling, tmp_path: Path) -> None:
    rotary = Rotary(dim=4, layout="half", base=777.0, scaling=scaling)
    save(Decoder(replace(LLAMA, position_encoding=rotary)), tmp_path)
    assert loaded(tmp_path).config.position_encoding == rotary
