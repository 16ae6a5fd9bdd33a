"""The limits come from what a trace really holds."""

import re
from dataclasses import replace

import pytest
import torch

from attnscope.doctor import limits as doctor
from attnscope.models import Decoder
from attnscope.models.published_configs import DECODERS
from attnscope.recording import estimate, read

TOKENS = 300


@pytest.fixture
def two_layers(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """The model that the doctor speaks of, with fewer layers and words."""
    config = replace(DECODERS[doctor.MODEL], num_layers=2, vocab_size=50)
    monkeypatch.setitem(DECODERS, doctor.MODEL, config)
    return Decoder(config).eval()


def test_a_token_takes_what_a_real_trace_holds(two_layers: Decoder) -> None:
    trace = read(two_layers, (torch.arange(TOKENS) % 50).tolist(), progress=False)
    held = sum(layer.nbytes for layer in trace.layers.values())
    assert doctor.token_bytes(doctor.one_layer())["matrix"] == pytest.approx(held / TOKENS, rel=0.01)


@pytest.mark.parametrize("keep", ["matrix", "statistics"])
def test_a_token_takes_what_estimate_says(two_layers: Decoder, keep: str) -> None:
    said = estimate(two_layers, TOKENS, keep=keep).held / TOKENS
    assert doctor.token_bytes(doctor.one_layer())[keep] == pytest.approx(said)


def test_what_fits_fills_the_memory_beside_the_weights() -> None:
    weights = 4 * 134_515_008  # as the model's authors count them
    room = 10e9 - weights
    report = doctor.limits(available=10_000_000_000)
    assert report["available memory"] == "10 GB"
    assert "538 MB of parameters" in report["SmolLM2-135M in fp32"]
    fit = {
        name: int(re.findall(r"[\d,]+", text)[0].replace(",", ""))
        for name, text in report.items()
        if name.startswith("as ")
    }
    each = doctor.token_bytes(doctor.one_layer())
    assert fit["as queries and keys"] * each["matrix"] == pytest.approx(room, rel=0.01)
    assert fit["as statistics"] * each["statistics"] == pytest.approx(room, rel=0.01)
    assert fit["as dense matrices"] ** 2 * 4 * 30 * 9 == pytest.approx(room, rel=0.01)
    assert report["as dense matrices"].endswith("8,192 would take 72.5 GB")


def test_a_system_that_does_not_tell_its_memory_is_told_what_a_token_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_bytes", lambda: None)
    report = doctor.limits()
    assert report["available memory"] == "unknown"
    assert re.fullmatch(r"[\d.]+ kB per token", report["as queries and keys"])
    assert report["as dense matrices"] == "8,192 would take 72.5 GB"


def test_too_little_memory_is_room_for_nothing() -> None:
    assert doctor.limits(available=1000)["as statistics"].startswith("0 tokens, ")
