"""Which family a config.json belongs to, and which one can express a config of ours.

In: a `model_type`, or a config. Out: a `Family`. Does not know: files. Memory: O(1).
"""

from __future__ import annotations

from attnscope.attention.rotary import Rotary
from attnscope.errors import UnsupportedModelError
from attnscope.models.checkpoint.bert import BERT
from attnscope.models.checkpoint.family import Family
from attnscope.models.checkpoint.gpt2 import GPT2
from attnscope.models.checkpoint.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from attnscope.models.decoder import DecoderConfig
from attnscope.models.encoder import EncoderConfig
from attnscope.models.json_fields import Fields

FAMILIES: dict[str, Family] = {family.name: family for family in (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, BERT)}
"""Every family by its `model_type`."""


def family_from_fields(fields: Fields) -> Family:
    """The family of a config.json."""
    if "auto_map" in fields:
        raise UnsupportedModelError(
            f"{fields.source} needs code that came with the model (auto_map), which is never run. If the code only "
            'repeats what its model_type already is, pass ignore=("auto_map",)'
        )
    return fields.choice("model_type", FAMILIES)


def family_from_config(config: DecoderConfig | EncoderConfig) -> Family:
    """The family that may support a config; otherwise its `fields_from` raises an error."""
    if isinstance(config, EncoderConfig):
        return BERT
    if not isinstance(config.position_encoding, Rotary):
        return GPT2
    if config.qk_norm:
        return QWEN3
    if config.qkv_bias and not config.output_bias:
        return QWEN2
    return LLAMA if config.sliding_windows is None else MISTRAL
