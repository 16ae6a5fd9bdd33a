"""Loading: SmolLM2 as transformers has it, every parameter filled, memory for one model, refusals before any work."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from attnscope.attention.rotary import Rotary
from attnscope.bench.memory import peak_extra_bytes
from attnscope.errors import CheckpointError, ShapeError
from attnscope.models.checkpoint import load, locate, save
from attnscope.models.checkpoint.family import FileTensor, ParameterSource
from attnscope.models.checkpoint.gguf_file import open_gguf
from attnscope.models.decoder import Decoder, DecoderConfig
from tests.largest import LargestTensor
from tests.models.checkpoint.theirs import DECODERS, float64_everywhere, loaded, logits, make

MODELS = Path(__file__).resolve().parents[3] / ".cache" / "models"
SMOLLM2 = MODELS / "smollm2-135m"
SENTENCE = "The old keeper told Anna that the storm would pass. Anna asked the old keeper how he knew it would pass."


@pytest.fixture
def tokens() -> Tensor:
    return AutoTokenizer.from_pretrained(SMOLLM2, local_files_only=True)(SENTENCE, return_tensors="pt")["input_ids"]


def test_smollm2_is_as_near_to_the_truth_as_in_transformers(tokens: Tensor) -> None:
    with torch.no_grad():
        exact: Any = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float64, local_files_only=True)
        with float64_everywhere():
            exact.model.rotary_emb = LlamaRotaryEmbedding(exact.config)
            expected = exact(tokens).logits
        single = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32, local_files_only=True)
        theirs = (single(tokens).logits - expected).abs().max()
        assert (load(SMOLLM2)(tokens) - expected).abs().max() <= 4 * theirs
        # In float64 only the order of sums differs: errors of 1e-16 grow through 30 layers like theirs from 6e-8.
        double = load(SMOLLM2, dtype=torch.float64)(tokens)
        assert (double - expected).abs().max() <= 4 * theirs * 2.0**-29


def test_the_gguf_file_holds_the_same_model_as_the_folder() -> None:
    folder, gguf = load(SMOLLM2), load(MODELS / "smollm2-135m.gguf")
    assert gguf.config == folder.config
    expected = folder.state_dict()
    assert gguf.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in gguf.state_dict().items())
    assert not gguf.training


@pytest.mark.parametrize("name", ["smollm2-135m", "smollm2-135m.gguf", "minilm-l6"])
def test_every_parameter_is_filled_and_can_be_trained(name: str) -> None:
    model = load(MODELS / name)  # tests poison what attnscope allocates with NaN
    for parameter in model.parameters():
        assert parameter.isfinite().all()
        assert parameter.requires_grad
        assert parameter.device.type == "cpu"
    assert not list(model.buffers())


def tiny(folder: Path, name: str = "llama") -> Path:
    make(DECODERS[name]).save_pretrained(folder)
    return folder


def with_config(folder: Path, **fields: object) -> Path:
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(found | fields))
    return folder


def with_tensors(folder: Path, **changed: Tensor | None) -> Path:
    tensors = load_file(folder / "model.safetensors") | changed
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_model_has_the_dtype_of_its_file_or_the_one_asked_for(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = make(DECODERS["llama"])
    theirs.to(dtype).save_pretrained(tmp_path)
    assert {parameter.dtype for parameter in load(tmp_path).parameters()} == {dtype}
    as_asked = loaded(tmp_path, dtype=torch.float32)
    expected = theirs.model.layers[1].mlp.down_proj.weight.float()
    assert torch.equal(as_asked.blocks[1].feed_forward.down.weight, expected)


def test_a_dtype_that_holds_no_fractions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"dtype, got torch\.int8"):
        load(tiny(tmp_path), dtype=torch.int8)


def test_a_file_with_several_dtypes_gives_the_narrowest_that_holds_them_all(tmp_path: Path) -> None:
    make(DECODERS["llama"]).to(torch.bfloat16).save_pretrained(tmp_path)
    norm = torch.rand(24, dtype=torch.float16)
    with_tensors(tmp_path, **{"model.norm.weight": norm})
    model = loaded(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(model.norm.weight, norm.float())


def test_progress_counts_every_byte_of_the_weights(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    load(tiny(tmp_path), progress=lambda done, total: calls.append((done, total)))
    weights = sum(tensor.nbytes for tensor in load_file(tmp_path / "model.safetensors").values())
    assert {total for _, total in calls} == {weights}
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == weights
    assert len(calls) > 20


def test_a_model_can_be_loaded_straight_to_another_device(tmp_path: Path) -> None:
    model = load(tiny(tmp_path), device="meta")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_a_weight_says_its_shape_and_which_rows_each_part_fills() -> None:
    weight = ParameterSource("ours", (FileTensor("a", (2, 5)), FileTensor("b", (3, 5))))
    assert weight.shape() == (5, 5)
    assert [rows for _, rows in weight.slices()] == [slice(0, 2), slice(2, 5)]
    assert ParameterSource("ours", (FileTensor("a", (5, 2)), FileTensor("b", (5, 4))), transposed=True).shape() == (
        6,
        5,
    )
    assert ParameterSource("ours", (FileTensor("a", (5,)), FileTensor("b", (2,)))).shape() == (7,)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model.norm.weight": None}, r"has no tensor norm\.weight \(24,\)"),
        ({"model.layers.2.mlp.up_proj.weight": None}, r"has no tensor layers\.2\.mlp\.up_proj\.weight \(40, 24\)"),
        ({"model.norm.weight": torch.ones(25)}, r"model\.norm\.weight has shape \(25,\), but .*needs \(24,\)"),
        ({"model.norm.weight": torch.ones(1, 24)}, r"has shape \(1, 24\)"),
        ({"model.norm.weight": torch.ones(24, dtype=torch.int8)}, r"model\.norm\.weight is I8; parameters must be"),
        ({"model.norm.weight": torch.ones(24).to(torch.float8_e4m3fn)}, r"model\.norm\.weight is F8_E4M3"),
        ({"model.norm.weight": torch.ones(24, dtype=torch.bool)}, "is BOOL"),
        ({"model.norm.bias": torch.ones(24)}, r"'model\.norm\.bias' \(24,\)"),
        ({"score.weight": torch.ones(2, 24)}, r"pass ignore=\('score\.weight',\)"),
        ({"model.layers.3.mlp.up_proj.weight": torch.ones(1)}, r"layers\.3\.mlp"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(changed, message: str, tmp_path: Path) -> None:
    folder = with_tensors(tiny(tmp_path), **changed)
    with pytest.raises(CheckpointError, match=message), LargestTensor() as largest:
        load(folder)
    assert largest.elements == 0, "nothing is built before all is checked"


def test_an_ignored_tensor_is_as_if_it_was_not_there(tmp_path: Path) -> None:
    tiny(tmp_path)
    expected = logits(load(tmp_path))
    with_tensors(tmp_path, **{"score.weight": torch.ones(2, 24, dtype=torch.int8)})
    assert torch.equal(logits(load(tmp_path, ignore=["score.weight"])), expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: .*1000000000"),
        ({"num_hidden_layers": 100_000}, "has no tensor layers.3"),
        ({"num_hidden_layers": 2}, "layers.2"),
        ({"hidden_size": 10**12}, "embed_tokens.weight has shape"),
        ({"vocab_size": 10**15}, "embed_tokens.weight has shape"),
        ({"num_attention_heads": 10**12}, "q_proj.weight has shape"),
        ({"head_dim": 10**12}, "q_proj.weight has shape"),
        ({"intermediate_size": 10**15}, "gate_proj.weight has shape"),
        ({"num_key_value_heads": 10**15}, "k_proj.weight has shape"),
        ({"head_dim": 5}, "even dim"),
        ({"num_attention_heads": 3, "num_key_value_heads": 4, "head_dim": 2}, "has shape"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_absurd_sizes_end_at_the_first_tensor_that_is_not_there(fields, message: str, family, tmp_path: Path) -> None:
    folder = with_config(tiny(tmp_path, family), **fields)
    start = time.process_time()
    with pytest.raises(CheckpointError, match=message), LargestTensor() as largest:
        load(folder)
    assert time.process_time() - start < 5
    assert largest.elements <= 24  # only rotary frequencies, if any


def test_heads_that_do_not_share_keys_evenly_are_refused(tmp_path: Path) -> None:
    tiny(tmp_path)
    keys = {f"model.layers.{i}.self_attn.{name}_proj.weight": torch.ones(16, 24) for i in range(3) for name in "kv"}
    with_config(with_tensors(tmp_path, **keys), num_key_value_heads=4)
    with pytest.raises(CheckpointError, match=r"cannot be built: .*num_kv_heads"):
        load(tmp_path)


def test_code_that_came_with_a_model_is_never_imported(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    (tmp_path / "modeling_evil.py").write_text(f"open({str(witness)!r}, 'w')\nclass Evil: ...\n")
    with_config(tiny(tmp_path), auto_map={"AutoModel": "modeling_evil.Evil"})
    with pytest.raises(CheckpointError, match=r"code that came with the model \(auto_map\), which is never run"):
        load(tmp_path)
    load(tmp_path, ignore=["auto_map"])
    assert not witness.exists()


def test_an_unknown_family_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model_type: expected one of gpt2, llama, mistral.* got 'mamba'"):
        load(with_config(tiny(tmp_path), model_type="mamba"))


def mostly_one_tensor(folder: str, name: str):
    """A model of which one tensor is most, saved and ready to be loaded."""
    path = Path(folder) / "model"
    config = DecoderConfig(
        vocab_size=40_000,
        hidden_size=1024,
        num_layers=1,
        num_heads=8,
        intermediate_size=64,
        max_position_embeddings=64,
        position_encoding=Rotary(dim=128, layout="half"),
        norm="rms",
        activation="silu",
        gated=True,
        qkv_bias=False,
        output_bias=False,
        feed_forward_bias=False,
    )
    if not path.exists():
        save(Decoder(config).to(torch.float32), path, dtype=getattr(torch, name))
    load(tiny_model(Path(folder)))  # what is imported on first use does not count
    return partial(load, path, dtype=torch.float32)


def tiny_model(folder: Path) -> Path:
    path = folder / "tiny"
    if not path.exists():
        save(
            Decoder(
                DecoderConfig(
                    vocab_size=9,
                    hidden_size=8,
                    num_layers=1,
                    num_heads=2,
                    intermediate_size=8,
                    max_position_embeddings=8,
                )
            ),
            path,
        )
    return path


def smollm2_in_gguf():
    """The file of 98 MB, ready to become a model of 538 MB."""
    path = MODELS / "smollm2-135m.gguf"
    with ExitStack() as files:
        open_gguf(path, files)[1]["blk.0.attn_q.weight"].rows(0, 1)
    return partial(load, path)


def test_a_gguf_file_is_dequantized_straight_into_place() -> None:
    weights, mapped = 4 * 134.5e6, 98e6
    assert weights < peak_extra_bytes(smollm2_in_gguf) < weights + mapped + 60e6


def test_loading_leaves_random_numbers_alone(tmp_path: Path) -> None:
    tiny(tmp_path)
    before = torch.get_rng_state()
    load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_progress_raises_arrives_as_it_is(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match=r"^enough$"):
        load(tiny(tmp_path), progress=stop)


def test_loading_takes_the_memory_of_the_model_and_little_else(tmp_path: Path) -> None:
    weights = 4 * 45.3e6
    mapped = 2 * 45.3e6  # pages of the file, which the system takes back when it needs them
    assert weights < peak_extra_bytes(mostly_one_tensor, str(tmp_path), "bfloat16") < weights + mapped + 60e6


def test_where_a_model_is_can_be_asked_alone(tmp_path: Path) -> None:
    assert locate(str(tmp_path)) == tmp_path
    assert locate(MODELS / "smollm2-135m.gguf") == MODELS / "smollm2-135m.gguf"
