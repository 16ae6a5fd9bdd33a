"""Traces whose layers are on several devices without float64, as a model split by device_map has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from attnscope.heads import score_heads
from attnscope.heads.relations import compute_scores
from attnscope.models import Decoder, DecoderConfig
from attnscope.models.sampling import Sampler, Sampling
from attnscope.recording import Trace, read
from tests.devices.standin import Standins

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 7, 7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 9]])


@pytest.fixture
def devices() -> Iterator[None]:
    with torch.no_grad(), Standins():
        yield


@pytest.fixture(params=["matrix", "statistics"])
def trace(request: pytest.FixtureRequest) -> Trace:
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=20, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=16, max_position_embeddings=32
    )
    return read(Decoder(config).eval(), IDS, keep=request.param, progress=False)


def split(trace: Trace) -> Trace:
    """The trace with each layer on a device of its own, and its ids on that of the first."""
    moved = trace.to("cpu")
    for at, (name, layer) in enumerate(trace.layers.items()):
        moved.layers[name] = layer.to(torch.device("mps", at))
    moved.texts = [text._replace(ids=text.ids.to("mps:0")) for text in trace.texts]
    return moved


@pytest.mark.usefixtures("devices")
def test_the_devices_are_strict():
    one, other = torch.ones(3).to("mps:0"), torch.ones(3).to("mps:1")
    assert one.device == torch.device("mps", 0)
    with pytest.raises(TypeError, match="float64"):
        one.double()
    for wrong in (other, torch.ones(3)):
        with pytest.raises(RuntimeError, match="one device"):
            _ = one + wrong
    assert (one + one).cpu().tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("documents", [None, [0] * 6 + [1] * 8])
def test_heads_are_scored_across_devices(trace: Trace, documents: list[int] | None):
    if documents is not None and "statistics" in repr(type(trace.layer(0))).lower():
        pytest.skip("statistics do not have documents that the mask does not separate")
    expected = score_heads(trace, documents=documents, progress=False)
    with torch.no_grad(), Standins():
        found = score_heads(split(trace), documents=documents, progress=False)
    assert found.columns.keys() == expected.columns.keys()
    for name, column in expected.columns.items():
        assert found.columns[name].device.type == "cpu"
        torch.testing.assert_close(found.columns[name], column, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.usefixtures("devices")
def test_relations_are_scored_on_a_device_without_float64():
    weights = torch.rand(4, 3, 2)
    found = compute_scores(weights.to("mps"), [0, 0, 1, 1])
    for one, expected in zip(found, compute_scores(weights, [0, 0, 1, 1]), strict=True):
        torch.testing.assert_close(one.cpu(), expected)


@pytest.mark.usefixtures("devices")
def test_tokens_are_sampled_on_a_device_without_float64():
    logits = torch.randn(2, 50)
    sampling = Sampling(temperature=1.0, top_k=20, top_p=0.9, seed=3)
    found = Sampler(sampling, 2).choose(logits.to("mps"))
    assert found.device.type == "mps"
    assert torch.equal(found.cpu(), Sampler(sampling, 2).choose(logits))
