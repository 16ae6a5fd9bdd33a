"""Checkpoints of BERT: the body, and its pooler if the file has one. Heads for tasks are left out.

In: the fields of their config.json. Out: an `EncoderConfig`, its parameters, and the fields again.
Does not know: files, tensors. Memory: O(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attnscope.models.checkpoint.activations import ACTIVATION_NAMES, ACTIVATIONS
from attnscope.models.checkpoint.family import Family, ParameterSource, embedding, linear, norm
from attnscope.models.checkpoint.fields import CHANGES_NOTHING, MAX_LAYERS, ONE_VALUE
from attnscope.models.encoder import EncoderConfig
from attnscope.models.json_fields import Fields

DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")

HEADS = (
    "tie_word_embeddings",
    "classifier_dropout",
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)
"""Settings of heads that are left out, some of which no released head has ever read."""

OLDER = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""What norms are called in files that were converted from TensorFlow."""


def config_from(fields: Fields) -> EncoderConfig:
    """Our config from the fields of BERT."""
    config = EncoderConfig(
        vocab_size=fields.size("vocab_size"),
        hidden_size=fields.size("hidden_size"),
        num_layers=fields.size("num_hidden_layers", maximum=MAX_LAYERS),
        num_heads=fields.size("num_attention_heads"),
        intermediate_size=fields.size("intermediate_size"),
        max_position_embeddings=fields.size("max_position_embeddings"),
        type_vocab_size=fields.size("type_vocab_size", 2),
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        activation=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        dropout=fields.shared_number(*DROPOUTS),
    )
    fields.only(position_embedding_type="absolute", **ONE_VALUE)
    fields.changes_nothing(*CHANGES_NOTHING, *HEADS)
    fields.finish()
    return config


def fields_from(config: EncoderConfig) -> dict[str, object]:
    """The fields of BERT from our config, which has nothing that BERT could not express."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        **dict.fromkeys(DROPOUTS, config.dropout),
    }


def parameters(config: EncoderConfig) -> Iterator[ParameterSource]:
    """The parameters of BERT."""
    hidden_size, intermediate_size = config.hidden_size, config.intermediate_size
    yield embedding("embedding", "embeddings.word_embeddings", config.vocab_size, hidden_size)
    yield embedding("position_embedding", "embeddings.position_embeddings", config.max_position_embeddings, hidden_size)
    yield embedding("segment_embedding", "embeddings.token_type_embeddings", config.type_vocab_size, hidden_size)
    yield from norm("norm", "embeddings.LayerNorm", hidden_size)
    for layer in range(config.num_layers):
        ours, theirs = f"blocks.{layer}", f"encoder.layer.{layer}"
        heads = tuple(f"{theirs}.attention.self.{name}" for name in ("query", "key", "value"))
        yield from linear(f"{ours}.attention.query_key_value", heads, hidden_size, hidden_size)
        yield from linear(f"{ours}.attention.output", (f"{theirs}.attention.output.dense",), hidden_size, hidden_size)
        yield from norm(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm", hidden_size)
        yield from linear(f"{ours}.feed_forward.up", (f"{theirs}.intermediate.dense",), intermediate_size, hidden_size)
        yield from linear(f"{ours}.feed_forward.down", (f"{theirs}.output.dense",), hidden_size, intermediate_size)
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.output.LayerNorm", hidden_size)
    if config.pooler:
        yield from linear("pooler", ("pooler.dense",), hidden_size, hidden_size)


def rename_legacy(name: str) -> str:
    """The name of a norm, if it is an older one, as it is today."""
    for older, today in OLDER.items():
        if name.endswith(older):
            return name.removesuffix(older) + today
    return name


BERT = Family(
    name="bert",
    architecture="BertModel",
    prefix="bert.",
    config_from=config_from,
    fields_from=fields_from,
    parameters=parameters,
    ignored_tensors=re.compile(r"embeddings\.position_ids|(cls|classifier|qa_outputs)\..*"),
    flags_from_tensors={"pooler": "pooler.dense.weight"},
    rename_legacy=rename_legacy,
    saves_body=True,
)
