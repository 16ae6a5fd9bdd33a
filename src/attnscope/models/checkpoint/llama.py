"""Checkpoints of the Llama kind: Llama, Mistral, Qwen2 and Qwen3, which differ in biases, windows and head norms.

In: the fields of their config.json. Out: a `DecoderConfig`, its parameters, and the fields again.
Does not know: files, tensors. Memory: O(layers) for the windows, else O(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from attnscope.attention.rotary import Rotary
from attnscope.errors import CheckpointError
from attnscope.models.checkpoint.activations import ACTIVATION_NAMES, ACTIVATIONS
from attnscope.models.checkpoint.family import (
    Family,
    FileTensor,
    ParameterSource,
    embedding,
    linear,
    norm,
    refuse_dropout,
    require,
)
from attnscope.models.checkpoint.fields import CHANGES_NOTHING, MAX_LAYERS, ONE_VALUE
from attnscope.models.checkpoint.rope import rope_fields, rotary_from
from attnscope.models.decoder import DecoderConfig
from attnscope.models.json_fields import Fields

Windows = tuple[int | None, ...] | None


def config_from(kind: str, fields: Fields) -> DecoderConfig:
    """Our config from the fields of one of the four kinds."""
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    num_layers = fields.size("num_hidden_layers", maximum=MAX_LAYERS)
    head_dim = fields.optional_size("head_dim") or (128 if kind == "qwen3" else max(hidden_size // num_heads, 1))
    max_position_embeddings = fields.size("max_position_embeddings")
    num_kv_heads = _num_kv_heads(kind, fields, num_heads)
    qwen2 = kind == "qwen2"
    bias = fields.flag("attention_bias", False) if kind in ("llama", "qwen3") else qwen2
    config = DecoderConfig(
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.size("intermediate_size"),
        max_position_embeddings=max_position_embeddings,
        position_encoding=rotary_from(fields, head_dim=head_dim, max_position_embeddings=max_position_embeddings),
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        qk_norm=kind == "qwen3",
        activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
        gated=True,
        qkv_bias=bias,
        output_bias=bias and not qwen2,
        feed_forward_bias=fields.flag("mlp_bias", False) if kind == "llama" else False,
        sliding_windows=_windows_from(kind, fields, num_layers),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
    )
    fields.only(attention_dropout=0.0, rope_interleaved=False, use_mrope=False, **ONE_VALUE)
    fields.changes_nothing(*CHANGES_NOTHING, "pretraining_tp", "is_llama_config")
    fields.finish()
    return config


def fields_from(kind: str, config: DecoderConfig) -> dict[str, object]:
    """The fields of one of the four kinds from our config."""
    refuse_dropout(kind, config)
    require(kind, config, norm="rms", gated=True, qk_norm=kind == "qwen3")
    if kind in ("llama", "qwen3"):
        require(kind, config, output_bias=config.qkv_bias)
    else:
        require(kind, config, qkv_bias=kind == "qwen2", output_bias=False)
    if kind != "llama":
        require(kind, config, feed_forward_bias=False)
    if not isinstance(config.position_encoding, Rotary):
        raise CheckpointError(
            f"a {kind} checkpoint has rotary positions, but this config has {config.position_encoding!r}"
        )
    if kind == "llama" and config.hidden_size % config.num_heads:
        raise CheckpointError(
            "a llama checkpoint has a hidden_size that is a multiple of num_heads, but this config has "
            f"{config.hidden_size} and {config.num_heads}"
        )
    head_dim = head_dim_of(config)
    found: dict[str, object] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads or config.num_heads,
        "head_dim": head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": rope_fields(config.position_encoding, head_dim=head_dim),
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    if kind in ("llama", "qwen3"):
        found["attention_bias"] = config.qkv_bias
    if kind == "llama":
        found["mlp_bias"] = config.feed_forward_bias
    return found | _window_fields(kind, config.sliding_windows)


def parameters(config: DecoderConfig) -> Iterator[ParameterSource]:
    """The parameters of all four kinds: what the config has no bias or norm for is left out."""
    hidden_size, intermediate_size, head_dim = config.hidden_size, config.intermediate_size, head_dim_of(config)
    kv_rows = (config.num_kv_heads or config.num_heads) * head_dim
    rows = {"q": config.num_heads * head_dim, "k": kv_rows, "v": kv_rows}
    yield embedding("embedding", "embed_tokens", config.vocab_size, hidden_size)
    for layer in range(config.num_layers):
        ours, theirs = f"blocks.{layer}", f"layers.{layer}"
        attention, network = f"{theirs}.self_attn", f"{theirs}.mlp"
        yield from norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm", hidden_size, bias=False)
        for kind, columns in (("weight", (hidden_size,)), ("bias", ())):
            if kind == "weight" or config.qkv_bias:
                parts = (FileTensor(f"{attention}.{name}_proj.{kind}", (size, *columns)) for name, size in rows.items())
                yield ParameterSource(f"{ours}.attention.query_key_value.{kind}", tuple(parts))
        if config.qk_norm:
            yield from norm(f"{ours}.attention.query_norm", f"{attention}.q_norm", head_dim, bias=False)
            yield from norm(f"{ours}.attention.key_norm", f"{attention}.k_norm", head_dim, bias=False)
        output = (f"{attention}.o_proj",)
        yield from linear(f"{ours}.attention.output", output, hidden_size, rows["q"], bias=config.output_bias)
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm", hidden_size, bias=False)
        up, down = (f"{network}.gate_proj", f"{network}.up_proj"), (f"{network}.down_proj",)
        yield from linear(f"{ours}.feed_forward.up", up, intermediate_size, hidden_size, bias=config.feed_forward_bias)
        yield from linear(
            f"{ours}.feed_forward.down", down, hidden_size, intermediate_size, bias=config.feed_forward_bias
        )
    yield from norm("norm", "norm", hidden_size, bias=False)
    if not config.tie_word_embeddings:
        yield embedding("head", "lm_head", config.vocab_size, hidden_size)


def head_dim_of(config: DecoderConfig) -> int:
    """The size of a head."""
    return config.head_dim or config.hidden_size // config.num_heads


def _num_kv_heads(kind: str, fields: Fields, num_heads: int) -> int:
    """Llama files from before grouped heads have no such field; the other kinds always had it."""
    if kind != "llama" and "num_key_value_heads" not in fields:
        fields.size("num_key_value_heads")
    return fields.optional_size("num_key_value_heads") or num_heads


def _windows_from(kind: str, fields: Fields, num_layers: int) -> Windows:
    if kind == "llama":
        return None
    window = fields.optional_size("sliding_window") if "sliding_window" in fields else 4096
    if kind == "mistral":
        return None if window is None else (window,) * num_layers
    used = fields.flag("use_sliding_window", False)
    first = fields.take("max_window_layers", 28)
    types = fields.take("layer_types", None)
    if types is None:
        if not used or window is None:
            return None
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            raise fields.invalid("max_window_layers", first, "the number of the first layer with a window")
        return tuple(window if layer >= first else None for layer in range(num_layers))
    kinds = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != num_layers or any(entry not in kinds for entry in types):
        raise fields.invalid("layer_types", types, f"a list of {num_layers} names, each one of {', '.join(kinds)}")
    if kinds[1] not in types:
        return None
    if not used or window is None:
        raise fields.invalid("layer_types", types, "without sliding_attention, unless use_sliding_window is true")
    return tuple(window if entry == kinds[1] else None for entry in types)


def _window_fields(kind: str, windows: Windows) -> dict[str, object]:
    sizes = {window for window in windows or () if window is not None}
    if len(sizes) > 1:
        raise CheckpointError(f"a {kind} checkpoint has windows of one size, but this config has {sorted(sizes)}")
    window = next(iter(sizes), None)
    if kind == "llama":
        if sizes:
            raise CheckpointError(f"a llama checkpoint has no windows, but this config has {windows}")
        return {}
    if kind == "mistral":
        if windows is not None and None in windows and sizes:
            raise CheckpointError("a mistral checkpoint has a window in every layer or in none, but this config mixes")
        return {"sliding_window": window}
    types = ["full_attention" if entry is None else "sliding_attention" for entry in windows or ()]
    listed = {"layer_types": types} if types else {}
    return {"use_sliding_window": window is not None, "sliding_window": window, **listed}


def _family(kind: str, architecture: str) -> Family:
    return Family(
        name=kind,
        architecture=architecture,
        prefix="model.",
        config_from=partial(config_from, kind),
        fields_from=partial(fields_from, kind),
        parameters=parameters,
        without_prefix=("lm_head.weight",),
        # Older files carry the rotary frequencies, which follow from the config.
        ignored_tensors=re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
        tied_tensors={"lm_head.weight": "embed_tokens.weight"},
    )


LLAMA = _family("llama", "LlamaForCausalLM")
MISTRAL = _family("mistral", "MistralForCausalLM")
QWEN2 = _family("qwen2", "Qwen2ForCausalLM")
QWEN3 = _family("qwen3", "Qwen3ForCausalLM")
