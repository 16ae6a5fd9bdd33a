import dataclasses
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from attnscope.attention.rotary import Rotary
from attnscope.attention.rotary_scaling import LinearScaling, Llama3Scaling, NTKScaling, YarnScaling, plain_frequencies

# transformers computes frequencies in float32: a few units in the last place.
ROUNDING = 1e-6


def from_transformers(
    kind: str, *, dim: int, base: float, length: int = 8192, seq_len: int | None = None, **extra: Any
):
    config = LlamaConfig(
        hidden_size=dim * 2,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=length,
        rope_parameters={"rope_type": kind, "rope_theta": base, **extra},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len)


def assert_same(scaling, dim: int, base: float, expected) -> None:
    frequencies, amplitude = expected
    ours = Rotary(dim=dim, layout="half", base=base, scaling=scaling).frequencies()
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours.float(), frequencies, rtol=ROUNDING, atol=0)
    assert scaling.amplitude == pytest.approx(amplitude, rel=1e-12)


@pytest.mark.parametrize(("dim", "base"), [(64, 10000.0), (128, 500000.0), (6, 100.0)])
def test_linear_scaling_is_that_of_transformers(dim, base):
    assert_same(LinearScaling(factor=2.5), dim, base, from_transformers("linear", dim=dim, base=base, factor=2.5))


@pytest.mark.parametrize(("dim", "base"), [(64, 10000.0), (128, 500000.0), (6, 100.0)])
def test_ntk_scaling_is_the_dynamic_rule_of_transformers_held_at_one_length(dim, base):
    # The dynamic rule stretches by factor * n / length - (factor - 1): 5 for factor 4 at twice the length.
    expected = from_transformers("dynamic", dim=dim, base=base, factor=4.0, seq_len=2 * 8192)
    assert_same(NTKScaling(factor=5.0), dim, base, expected)


@pytest.mark.parametrize(("dim", "base"), [(64, 10000.0), (128, 500000.0), (32, 1000000.0)])
@pytest.mark.parametrize(("low", "high", "factor"), [(1.0, 4.0, 8.0), (0.5, 16.0, 32.0)])
def test_llama3_scaling_is_that_of_transformers(dim, base, low, high, factor):
    scaling = Llama3Scaling(factor=factor, original_length=8192, low_frequency_factor=low, high_frequency_factor=high)
    names = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": 8192}
    expected = from_transformers("llama3", dim=dim, base=base, length=8192 * 16, factor=factor, **names)
    assert_same(scaling, dim, base, expected)


@pytest.mark.parametrize(
    ("dim", "base", "original"), [(64, 10000.0, 4096), (128, 1000000.0, 32768), (64, 150000.0, 4096)]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beta_fast": 64.0, "beta_slow": 0.5},
        {"truncate": False},
        {"attention_factor": 1.25},
        {"mscale": 0.707, "mscale_all_dim": 1.0},
        {"mscale": 0.707},
    ],
    ids=lambda options: "+".join(options) or "defaults",
)
def test_yarn_scaling_is_that_of_transformers(dim, base, original, options):
    scaling = YarnScaling(factor=16.0, original_length=original, **options)
    expected = from_transformers(
        "yarn",
        dim=dim,
        base=base,
        length=original * 16,
        factor=16.0,
        original_max_position_embeddings=original,
        **options,
    )
    assert_same(scaling, dim, base, expected)


def test_yarn_with_a_ramp_of_no_width_steps_from_one_pair_to_the_next():
    scaling = YarnScaling(factor=4.0, original_length=100, beta_fast=20.0, beta_slow=19.0)
    expected = from_transformers(
        "yarn",
        dim=8,
        base=1e9,
        length=400,
        factor=4.0,
        beta_fast=20.0,
        beta_slow=19.0,
        original_max_position_embeddings=100,
    )
    assert_same(scaling, 8, 1e9, expected)


def test_a_factor_of_one_changes_nothing():
    plain = plain_frequencies(32, 10000.0)
    for scaling in (
        LinearScaling(factor=1.0),
        NTKScaling(factor=1.0),
        Llama3Scaling(factor=1.0, original_length=100),
        YarnScaling(factor=1.0, original_length=100),
    ):
        torch.testing.assert_close(scaling.frequencies(32, 10000.0), plain, rtol=1e-14, atol=0)
        assert scaling.amplitude == 1.0


def test_ntk_slows_the_last_pair_by_its_factor_and_the_first_not_at_all():
    ratio = NTKScaling(factor=8.0).frequencies(64, 10000.0) / plain_frequencies(64, 10000.0)
    assert ratio[0] == 1
    assert ratio[-1].item() == pytest.approx(1 / 8, rel=1e-12)


def test_scalings_are_frozen_and_take_only_keywords():
    with pytest.raises(TypeError):
        LinearScaling(4.0)  # pyright: ignore[reportCallIssue]
    with pytest.raises(dataclasses.FrozenInstanceError):
        LinearScaling(factor=4.0).factor = 2.0  # pyright: ignore[reportAttributeAccessIssue]


def test_scalings_name_the_field_they_refuse():
    with pytest.raises(ValueError, match=r"LinearScaling.*positive factor, got 0"):
        LinearScaling(factor=0)
    with pytest.raises(ValueError, match=r"Llama3Scaling.*positive original_length, got -1"):
        Llama3Scaling(factor=8.0, original_length=-1)
    with pytest.raises(ValueError, match=r"low_frequency_factor < high_frequency_factor, got 4.0 and 4"):
        Llama3Scaling(factor=8.0, original_length=8192, low_frequency_factor=4.0, high_frequency_factor=4)
    with pytest.raises(ValueError, match=r"YarnScaling.*beta_slow < beta_fast, got 64 and 32.0"):
        YarnScaling(factor=8.0, original_length=8192, beta_slow=64)
    with pytest.raises(ValueError, match=r"NTKScaling.*dim.*got 2; use LinearScaling"):
        NTKScaling(factor=2.0).frequencies(2, 10000.0)
