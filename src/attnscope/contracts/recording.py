"""Contracts of `record`: it does not change what a model computes, and the weights are those of dense code."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.attention.rotary import Rotary
from attnscope.contracts.cases import dtype_name
from attnscope.contracts.contract import Check, Contract
from attnscope.contracts.dense import dense_attention, to_double
from attnscope.contracts.tolerances import Deviation, compare_fp32, require_equal
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording import record

DTYPES = (torch.float32, torch.bfloat16)
HIDDEN_SIZE, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 128, 4, 2, 32
CONFIG = DecoderConfig(
    vocab_size=64,
    hidden_size=HIDDEN_SIZE,
    num_layers=2,
    num_heads=NUM_HEADS,
    num_kv_heads=NUM_KV_HEADS,
    intermediate_size=256,
    max_position_embeddings=128,
    position_encoding=Rotary(dim=HEAD_DIM, layout="half"),
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


class GroupedAttention(nn.Module):
    """One causal attention layer with grouped heads, by torch's function."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(HIDDEN_SIZE, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM, bias=False)

    def project(self, tokens: Tensor) -> dict[str, Tensor]:
        """Return query, key and value of tokens (batch, sequence, hidden size)."""
        heads = self.projection(tokens).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        parts = heads.split([NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
        return dict(zip(("query", "key", "value"), parts, strict=True))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the output of all heads."""
        query, key, value = self.project(tokens).values()
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def compare_weights(device: torch.device) -> list[Deviation]:
    """Compare recorded weights with dense code, which does not use `record`."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model, tokens = GroupedAttention().eval(), torch.randn(1, TOKENS, HIDDEN_SIZE)
        allowed = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
        plain = dense_attention(model.project(tokens), allowed).weights
        truth = dense_attention(copy.deepcopy(model).double().project(tokens.double()), allowed).weights
        model = model.to(device)
        with record(model) as trace:
            model(tokens.to(device))
    (matrix,) = trace.values()
    return compare_fp32(
        to_double({"weights": matrix.to_dense()}), to_double({"weights": plain}), to_double({"weights": truth})
    )


def checks_of_logits(device: torch.device) -> Iterator[Check]:
    """Yield a check of the logits for each dtype."""
    for dtype in DTYPES:
        yield Check(f"decoder, {dtype_name(dtype)}", partial(compare_logits, device, dtype))


CONTRACTS = (
    Contract("record leaves outputs unchanged", checks_of_logits),
    Contract("recorded weights", lambda device: [Check("one layer, float32", partial(compare_weights, device))]),
)
