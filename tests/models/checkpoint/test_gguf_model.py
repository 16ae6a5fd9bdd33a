"""GGUF files of every architecture hold the model that they were made of, as transformers reads them too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM, GgufConfig, LlamaConfig

from attnscope.attention.rotary import Rotary
from attnscope.attention.rotary_scaling import LinearScaling, Llama3Scaling, YarnScaling
from attnscope.errors import CheckpointError
from attnscope.models.decoder import Decoder
from attnscope.models.encoder import Encoder
from tests.models.checkpoint.gguf_files import CONFIGS, SIZES, TOKENS, float_rope_divisors, write
from tests.models.checkpoint.theirs import loaded, make

WITH_BIASES = LlamaConfig(**SIZES, **TOKENS, num_key_value_heads=2, attention_bias=True, mlp_bias=True)


def same(ours: Decoder | Encoder, expected: Decoder | Encoder) -> None:
    """Assert that two models are equal in every number of their weights."""
    state = expected.state_dict()
    assert ours.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize("name", [*CONFIGS, "llama with biases"])
def test_a_file_holds_the_same_model_as_the_folder(name: str, tmp_path: Path) -> None:
    theirs = make(CONFIGS.get(name, WITH_BIASES)).float()
    theirs.save_pretrained(tmp_path / "folder")
    folder, file = loaded(tmp_path / "folder"), loaded(write(tmp_path / "model.gguf", theirs))
    assert {parameter.dtype for parameter in file.parameters()} == {torch.float32}
    assert not file.training
    if name == "bert":  # the converter leaves the pooler out
        assert not file.config.pooler
        folder.pooler = None
    same(file, folder)
    # The number that is added to variances is stored in float32, here a power of two or one that rounds.
    epsilon = float(np.float32(folder.config.norm_eps))
    unsaid = {"pooler": False} if name == "bert" else {}
    assert file.config == replace(folder.config, norm_eps=epsilon, dropout=0.0, **unsaid)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gpt2"])
def test_transformers_reads_the_same_numbers(name: str, kind: GGMLQuantizationType, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", make(CONFIGS[name]), kind=kind)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    theirs.config.quantization_config = None
    ours = loaded(path)
    state = theirs.state_dict()
    assert torch.equal(
        ours.embedding.weight, state[f"{theirs.base_model_prefix}.{'wte' if name == 'gpt2' else 'embed_tokens'}.weight"]
    )
    tokens = torch.randint(0, 61, (2, 20))
    with torch.no_grad():
        expected = theirs.eval()(tokens).logits
        # Both compute in float32, and logits are of size 100 after three layers of sums of 64 products.
        torch.testing.assert_close(ours(tokens), expected, rtol=0, atol=64 * 1.2e-7 * expected.abs().max().item())


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16", "F16"])
def test_blocks_are_dequantized_by_rows_as_in_one_piece(kind: str, tmp_path: Path, monkeypatch) -> None:
    theirs, quantized = make(CONFIGS["llama"]), GGMLQuantizationType[kind]
    path = write(tmp_path / "model.gguf", theirs, kind=quantized)
    monkeypatch.setattr("attnscope.models.checkpoint.loading.CHUNK_NUMEL", 100)  # a row or a head at a time
    ours = loaded(path)
    for weight, found in (
        (theirs.model.embed_tokens.weight, ours.embedding.weight),
        (theirs.model.layers[2].self_attn.v_proj.weight, ours.blocks[2].attention.query_key_value.weight[-32:]),
        (theirs.model.layers[1].mlp.gate_proj.weight, ours.blocks[1].feed_forward.up.weight[:96]),
    ):
        blocks = gguf.quants.quantize(weight.detach().float().numpy(), quantized)
        assert torch.equal(found, torch.from_numpy(gguf.quants.dequantize(blocks, quantized)))


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({}, None),
        ({"type": "none"}, None),
        ({"type": "linear", "factor": 4.0}, LinearScaling(factor=4.0)),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32, "finetuned": True},
            YarnScaling(factor=4.0, original_length=32),
        ),
        (
            {
                "type": "yarn",
                "factor": 4.0,
                "original_context_length": 32,
                "yarn_beta_fast": 8.0,
                "yarn_beta_slow": 2.0,
            },
            YarnScaling(factor=4.0, original_length=32, beta_fast=8.0, beta_slow=2.0),
        ),
    ],
)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_scalings_are_read_from_the_metadata(name: str, metadata, scaling, tmp_path: Path) -> None:
    named = {f"{name}.rope.scaling.{key}": value for key, value in metadata.items()}
    model = loaded(write(tmp_path / "model.gguf", make(CONFIGS[name]), metadata=named))
    assert model.config.position_encoding == Rotary(dim=16, layout="half", base=10000.0, scaling=scaling)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_divisors_of_llama_3_are_its_scaling(factor: float, tmp_path: Path) -> None:
    config = LlamaConfig(
        **SIZES | {"num_attention_heads": 2}, **TOKENS, num_key_value_heads=2, head_dim=128,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )  # fmt: skip
    divisors = float_rope_divisors(128, 500000.0, factor)
    path = write(tmp_path / "model.gguf", make(config), tensors={"rope_freqs.weight": divisors})
    scaling = Llama3Scaling(factor=factor, original_length=8192)
    assert loaded(path).config.position_encoding == Rotary(dim=128, layout="half", base=500000.0, scaling=scaling)
    for wrong in (
        divisors[:-1],
        divisors * np.linspace(1, 1.01, 64, dtype=np.float32),
        np.full(64, np.nan, np.float32),
        np.full(64, np.inf, np.float32),
        np.zeros(64, np.float32),
        np.full(64, 1e6, np.float32),
        float_rope_divisors(128, 500000.0, factor, length=4096),
    ):
        path = write(tmp_path / "other.gguf", make(config), tensors={"rope_freqs.weight": wrong})
        with pytest.raises(CheckpointError, match=r"rope_freqs\.weight|positive factor"):
            loaded(path)
        assert loaded(path, ignore=["rope_freqs.weight"]).config.position_encoding.scaling is None


REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("llama", {"general.architecture": "mamba"}, "general.architecture: .*'mamba'"),
    ("llama", {"general.type": "adapter"}, "general.type: .*'adapter'"),
    ("llama", {"split.count": 2}, "split.count: .*2"),
    ("llama", {"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type: .*'longrope'"),
    ("llama", {"llama.rope.scaling.factor": 2.0}, "llama.rope.scaling.factor = 2.0"),
    (
        "llama",
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 2.0,
            "llama.rope.scaling.original_context_length": 32,
            "llama.rope.scaling.yarn_attn_factor": 0.5,
        },
        "yarn_attn_factor = 0.5",
    ),
    ("llama", {"llama.rope.scale_linear": 2.0}, "llama.rope.scale_linear = 2.0"),
    ("llama", {"llama.rope.dimension_count": 8}, "llama.rope.dimension_count: .*8"),
    ("llama", {"llama.attention.value_length": 8}, "llama.attention.value_length: .*8"),
    ("llama", {"llama.expert_count": 8}, "llama.expert_count = 8"),
    ("llama", {"llama.logit_scale": 0.5}, "llama.logit_scale = 0.5"),
    ("llama", {"llama.attention.sliding_window": 5}, "llama.attention.sliding_window = 5"),
    ("llama", {"llama.attention.head_count": [4, 4, 4]}, r"llama.attention.head_count: .*\[4, 4, 4\]"),
    ("llama", {"llama.block_count": None}, "no field 'llama.block_count'"),
    ("llama", {"llama.block_count": 2}, r"blk\.2\."),
    ("llama", {"llama.block_count": 4}, r"has no tensor blk\.3\."),
    ("llama", {"llama.block_count": 2**31}, "llama.block_count: .*2147483648"),
    ("llama", {"llama.vocab_size": 62}, r"token_embd\.weight has shape \(61, 64\)"),
    ("llama", {"gemma.something": 1}, "gemma.something = 1"),
    ("qwen2", {"qwen2.attention.sliding_window": 5}, "qwen2.attention.sliding_window"),
    ("qwen3", {"qwen3.attention.scale": 0.5}, "qwen3.attention.scale"),
    ("gpt2", {"gpt2.attention.head_count_kv": 2}, "gpt2.attention.head_count_kv"),
    ("bert", {"bert.attention.causal": True}, "bert.attention.causal: .*True"),
    ("bert", {"bert.rope.freq_base": 2.0}, "bert.rope.freq_base"),
]


@pytest.mark.parametrize(("name", "metadata", "message"), REFUSED)
def test_metadata_that_are_not_understood_are_refused_by_name(name, metadata, message: str, tmp_path: Path) -> None:
    theirs = make(CONFIGS[name])
    if "general.architecture" in metadata:
        path = write(tmp_path / "model.gguf", theirs)
        path.write_bytes(path.read_bytes().replace(b"llama", b"mamba", 1))
    else:
        path = write(tmp_path / "model.gguf", theirs, metadata=metadata)
    with pytest.raises(CheckpointError, match=message):
        loaded(path)


def test_ignored_metadata_and_tensors_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    theirs = make(CONFIGS["llama"])
    plain = loaded(write(tmp_path / "plain.gguf", theirs))
    more = write(
        tmp_path / "more.gguf",
        theirs,
        metadata={"llama.logit_scale": 0.5, "quantize.imatrix.file": "notes"},
        tensors={"blk.0.extra.weight": np.ones(3, np.float32)},
    )
    with pytest.raises(CheckpointError, match=r"pass ignore=\('llama.logit_scale',\)"):
        loaded(more)
    with pytest.raises(CheckpointError, match=r"pass ignore=\('blk.0.extra.weight',\)"):
        loaded(more, ignore=["llama.logit_scale"])
    found = loaded(more, ignore=["llama.logit_scale", "blk.0.extra.weight"])
    same(found, plain)
    assert found.config == plain.config


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_heads_of_tasks_are_left_out_of_bert_and_refused_elsewhere(name: str, tmp_path: Path) -> None:
    head = {"cls.weight": np.ones((2, 64), np.float32)}
    path = write(tmp_path / "model.gguf", make(CONFIGS[name]), tensors=head)
    if name == "bert":
        same(loaded(path), loaded(write(tmp_path / "plain.gguf", make(CONFIGS[name]))))
    else:
        with pytest.raises(CheckpointError, match=r"'cls\.weight'"):
            loaded(path)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_rotary_divisors_have_no_place_in_models_without_rotary_positions(name: str, tmp_path: Path) -> None:
    divisors = {"rope_freqs.weight": np.ones(8, np.float32)}
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        loaded(write(tmp_path / "model.gguf", make(CONFIGS[name]), tensors=divisors))


def test_integers_are_no_weights(tmp_path: Path) -> None:
    theirs = make(CONFIGS["llama"])
    del theirs.model.norm
    path = write(tmp_path / "model.gguf", theirs, tensors={"output_norm.weight": np.ones(64, np.int8)})
    with pytest.raises(CheckpointError, match=r"output_norm\.weight is I8; parameters must be"):
        loaded(path)
