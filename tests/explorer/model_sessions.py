"""Small models in a session, for tests of what is typed."""

from __future__ import annotations

import string
from typing import Any

import torch
from torch import nn

from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig
from tests.recording.zoo import EXHIBITS

CHARACTERS = CharacterTokenizer(string.ascii_letters + " .,;")
TEXT = "the dog that bit the man fled"
ZOO = {exhibit.name: exhibit for exhibit in EXHIBITS}


def small(dtype: torch.dtype = torch.float64, **options: Any) -> Decoder:
    torch.manual_seed(0)
    sizes = {"vocab_size": 56, "hidden_size": 32, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 600}
    model = Decoder(DecoderConfig(**{**sizes, **options})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() == 2 else 1)  # weights that are far from all alike
    return model


def make_session(model: nn.Module | None = None, **options: Any) -> ModelSession:
    return ModelSession(small() if model is None else model, CHARACTERS, "a small model", **options)


def written(session: ModelSession, text: str = TEXT, **options: Any) -> list[dict[str, Any]]:
    asked = {"count": 8, "temperature": 1.0, "seed": 3, "layer": 1, "head": 2}
    return list(session.generate(text, **{**asked, **options}))
