"""GGUF files as llama.cpp's converter lays them out, written from models of transformers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor
from transformers import BertConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

# Blocks of quantized numbers have 32, so rows do too. Of Qwen3 in GGUF, transformers reads only heads of 128.
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

CONFIGS = {
    "llama": LlamaConfig(**SIZES, **TOKENS, num_key_value_heads=2, rms_norm_eps=2.0**-10),
    "qwen2": Qwen2Config(**SIZES, **TOKENS, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, **TOKENS, num_key_value_heads=2, head_dim=128),
    "gpt2": GPT2Config(
        vocab_size=61, n_embd=64, n_layer=3, n_head=4, n_positions=128, layer_norm_epsilon=2.0**-10, bos_token_id=None,
        eos_token_id=None,
    ),
    "bert": BertConfig(**SIZES, type_vocab_size=2, layer_norm_eps=2.0**-10),
}  # fmt: skip

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def gguf_name(name: str) -> str:
    """The name of a tensor of transformers in GGUF."""
    base, _, suffix = name.rpartition(".")
    layer = re.fullmatch(r"(?:model\.layers|transformer\.h|encoder\.layer)\.(\d+)\.(.*)", base)
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.{suffix}" if layer else f"{NAMES[base]}.{suffix}"


def interleaved(tensor: Tensor, num_heads: int) -> Tensor:
    """The rows of each head with its two halves dealt like cards."""
    return tensor.reshape(num_heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def write(
    path: Path,
    model: Any,
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write a model; `metadata` and `tensors` come on top, and None takes one of the metadata away."""
    config = model.config
    writer = GGUFWriter(path, config.model_type)
    for name, value in (metadata_of(config) | (metadata or {})).items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_array(name, value)
    for name, tensor in model.state_dict().items():
        if (name == "lm_head.weight" and config.tie_word_embeddings) or name.startswith("pooler."):
            continue
        tensor = tensor.detach().float()
        if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            tensor = tensor.T
        if config.model_type == "llama" and (found := re.search(r"\.([qk])_proj\.", name)):
            heads = config.num_attention_heads if found[1] == "q" else config.num_key_value_heads
            tensor = interleaved(tensor, heads)
        is_matrix = (
            tensor.dim() == 2 and "position_embd" not in gguf_name(name) and "token_types" not in gguf_name(name)
        )
        stored_kind = kind if is_matrix else GGMLQuantizationType.F32
        numbers = gguf.quants.quantize(tensor.contiguous().numpy(), stored_kind)
        writer.add_tensor(gguf_name(name), numbers, raw_dtype=stored_kind)
    for name, numbers in (tensors or {}).items():
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def metadata_of(config) -> dict[str, Any]:
    """What the converter writes about a model."""
    arch = config.model_type
    found: dict[str, Any] = {
        "general.name": "tiny",
        "general.file_type": 0,
        "general.quantization_version": 2,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"<{number}>" for number in range(config.vocab_size)],
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": getattr(config, "intermediate_size", 4 * config.hidden_size),
        f"{arch}.attention.head_count": config.num_attention_heads,
    }
    if arch in ("gpt2", "bert"):
        epsilon = config.layer_norm_epsilon if arch == "gpt2" else config.layer_norm_eps
        found[f"{arch}.attention.layer_norm_epsilon"] = epsilon
        return found | ({"bert.attention.causal": False, "bert.pooling_type": 1} if arch == "bert" else {})
    found |= {
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{arch}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    if arch == "llama":
        found |= {"llama.vocab_size": config.vocab_size, "llama.rope.dimension_count": config.head_dim}
    if arch in ("llama", "qwen3"):
        found |= {f"{arch}.attention.key_length": config.head_dim, f"{arch}.attention.value_length": config.head_dim}
    return found


def as_bytes(
    count_of_tensors: int, metadata: list[bytes], tensors: bytes = b"", *, counted: int | None = None
) -> bytes:
    """A file by hand, whatever it claims."""
    counts = np.array([count_of_tensors, len(metadata) if counted is None else counted], "<u8").tobytes()
    return b"GGUF" + np.array([3], "<u4").tobytes() + counts + b"".join(metadata) + tensors


def text(content: bytes | str, length: int | None = None) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return np.array([len(content) if length is None else length], "<u8").tobytes() + content


def entry(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + np.array([kind], "<u4").tobytes() + value


def tensor_entry(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    head = text(name) + np.array([len(dims)], "<u4").tobytes()
    return (
        head + np.array(dims, "<u8").tobytes() + np.array([kind], "<u4").tobytes() + np.array([offset], "<u8").tobytes()
    )


def float_rope_divisors(rotary_dim: int, base: float, factor: float, length: int = 8192) -> np.ndarray:
    """The divisors of Llama 3, computed in float32 as converters do."""
    frequencies = 1.0 / (base ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim))
    divisors = []
    for frequency in frequencies:
        turns = length * frequency / (2 * torch.pi)
        smooth = ((turns - 1) / 3).clamp(0, 1)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return torch.stack(divisors).numpy()
