"""Models of diffusers are recorded: the weights are those of the library's own code without a fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnscope.recording import Trace, record

IMAGE, TEXT = torch.randn(2, 4, 16, 16), torch.randn(2, 7, 32)


def recorded(model: nn.Module, call: Callable[[], Tensor]) -> Trace:
    """Record a pass, and check that it returns what a plain pass returns."""
    with torch.no_grad():
        plain = call()
        with record(model, verify=True) as trace:
            assert torch.equal(call(), plain)
    assert max(trace.errors.values()) < 1e-6
    return trace


def test_a_unet_of_diffusers_is_recorded_equal_to_its_plain_processor() -> None:
    diffusers = pytest.importorskip("diffusers")
    from diffusers.models.attention_processor import AttnProcessor

    model: Any = diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    ).eval()

    def call() -> Tensor:
        return model(IMAGE, torch.tensor(10), encoder_hidden_states=TEXT).sample

    trace = recorded(model, call)
    right: list[Tensor] = []
    for module in model.modules():
        if hasattr(module, "get_attention_scores"):
            scores = module.get_attention_scores
            module.get_attention_scores = lambda *given, scores=scores: right.append(scores(*given)) or right[-1]
    model.set_attn_processor(AttnProcessor())  # builds the weights
    with torch.no_grad():
        call()
    assert len(right) == len(trace) == 8
    for name, weights in zip(trace, right, strict=True):
        torch.testing.assert_close(trace[name].to_dense().flatten(0, 1), weights, rtol=0, atol=1e-6)
    assert {trace[name].shape[-1] for name in trace} == {64, 7}  # self-attention and cross-attention


def test_a_flux_transformer_of_diffusers_is_recorded() -> None:
    diffusers = pytest.importorskip("diffusers")
    model: Any = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    given = {
        "hidden_states": torch.randn(2, 16, 4),
        "encoder_hidden_states": TEXT,
        "pooled_projections": torch.randn(2, 32),
        "timestep": torch.ones(2),
        "img_ids": torch.arange(48.0).reshape(16, 3),
        "txt_ids": torch.zeros(7, 3),
    }
    trace = recorded(model, lambda: model(**given).sample)
    assert [trace[name].shape for name in trace] == [(2, 2, 23, 23)] * 2  # 7 tokens of text and 16 of the picture
