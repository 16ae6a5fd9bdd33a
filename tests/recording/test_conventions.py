"""A Trace behaves like other Python objects: negative layers and heads, pickling, moving, bytes counted once."""

import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from attnscope import Bias, Causal, Trace, ablate, attend, open_trace, record
from attnscope.errors import SettingError
from attnscope.models import Decoder, DecoderConfig

IDS = torch.arange(7)[None]


def small_decoder() -> Decoder:
    return Decoder(
        DecoderConfig(
            vocab_size=16, hidden_size=16, num_layers=3, num_heads=4, intermediate_size=32, max_position_embeddings=32
        )
    ).eval()


def recorded(model: nn.Module, **options: object) -> Trace:
    with torch.no_grad(), record(model, **options) as trace:  # pyright: ignore[reportArgumentType]
        model(IDS)
    return trace


def test_negative_layers_and_heads_count_from_the_end() -> None:
    model = small_decoder()
    names = list(recorded(model))
    assert list(recorded(model, layers=-1)) == names[-1:]
    assert list(recorded(model, layers=[0, -2])) == names[:2]
    some = recorded(model, heads={-1: [-1, 0], 2: [0, 1]})
    assert {name: some.layer(name).heads for name in some} == {names[2]: (3, 0, 1)}
    with pytest.raises(SettingError, match="layer -4"):
        recorded(model, layers=-4)
    with pytest.raises(SettingError, match="head -5"):
        recorded(model, heads=[-5])


def test_ablation_counts_from_the_end_too() -> None:
    model = small_decoder()
    with torch.no_grad(), ablate(model, {-1: [-1], 2: [0]}):
        negative = model(IDS)
    with torch.no_grad(), ablate(model, {2: [3, 0]}):
        positive = model(IDS)
    assert torch.equal(negative, positive)
    assert not torch.equal(negative, model(IDS))


@pytest.mark.parametrize("options", [{}, {"keep": "statistics"}, {"values": True}, {"spill": True}], ids=str)
def test_a_trace_can_be_pickled(tmp_path: Path, options: dict[str, object]) -> None:
    if options.get("spill"):
        options = {"spill": tmp_path}
    trace = recorded(small_decoder(), **options)
    again = pickle.loads(pickle.dumps(trace))
    assert list(again) == list(trace)
    assert again.tokens() == trace.tokens()
    for name in trace:
        assert torch.equal(again.summary(name).entropy, trace.summary(name).entropy)
    assert trace.to("cpu").nbytes == trace.nbytes


def test_a_saved_trace_can_be_pickled_and_moved(tmp_path: Path) -> None:
    trace = recorded(small_decoder())
    trace.save(tmp_path / "trace")
    again = pickle.loads(pickle.dumps(open_trace(tmp_path / "trace")))
    assert torch.equal(again[1].to_dense(), trace[1].to_dense())
    assert {one.device.type for layer in trace.to("meta").layers.values() for one in layer.tensors()} == {"meta"}
    assert trace[0].device.type == "cpu"


def test_a_bias_that_layers_share_counts_once() -> None:
    class Biased(nn.Module):
        def forward(self, states: Tensor, bias: Tensor) -> Tensor:
            return attend(states, states, states, mask=Causal(), score_mod=Bias(bias))

    model, states, bias = nn.ModuleList([Biased(), Biased()]), torch.randn(1, 2, 9, 8), torch.randn(9, 9)
    with torch.no_grad(), record(model) as trace:
        for layer in model:
            layer(states, bias)
    alone = [layer.nbytes for layer in trace.layers.values()]
    assert alone[0] >= 2 * states.nbytes + bias.nbytes
    assert sum(alone) - bias.nbytes <= trace.nbytes <= sum(alone)
