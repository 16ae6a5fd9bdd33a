"""Contracts of `record`: it does not change what a model computes, and the weights are those of the model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import torch
from torch import Tensor

from attnscope.attention.rotary import Rotary
from attnscope.contracts.cases import dtype_name
from attnscope.contracts.contract import Check, Contract
from attnscope.contracts.dense import to_double
from attnscope.contracts.tolerances import Deviation, compare_fp32, require_equal
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording import record

DTYPES = (torch.float32, torch.bfloat16)
CONFIG = DecoderConfig(
    vocab_size=64,
    hidden_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=256,
    max_position_embeddings=128,
    position_encoding=Rotary(dim=32, layout="half"),
)
TOKENS = 75


@cache
def _parameters() -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Decoder(CONFIG).state_dict()


def make_model(device: torch.device, dtype: torch.dtype) -> Decoder:
    """Return the same small decoder on any device, in any dtype."""
    with torch.random.fork_rng(devices=[]):
        model = Decoder(CONFIG)
    model.load_state_dict(_parameters())
    return model.to(device, dtype).eval()


def make_input_ids(device: torch.device) -> Tensor:
    """Return the token ids that the model reads, (1, tokens)."""
    return (torch.arange(TOKENS) * 7 % CONFIG.vocab_size)[None].to(device)


def compare_logits(device: torch.device, dtype: torch.dtype) -> list[Deviation]:
    """Compare the logits with and without `record`, which must be the same bits."""
    model, ids = make_model(device, dtype), make_input_ids(device)
    with torch.no_grad():
        plain = model(ids)
        with record(model):
            recorded = model(ids)
        with record(model, keep="statistics"):
            reduced = model(ids)
    return require_equal(
        to_double({"logits": recorded, "logits with keep='statistics'": reduced}),
        to_double({"logits": plain, "logits with keep='statistics'": plain}),
    )


def compare_weights(device: torch.device) -> list[Deviation]:
    """Compare recorded weights with those of the model in fp64; the yardstick is the model in fp32 on the CPU."""
    cpu = torch.device("cpu")
    return compare_fp32(
        recorded_weights(device, torch.float32),
        recorded_weights(cpu, torch.float32),
        recorded_weights(cpu, torch.float64),
    )


def recorded_weights(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the attention weights of all layers."""
    model, ids = make_model(device, dtype), make_input_ids(device)
    with torch.no_grad(), record(model) as trace:
        model(ids)
    return to_double({name: trace[name].to_dense() for name in trace.layers})


def checks_of_logits(device: torch.device) -> Iterator[Check]:
    """Yield a check of the logits for each dtype."""
    for dtype in DTYPES:
        yield Check(f"decoder, {dtype_name(dtype)}", partial(compare_logits, device, dtype))


CONTRACTS = (
    Contract("record leaves outputs unchanged", checks_of_logits),
    Contract("recorded weights", lambda device: [Check("decoder, float32", partial(compare_weights, device))]),
)
