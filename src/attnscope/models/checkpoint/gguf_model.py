"""Maps GGUF metadata to model configs, and model parameters to the tensor names of GGUF.

In: metadata and tensor headers. Out: a family, one of our configs, and its parameters with their GGUF names.
Does not know: bytes. Memory: O(1); parameters are generated lazily.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attnscope.attention.rotary import Rotary
from attnscope.attention.rotary_scaling import Llama3Scaling, plain_frequencies
from attnscope.errors import CheckpointError
from attnscope.extras import import_extra
from attnscope.models.checkpoint.families import FAMILIES
from attnscope.models.checkpoint.family import Family, FileTensor, ParameterSource
from attnscope.models.checkpoint.fields import MAX_LAYERS
from attnscope.models.checkpoint.llama import head_dim_of
from attnscope.models.checkpoint.safetensors_files import StoredTensor
from attnscope.models.decoder import DecoderConfig
from attnscope.models.encoder import EncoderConfig
from attnscope.models.json_fields import Fields

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gpt2", "bert")
"""The supported architectures. The files of Mistral have the architecture llama."""

ROPE_FREQUENCIES = "rope_freqs.weight"

IGNORED_OF_BERT, IGNORED = re.compile(r"cls\..*"), re.compile(r"rope_freqs\.weight")
"""Tensors that are not parameters: the task heads of BERT, and the frequency divisors of Llama 3."""

NOTES = re.compile(r"(general|tokenizer|quantize)\..*|split\.(no|tensors\.count)")
"""Metadata about the file, the tokenizer and the quantization."""

BIASES = {"qkv_bias": "attn_q", "output_bias": "attn_output", "feed_forward_bias": "ffn_up"}
"""Tensors that show whether llama and qwen3 have a bias; no metadata field states it."""


def config_from_gguf(metadata: Fields, stored: dict[str, StoredTensor]) -> tuple[Family, DecoderConfig | EncoderConfig]:
    """Return the family and the config of the model in a file."""
    name = metadata.choice("general.architecture", {name: name for name in ARCHITECTURES})
    metadata.only(**{"general.type": "model", "split.count": 1})
    metadata.changes_nothing(*(key for key in metadata.found if NOTES.fullmatch(key)))
    read = {"gpt2": _gpt2, "bert": _bert}.get(name, _llama)
    family = FAMILIES[name]
    fields = {"model_type": name, **read(name, metadata, stored)}
    metadata.finish()
    config = family.config_from(Fields(fields, source=metadata.source))
    if isinstance(config, EncoderConfig):
        return family, replace(config, pooler=False)
    if name in ("llama", "qwen3"):
        config = replace(config, **{flag: f"blk.0.{place}.bias" in stored for flag, place in BIASES.items()})
    return family, _with_frequencies(config, stored.get(ROPE_FREQUENCIES), metadata.source)


def parameters_from_gguf(family: Family, config: DecoderConfig | EncoderConfig) -> Iterator[ParameterSource]:
    """Yield the parameters of a family with the tensor names and the layout of GGUF, where nothing is transposed."""
    gguf = import_extra("gguf")
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == family.name)
    # One layer is enough for the names, so the number of layers in the file does not matter.
    names = gguf.get_tensor_name_map(arch, 1)
    interleaved = head_dim_of(config) if isinstance(config, DecoderConfig) and family.name == "llama" else None
    rename = partial(_rename, names, family, interleaved)
    for parameter in family.parameters(config):
        tensors = (rename(tensor, parameter.transposed) for tensor in parameter.tensors)
        yield ParameterSource(parameter.name, tuple(tensors))


def _rename(names: Any, family: Family, interleaved: int | None, part: FileTensor, transposed: bool) -> FileTensor:
    layer = re.search(r"\.(\d+)\.", part.name)
    first = part.name if layer is None else part.name.replace(layer[0], ".0.", 1)
    suffixes = (".weight", ".bias")
    name = names.get_name(family.file_name(first), suffixes) or names.get_name(first, suffixes)
    assert name is not None, f"the gguf package has no name for {first}"
    if layer is not None:
        name = name.replace(".0.", layer[0], 1)
    shape = part.shape[::-1] if transposed else part.shape
    is_turned = re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name)
    return FileTensor(name, shape, interleaved if is_turned else None)


def _sizes(arch: str, metadata: Fields, stored: dict[str, StoredTensor]) -> dict[str, int]:
    """Return the sizes of any architecture as Hugging Face fields; vocab_size defaults to the embedding rows."""
    embeddings = stored.get("token_embd.weight")
    rows = embeddings.shape[0] if embeddings else 1
    return {
        "vocab_size": metadata.size(f"{arch}.vocab_size", rows),
        "hidden_size": metadata.size(f"{arch}.embedding_length"),
        "num_hidden_layers": metadata.size(f"{arch}.block_count", maximum=MAX_LAYERS),
        "num_attention_heads": metadata.size(f"{arch}.attention.head_count"),
        "intermediate_size": metadata.size(f"{arch}.feed_forward_length"),
        "max_position_embeddings": metadata.size(f"{arch}.context_length"),
    }


def _gpt2(arch: str, metadata: Fields, stored: dict[str, StoredTensor]) -> dict[str, object]:
    sizes = _sizes(arch, metadata, stored)
    return {
        "vocab_size": sizes["vocab_size"],
        "n_embd": sizes["hidden_size"],
        "n_layer": sizes["num_hidden_layers"],
        "n_head": sizes["num_attention_heads"],
        "n_inner": sizes["intermediate_size"],
        "n_positions": sizes["max_position_embeddings"],
        "layer_norm_epsilon": metadata.number(f"{arch}.attention.layer_norm_epsilon"),
        "tie_word_embeddings": "output.weight" not in stored,
    }


def _bert(arch: str, metadata: Fields, stored: dict[str, StoredTensor]) -> dict[str, object]:
    sizes = _sizes(arch, metadata, stored)
    metadata.only(**{f"{arch}.attention.causal": False})
    metadata.changes_nothing(f"{arch}.pooling_type", f"{arch}.classifier.output_labels")
    segments = stored.get("token_types.weight")
    return {
        **sizes,
        "type_vocab_size": segments.shape[0] if segments else 2,
        "layer_norm_eps": metadata.number(f"{arch}.attention.layer_norm_epsilon"),
    }


def _llama(arch: str, metadata: Fields, stored: dict[str, StoredTensor]) -> dict[str, object]:
    sizes = _sizes(arch, metadata, stored)
    hidden_size, num_heads = sizes["hidden_size"], sizes["num_attention_heads"]
    num_kv_heads = metadata.size(f"{arch}.attention.head_count_kv", num_heads)
    head_dim = metadata.size(f"{arch}.attention.key_length", max(hidden_size // num_heads, 1))
    metadata.only(**{f"{arch}.attention.value_length": head_dim, f"{arch}.rope.dimension_count": head_dim})
    return {
        **sizes,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(f"{arch}.rope", metadata),
        "tie_word_embeddings": "output.weight" not in stored,
    }


def _rope(prefix: str, metadata: Fields) -> dict[str, object]:
    found: dict[str, object] = {"rope_theta": metadata.number(f"{prefix}.freq_base", 10000.0)}
    kind = metadata.choice(f"{prefix}.scaling.type", {"none": "default", "linear": "linear", "yarn": "yarn"}, "none")
    metadata.changes_nothing(f"{prefix}.scaling.finetuned")
    found["rope_type"] = kind
    if kind != "default":
        found["factor"] = metadata.number(f"{prefix}.scaling.factor")
    if kind == "yarn":
        found["original_max_position_embeddings"] = metadata.size(f"{prefix}.scaling.original_context_length")
        found["beta_fast"] = metadata.number(f"{prefix}.scaling.yarn_beta_fast", 32.0)
        found["beta_slow"] = metadata.number(f"{prefix}.scaling.yarn_beta_slow", 1.0)
    return found


def _with_frequencies(config: DecoderConfig, stored: StoredTensor | None, source: str) -> DecoderConfig:
    """Return the config with the rotary scaling of Llama 3, which a GGUF file stores as a divisor per frequency.

    Three of its four parameters cannot be derived from the divisors. They are the same in all Llama 3 models: 1, 4 and
    8192.
    """
    if stored is None:
        return config
    rotary = config.position_encoding
    pairs = head_dim_of(config) // 2
    if not isinstance(rotary, Rotary) or rotary.scaling is not None or stored.shape != (pairs,) or not stored.dtype:
        raise CheckpointError(
            f"{source}: {ROPE_FREQUENCIES} with shape {stored.shape} does not match the model; expected ({pairs},) in "
            "a model with rotary positions and no other scaling"
        )
    divisors = stored.rows(0, pairs).double().nan_to_num(nan=0.0, posinf=0.0)
    scaling = Llama3Scaling(factor=float(divisors.max()), original_length=8192)
    expected = plain_frequencies(rotary.dim, rotary.base) / scaling.frequencies(rotary.dim, rotary.base)
    # The divisors were computed in float32: frequencies have an error of about 1e-6, times the factor on the ramp.
    if not torch.allclose(divisors, expected, rtol=min(3e-6 * scaling.factor, 1e-3), atol=0):
        raise CheckpointError(
            f"{source}: {ROPE_FREQUENCIES} is not the published rotary scaling of Llama 3; load the Hugging Face "
            "folder of the model instead, whose config.json has the parameters"
        )
    return replace(config, position_encoding=replace(rotary, scaling=scaling))
