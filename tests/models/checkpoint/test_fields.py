"""Every field of a config.json is accounted for: what we say changes nothing changes nothing, the rest is refused."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from attnscope.attention.rotary import Rotary
from attnscope.errors import CheckpointError
from attnscope.models.checkpoint import load
from attnscope.models.checkpoint.fields import CHANGES_NOTHING, ONE_VALUE
from attnscope.models.json_fields import Fields
from attnscope.models.json_files import read_json
from tests.models.checkpoint.theirs import BERT, DECODERS, TEXT, float64_everywhere, loaded, make, opened

FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "bert")

OTHER_VALUES: dict[str, object] = {
    "_name_or_path": "elsewhere",
    "_model_name_or_path": "elsewhere",
    "_commit_hash": "0" * 40,
    "architectures": ["SomethingElse"],
    "transformers_version": "3.0.0",
    "initializer_range": 0.9,
    "gradient_checkpointing": True,
    "use_cache": False,
    "output_hidden_states": True,
    "torchscript": True,
    "use_bfloat16": True,
    "chunk_size_feed_forward": 5,
    "_attn_implementation_autoset": True,
    "tokenizer_class": "NoTokenizer",
    "transformers.js_config": {"dtype": "q4"},
    "unsloth_version": "2",
    "unsloth_fixed": True,
    **dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id"), 7
    ),
    "decoder_start_token_id": 7,
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
    "_num_labels": 3,
    "problem_type": "regression",
    "finetuning_task": "mnli",
    "task_specific_params": {"a": {"b": 1}},
    "max_length": 3,
    "min_length": 2,
    "do_sample": True,
    "early_stopping": True,
    "num_beams": 4,
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "temperature": 0.1,
    "top_k": 1,
    "top_p": 0.5,
    "typical_p": 0.5,
    "repetition_penalty": 3.0,
    "length_penalty": 3.0,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 2,
    "bad_words_ids": [[3]],
    "num_return_sequences": 2,
    "output_scores": True,
    "return_dict_in_generate": True,
    "forced_bos_token_id": 7,
    "forced_eos_token_id": 7,
    "remove_invalid_values": True,
    "exponential_decay_length_penalty": [2, 1.5],
    "suppress_tokens": [3],
    "begin_suppress_tokens": [3],
    "prefix": "Once",
}
OTHER_VALUES_OF: dict[str, dict[str, object]] = {
    "gpt2": {
        "n_ctx": 3,
        "summary_type": "mean",
        "summary_use_proj": False,
        "summary_activation": "tanh",
        "summary_proj_to_labels": False,
        "summary_first_dropout": 0.7,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.4),
    },
    "llama": {"pretraining_tp": 2, "is_llama_config": True},
    "qwen2": {"max_window_layers": 0, "sliding_window": 3},
    "qwen3": {"max_window_layers": 0, "sliding_window": 3},
    "bert": {
        "classifier_dropout": 0.7,
        "tie_word_embeddings": False,
        "directionality": "uni",
        "pooler_fc_size": 3,
        "pooler_num_attention_heads": 3,
        "pooler_num_fc_layers": 9,
        "pooler_size_per_head": 3,
        "pooler_type": "none",
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.4),
    },
}

# What these change is the kind of the answer or the file itself, not a number: shown by what other tests load.
NOT_SHOWN = {
    "model_type",
    "dtype",
    "torch_dtype",
    "return_dict",
    "output_attentions",
    "attn_implementation",
    "num_labels",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each family."""
    found = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    for family, folder in found.items():
        make(BERT if family == "bert" else DECODERS[family]).save_pretrained(folder)
    return found


def changed(folder: Path, target: Path, **fields: object) -> Path:
    """A copy of a folder with other fields."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    found = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(found | fields))
    return target


def answer(folder: Path) -> torch.Tensor:
    """What transformers computes from a folder."""
    model = opened(folder, body=True)
    with torch.no_grad(), float64_everywhere():
        return model(TEXT, return_dict=True).last_hidden_state


@pytest.mark.parametrize("family", FAMILIES)
def test_what_changes_nothing_changes_nothing_in_transformers_either(family: str, folders, tmp_path: Path) -> None:
    others = OTHER_VALUES | OTHER_VALUES_OF.get(family, {})
    before = json.loads((folders[family] / "config.json").read_text())
    assert all(before.get(name) != value for name, value in others.items())
    other = changed(folders[family], tmp_path, **others)
    # Feed-forward layers in chunks round differently in the last bit.
    torch.testing.assert_close(answer(other), answer(folders[family]), rtol=0, atol=1e-12)
    ours, plain = load(other), load(folders[family])
    state = plain.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())


def test_every_field_that_is_said_to_change_nothing_was_shown() -> None:
    assert set(CHANGES_NOTHING) - NOT_SHOWN == OTHER_VALUES.keys()


REFUSED = {
    **{name: not value if isinstance(value, bool) else 5 for name, value in ONE_VALUE.items()},
    "quantization_config": {"bits": 4},
    "per_layer_config": {"0": {}},
    "something_new": 1,
}
REFUSED_BY: dict[str, dict[str, object]] = {
    "gpt2": {
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "reorder_and_upcast_attn": True,
        "activation_function": "gelu_fast",
        "attn_pdrop": 0.2,
        "hidden_size": 24,
    },
    "llama": {
        "attention_dropout": 0.1,
        "rope_interleaved": True,
        "use_mrope": True,
        "partial_rotary_factor": 0.5,
        "hidden_act": "mish",
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0},
        "sliding_window": 5,
        "attention_bias": 1,
    },
    "mistral": {"attention_bias": False, "layer_types": ["full_attention"] * 3, "sliding_window": 0},
    "qwen2": {
        "layer_types": ["sliding_attention"] * 3,
        "max_window_layers": -1,
        "use_sliding_window": 1,
        "mlp_bias": False,
        "attention_bias": True,
    },
    "qwen3": {"layer_types": ["full_attention"] * 2, "use_mrope": True},
    "bert": {
        "position_embedding_type": "relative_key",
        "hidden_act": "gelu_fast",
        "embedding_size": 5,
        "hidden_dropout_prob": 0.3,
    },
}


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [(family, name, value) for family in FAMILIES for name, value in (REFUSED | REFUSED_BY[family]).items()],
)
def test_any_other_value_is_refused_by_name(family: str, name: str, value: object, folders, tmp_path: Path) -> None:
    also = {"use_sliding_window": True, "sliding_window": 5, "layer_types": None} if name == "max_window_layers" else {}
    folder = changed(folders[family], tmp_path, **{name: value}, **also)
    with pytest.raises(CheckpointError, match=name):
        load(folder)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "rope_parameters.rope_type: .*'longrope'"),
        ({"rope_type": "default", "factor": 2.0}, "rope_parameters.factor = 2.0"),
        ({"rope_type": "linear"}, "no field 'rope_parameters.factor'"),
        ({"rope_type": "linear", "factor": "2"}, "rope_parameters.factor: .*'2'"),
        ({"rope_type": "linear", "factor": 0}, "LinearScaling: .*positive factor"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, "rope_parameters.partial_rotary_factor"),
        ({"rope_type": "yarn", "factor": 2.0, "finetuned": True}, "rope_parameters.finetuned"),
        ({"rope_theta": 1.0}, "Rotary: .*base"),
        ({"full_attention": {"rope_type": "default"}}, "rope_parameters.full_attention"),
        ([1], "rope_parameters: "),
    ],
)
def test_rotary_fields_that_are_not_understood_are_refused_by_name(parameters, name, folders, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=name):
        load(changed(folders["llama"], tmp_path, rope_parameters=parameters))


def test_ignored_fields_are_as_if_they_were_not_there(folders, tmp_path: Path) -> None:
    folder = changed(
        folders["llama"],
        tmp_path,
        something_new=1,
        partial_rotary_factor=0.5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "finetuned": True},
    )
    with pytest.raises(CheckpointError, match=r"pass ignore=\('partial_rotary_factor',\)"):
        load(folder)
    with pytest.raises(CheckpointError, match=r"pass ignore=\('rope_parameters.finetuned',\)"):
        load(folder, ignore=["partial_rotary_factor"])
    with pytest.raises(CheckpointError, match=r"something_new = 1.* pass ignore=\('something_new',\)"):
        load(folder, ignore=["partial_rotary_factor", "rope_parameters.finetuned"])
    model = load(folder, ignore=["partial_rotary_factor", "rope_parameters.finetuned", "something_new"])
    assert model.config == load(folders["llama"]).config


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"])
@pytest.mark.parametrize("value", ["24", -1, 0, 2.5, float("nan"), True, None, [24], {}, 10**4000])
def test_sizes_are_whole_numbers(name: str, value: object, folders, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"{name}: expected an integer from 1"):
        load(changed(folders["llama"], tmp_path, **{name: value}))


@pytest.mark.parametrize("value", ["1e-5", -1e-5, float("nan"), float("inf"), False, None, 10**4000])
def test_numbers_are_finite_and_not_negative(value: object, folders, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"rms_norm_eps: expected a finite number"):
        load(changed(folders["llama"], tmp_path, rms_norm_eps=value))


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "vocab_size", "model_type"])
def test_a_field_that_has_no_default_is_asked_for(name: str, folders, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"has no field '{name}'"):
        load(folders["llama"], ignore=[name])


def test_a_file_from_before_rotary_fields_has_their_first_values(folders) -> None:
    assert loaded(folders["llama"], ignore=["rope_parameters"]).config.position_encoding == Rotary(dim=4, layout="half")


@pytest.mark.parametrize(
    ("family", "fields", "windows"),
    [
        ("mistral", {"sliding_window": 9}, (9, 9, 9)),
        ("mistral", {"sliding_window": None}, None),
        ("mistral", {}, (4096, 4096, 4096)),
        ("qwen2", {"sliding_window": 9, "use_sliding_window": False}, None),
        ("qwen2", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 2}, (None, None, 9)),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, (None, 4096, 4096)),
        ("qwen3", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, None),
    ],
)
def test_windows_stand_where_transformers_has_them(family: str, fields, windows, folders, tmp_path: Path) -> None:
    folder = changed(folders[family], tmp_path)
    found = json.loads((folder / "config.json").read_text())
    for name in ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"):
        found.pop(name, None)
    (folder / "config.json").write_text(json.dumps(found | fields))
    theirs = AutoConfig.from_pretrained(folder)
    types = getattr(theirs, "layer_types", ["sliding_attention"] * 3)
    expected = [theirs.sliding_window if entry == "sliding_attention" else None for entry in types]
    assert loaded(folder).config.sliding_windows == windows
    assert list(windows or (None,) * 3) == expected


def test_dropouts_that_agree_are_one(folders, tmp_path: Path) -> None:
    assert load(folders["gpt2"]).config.dropout == 0.1
    folder = changed(folders["gpt2"], tmp_path, attn_pdrop=0.3)
    with pytest.raises(CheckpointError, match=r"resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.3"):
        load(folder)
    assert load(folder, ignore=["attn_pdrop"]).config.dropout == 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c'"),
        ("[1]", "got a list"),
        ("null", "got a NoneType"),
        ('{"a": 1', "not valid JSON"),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "not valid JSON"),
        ("", "not valid JSON"),
        ('{"a": ' + "1" * 5_000 + "}", "not valid JSON"),
    ],
)
def test_configs_that_are_no_objects_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_json(tmp_path / "config.json")


def test_a_huge_config_is_refused_before_it_is_read_in_full(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(100 * 2**20)  # sparse: no disk is filled
    with pytest.raises(CheckpointError, match="more than"):
        read_json(tmp_path / "config.json")


def test_a_million_keys_of_which_two_are_the_same_are_refused_in_time(tmp_path: Path) -> None:
    keys = ",".join(f'"{number}":0' for number in range(10**6))
    (tmp_path / "config.json").write_text(f'{{{keys},"999999":1}}')
    start = time.process_time()
    with pytest.raises(CheckpointError, match="'999999'"):
        read_json(tmp_path / "config.json")
    assert time.process_time() - start < 10  # looking up each key among all others would take an hour


def test_long_and_deep_values_are_shown_short() -> None:
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for name, value in (("name", "x" * 10**6), ("name", list(range(10**5))), ("name", deep), ("n" * 10**6, 1)):
        with pytest.raises(CheckpointError) as caught:
            Fields({name: value}, source="a file").finish()
        assert len(str(caught.value)) < 600


def test_names_cannot_draw_on_a_terminal() -> None:
    with pytest.raises(CheckpointError, match=r"\\x1b\[2J = 1"):
        Fields({"\x1b[2J": 1}, source="a file").finish()
