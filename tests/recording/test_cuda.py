"""Models on CUDA, on one device or several: recorded there, with the statistics of the same model on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import LlamaConfig, LlamaForCausalLM

from attnscope import Trace, record, score_heads
from attnscope.models import Decoder, DecoderConfig
from tests.devices.standin import Standins, move_module

IDS = torch.randint(0, 50, (2, 24), generator=torch.Generator().manual_seed(0))


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def decoder() -> Decoder:
    config = DecoderConfig(
        vocab_size=50, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=32, max_position_embeddings=64
    )
    return Decoder(config)


class MultiheadModel(nn.Module):
    """Two attention modules of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        features = self.embedding(ids)
        for layer in self.layers:
            features = features + layer(features, features, features, need_weights=False)[0]
        return features


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transformers": llama,
    "our own": decoder,
    "nn.MultiheadAttention": MultiheadModel,
}


def recorded(model: nn.Module, ids: Tensor, **options: Any) -> tuple[Trace, Tensor]:
    with torch.no_grad(), record(model, **options) as trace:
        output = model(ids)
    return trace, getattr(output, "logits", output)


@pytest.mark.parametrize("keep", ["matrix", "statistics"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_is_recorded_on_its_device(make: Callable[[], nn.Module], keep: str) -> None:
    torch.manual_seed(0)
    model = make().eval()
    expected, output = recorded(model, IDS, keep=keep)
    table = score_heads(expected, progress=False)
    with torch.no_grad(), Standins():
        moved = deepcopy(model)
        move_module(moved, "cuda")
        trace, moved_output = recorded(moved, IDS.to("cuda"), keep=keep)
        torch.testing.assert_close(moved_output.cpu(), output, atol=1e-5, rtol=1e-5)
        assert list(trace) == list(expected)
        assert {one.device.type for layer in trace.layers.values() for one in layer.tensors()} == {"cuda"}
        found = score_heads(trace, progress=False)
    for name, column in table.columns.items():
        torch.testing.assert_close(found.columns[name], column, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_each_layer_of_a_split_model_is_recorded_on_its_own_device() -> None:
    torch.manual_seed(0)
    model = llama().eval()
    expected, output = recorded(model, IDS)
    with torch.no_grad(), Standins() as standins:
        moved = deepcopy(model)
        move_module(moved, "cuda:0")
        for part, place in ((moved.model.layers[1], "cuda:1"), (moved.model.norm, "cuda:0")):
            move_module(part, place)
            part.register_forward_pre_hook(send_to(place), with_kwargs=True)
        trace, moved_output = recorded(moved, IDS.to("cuda:0"))
        torch.testing.assert_close(moved_output.cpu(), output, atol=1e-5, rtol=1e-5)
        before = standins.waits.total()
        for name, device in zip(trace, ("cuda:0", "cuda:1"), strict=True):
            matrix, right = trace[name], expected[name]
            assert str(matrix.device) == device
            results = [matrix.entropy(), matrix.received(), *matrix.distance(), matrix.pool(4, 4)]
            others = [right.entropy(), right.received(), *right.distance(), right.pool(4, 4)]
            assert {str(one.device) for one in results} == {device}
            assert standins.waits.total() == before  # nothing was moved to compute it
            for one, other in zip(results, others, strict=True):
                torch.testing.assert_close(one.cpu(), other, atol=1e-4, rtol=1e-4)
            before = standins.waits.total()
        found = score_heads(trace, progress=False)
    for name, column in score_heads(expected, progress=False).columns.items():
        torch.testing.assert_close(found.columns[name], column, atol=1e-5, rtol=1e-5, equal_nan=True)


def send_to(device: str) -> Callable[..., object]:
    """A hook that moves all arguments of a module to a device, as device_map does."""

    def send(module: nn.Module, args: object, kwargs: object) -> object:
        return tree_map(lambda one: one.to(device) if isinstance(one, Tensor) else one, (args, kwargs))

    return send
