"""Tiny models of transformers with random weights, exact in float64: the other side of every comparison here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from attnscope.models.checkpoint import load

# Lengths, widths and heads are all different, so that no two can be exchanged unnoticed.
TEXT = torch.randint(0, 61, (2, 45), generator=torch.Generator().manual_seed(5))

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GPT2_SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}

ALL_HEADS: dict[str, Any] = {"num_key_value_heads": 6}
LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 1000.0,
}

DECODERS: dict[str, PreTrainedConfig] = {
    "gpt2": GPT2Config(**GPT2_SIZES),
    "gpt2 with its own head, width and activation": GPT2Config(
        **GPT2_SIZES, tie_word_embeddings=False, n_inner=40, activation_function="relu", layer_norm_epsilon=1e-3
    ),
    "llama": LlamaConfig(**SIZES),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3),
    "llama tied, with wide heads": LlamaConfig(**SIZES, tie_word_embeddings=True, head_dim=10),
    "llama with all key heads": LlamaConfig(**SIZES | ALL_HEADS, hidden_act="gelu_pytorch_tanh"),
    "llama linear": LlamaConfig(**SIZES, rope_parameters=LINEAR),
    "llama llama3": LlamaConfig(**SIZES, rope_parameters=LLAMA3, head_dim=16),
    "llama yarn": LlamaConfig(**SIZES, rope_parameters=YARN, head_dim=16),
    "llama yarn of its own": LlamaConfig(
        **SIZES,
        head_dim=16,
        rope_parameters=YARN
        | {"beta_fast": 4.0, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False},
    ),
    "llama yarn with a factor": LlamaConfig(**SIZES, head_dim=16, rope_parameters=YARN | {"attention_factor": 1.5}),
    "mistral": MistralConfig(**SIZES, sliding_window=7),
    "mistral without a window": MistralConfig(**SIZES, sliding_window=None, head_dim=6),
    "qwen2": Qwen2Config(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen2 with windows": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "qwen3 with biases and windows": Qwen3Config(
        **SIZES,
        head_dim=8,
        attention_bias=True,
        tie_word_embeddings=True,
        use_sliding_window=True,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}
"""One config for each thing that a decoder may have."""

BERT = BertConfig(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=6,
    max_position_embeddings=64,
    type_vocab_size=3,
)


@contextmanager
def float64_everywhere() -> Iterator[None]:
    """Make transformers exact: it computes angles and RMS norms in float32 whatever dtype its weights have.

    It asks for that by the names torch.float and torch.float32, so here these names mean float64.
    """
    with patch.object(torch, "float", torch.float64), patch.object(torch, "float32", torch.float64):
        yield


def make(config: PreTrainedConfig) -> Any:
    """A model in float64 whose weights, biases and norms are all random."""
    with float64_everywhere():
        model: Any = BertModel(config) if isinstance(config, BertConfig) else AutoModelForCausalLM.from_config(config)
        return randomized(model.to(torch.float64).eval())


def randomized(model):
    """Redraw every parameter of a model: large enough that attention is far from uniform."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            is_norm = "norm" in name.lower() or "ln_" in name
            parameter.copy_(1 + 0.3 * noise if is_norm and name.endswith("weight") else 0.4 * noise)
    return model


def loaded(source: Path, **options) -> Any:
    """What `load` makes of a source; the test knows whether that is a decoder or an encoder."""
    return load(source, **options)


def opened(folder: Path, **options) -> Any:
    """What transformers makes of a folder."""
    with float64_everywhere():
        kind = AutoModel if options.pop("body", False) else AutoModelForCausalLM
        return kind.from_pretrained(folder, dtype=torch.float64, local_files_only=True, **options).eval()


def logits(model: nn.Module, tokens: Tensor = TEXT) -> Tensor:
    """The logits of a model of either side."""
    with torch.no_grad(), float64_everywhere():
        found = model(tokens)
    return found if isinstance(found, Tensor) else found.logits
