"""Compiled models are recorded and changed eagerly, and compiled code is used again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnscope.heads import ablate, direct_logit_attribution, patch
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording import read, record

IDS = torch.tensor([[3, 1, 4, 1, 5, 9]])


def small() -> Decoder:
    torch.manual_seed(0)
    return Decoder(
        DecoderConfig(
            vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
        )
    ).eval()


class Counting:
    """A backend of torch.compile that runs what it is given, and counts how often that happens."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, module: torch.fx.GraphModule, _: Any) -> Callable:
        def run(*args: Any) -> Any:
            self.runs += 1
            return module.forward(*args)

        return run


def wrapped(backend: Counting) -> Any:
    return torch.compile(small(), backend=backend)


def in_place(backend: Counting) -> Any:
    model = small()
    model.compile(backend=backend)
    return model


def inside(backend: Counting) -> Any:
    model = small()
    model.blocks[0].compile(backend=backend)
    return model


KINDS = pytest.mark.parametrize("compiled", [wrapped, in_place, inside])


def warned() -> pytest.WarningsRecorder:
    return pytest.warns(UserWarning, match=r"^\w+: Decoder is compiled; it runs eagerly here$")


@pytest.mark.compiled
@KINDS
@torch.no_grad()
def test_a_compiled_model_is_recorded_eagerly(compiled: Callable[[Counting], Any]) -> None:
    backend = Counting()
    model = compiled(backend)
    with warned(), record(model) as trace:
        model(IDS)
    assert backend.runs == 0
    assert list(trace) == ["blocks.0.attention", "blocks.1.attention"]
    with record(plain := small()) as right:
        plain(IDS)
    for name in right:
        torch.testing.assert_close(trace[name].to_dense(), right[name].to_dense())
    model(IDS)
    assert backend.runs > 0


@pytest.mark.compiled
@torch.no_grad()
def test_a_compiled_model_is_read_and_changed_eagerly() -> None:
    backend, plain = Counting(), small()
    model = wrapped(backend)
    with warned():
        assert read(model, IDS, progress=False)[0].shape == (1, 4, 6, 6)
    with ablate(plain, {0: [1]}):
        expected = plain(IDS)
    with warned(), ablate(model, {0: [1]}):
        torch.testing.assert_close(model(IDS), expected)
    assert backend.runs == 0


@pytest.mark.compiled
@torch.no_grad()
def test_compiled_code_is_used_again_after_an_error() -> None:
    backend = Counting()
    model = wrapped(backend)
    with warned(), pytest.raises(IndexError), record(model):
        model(torch.tensor([[50]]))  # beyond the vocabulary
    assert backend.runs == 0
    model(IDS)
    assert backend.runs > 0


@pytest.mark.compiled
@KINDS
@torch.no_grad()
def test_a_compiled_model_is_patched_and_attributed_eagerly(compiled: Callable[[Counting], Any]) -> None:
    backend, plain = Counting(), small()
    model = compiled(backend)
    with record(plain, values=True) as donor:
        plain(IDS.flip(1))
    with patch(plain, {0: [1]}, donor):
        expected = plain(IDS)
    with warned(), patch(model, {0: [1]}, donor):
        torch.testing.assert_close(model(IDS), expected)
    with warned():
        found = direct_logit_attribution(model, IDS, token=9)
    for name, heads in direct_logit_attribution(plain, IDS, token=9).heads.items():
        torch.testing.assert_close(found.heads[name], heads)
    assert backend.runs == 0
