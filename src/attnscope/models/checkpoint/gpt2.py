"""Checkpoints of GPT-2, whose linear layers are stored with rows and columns exchanged.

In: the fields of their config.json. Out: a `DecoderConfig`, its parameters, and the fields again.
Does not know: files, tensors. Memory: O(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attnscope.models.checkpoint.activations import ACTIVATION_NAMES, ACTIVATIONS
from attnscope.models.checkpoint.family import Family, ParameterSource, embedding, linear, norm, require
from attnscope.models.checkpoint.fields import CHANGES_NOTHING, MAX_LAYERS, ONE_VALUE
from attnscope.models.decoder import DecoderConfig
from attnscope.models.json_fields import Fields

DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")

SUMMARIES = (
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
)
"""Settings of a head for multiple choice, which is left out."""


def config_from(fields: Fields) -> DecoderConfig:
    """Our config from the fields of GPT-2."""
    hidden_size = fields.size("n_embd")
    config = DecoderConfig(
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        num_layers=fields.size("n_layer", maximum=MAX_LAYERS),
        num_heads=fields.size("n_head"),
        intermediate_size=fields.optional_size("n_inner") or 4 * hidden_size,
        max_position_embeddings=fields.size("n_positions"),
        activation=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        dropout=fields.shared_number(*DROPOUTS),
    )
    fields.only(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False, **ONE_VALUE
    )
    fields.changes_nothing(*CHANGES_NOTHING, *SUMMARIES, "n_ctx")
    fields.finish()
    return config


def fields_from(config: DecoderConfig) -> dict[str, object]:
    """The fields of GPT-2 from our config."""
    require(
        "gpt2",
        config,
        position_encoding="learned",
        norm="layer",
        qk_norm=False,
        gated=False,
        qkv_bias=True,
        output_bias=True,
        feed_forward_bias=True,
        sliding_windows=None,
    )
    if config.num_kv_heads is not None:
        require("gpt2", config, num_kv_heads=config.num_heads)
    if config.head_dim is not None:
        require("gpt2", config, head_dim=config.hidden_size // config.num_heads)
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.hidden_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_inner": config.intermediate_size,
        "n_positions": config.max_position_embeddings,
        "activation_function": ACTIVATION_NAMES[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        **dict.fromkeys(DROPOUTS, config.dropout),
    }


def parameters(config: DecoderConfig) -> Iterator[ParameterSource]:
    """The parameters of GPT-2."""
    hidden_size, intermediate_size = config.hidden_size, config.intermediate_size
    yield embedding("embedding", "wte", config.vocab_size, hidden_size)
    yield embedding("position_embedding", "wpe", config.max_position_embeddings, hidden_size)
    for layer in range(config.num_layers):
        ours, theirs = f"blocks.{layer}", f"h.{layer}"
        yield from norm(f"{ours}.attention_norm", f"{theirs}.ln_1", hidden_size)
        for name, their_name, rows, columns in (
            ("attention.query_key_value", "attn.c_attn", 3 * hidden_size, hidden_size),
            ("attention.output", "attn.c_proj", hidden_size, hidden_size),
            ("feed_forward.up", "mlp.c_fc", intermediate_size, hidden_size),
            ("feed_forward.down", "mlp.c_proj", hidden_size, intermediate_size),
        ):
            yield from linear(f"{ours}.{name}", (f"{theirs}.{their_name}",), rows, columns, transposed=True)
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.ln_2", hidden_size)
    yield from norm("norm", "ln_f", hidden_size)
    if not config.tie_word_embeddings:
        yield embedding("head", "lm_head", config.vocab_size, hidden_size)


GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    config_from=config_from,
    fields_from=fields_from,
    parameters=parameters,
    without_prefix=("lm_head.weight",),
    # Older files carry the causal mask and the number that stands for minus infinity.
    ignored_tensors=re.compile(r"h\.\d+\.attn\.(bias|masked_bias)"),
    tied_tensors={"lm_head.weight": "wte.weight"},
)
