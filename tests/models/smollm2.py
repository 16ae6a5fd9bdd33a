"""SmolLM2-135M, loaded by AttnScope and by transformers, and in float64 to measure rounding errors."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from attnscope.models import Decoder
from attnscope.models.text.tokenizer import Tokenizer
from attnscope.recording import load

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "models" / "smollm2-135m"

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived",
    "1, 2, 3, 5, 8, 13,",
    "Water boils at 100 degrees Celsius because",
)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


@cache
def own_model() -> tuple[Decoder, Tokenizer]:
    """The model in float32 and its tokenizer, loaded by AttnScope."""
    model, tokenizer = load(FOLDER, dtype=torch.float32)
    assert isinstance(model, Decoder)
    assert isinstance(tokenizer, Tokenizer)
    return model, tokenizer


@cache
def transformers_model(dtype: torch.dtype = torch.float32) -> Any:
    """The model as its users have it."""
    return AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype=dtype, attn_implementation="sdpa", local_files_only=True
    ).eval()


@cache
def exact_model() -> Any:
    """The model in float64 throughout. Alone, `dtype=float64` leaves rotary angles and RMSNorm in float32."""
    model = AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype=torch.float64, attn_implementation="sdpa", local_files_only=True
    ).eval()
    rotary = model.model.rotary_emb
    theta, dim = model.config.rope_parameters["rope_theta"], model.config.head_dim
    inverse = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def exact_angles(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = (position_ids[..., None].double() * inverse).repeat(1, 1, 2)
        return angles.cos(), angles.sin()

    rotary.forward = exact_angles
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            norm = nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon, dtype=torch.float64)
            norm.load_state_dict(module.state_dict())
            module.forward = norm.forward  # pyright: ignore[reportAttributeAccessIssue]
    return model


def token_rows(lengths: tuple[int, ...]) -> list[list[int]]:
    """Token ids of English text, so many for each row."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "attention.md").read_text()
    ids = tokenizer()(text)["input_ids"]
    while len(ids) < max(lengths):
        ids = ids + ids[::-1]
    return [ids[offset : offset + length] for offset, length in enumerate(lengths)]
