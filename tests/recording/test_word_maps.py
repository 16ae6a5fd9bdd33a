"""Attention to words, summed over steps and layers, is that of the weights which the libraries build themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.errors import SettingError
from attnscope.recording import record, record_words

diffusers = pytest.importorskip("diffusers")
TEXT, STEPS = torch.randn(2, 7, 32), (900, 500, 100)


def make_unet() -> Any:
    """A UNet with cross-attention at 8 x 12 and 4 x 6."""
    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    ).eval()


def test_words_of_a_unet_are_the_sums_of_its_plain_processor() -> None:
    from diffusers.models.attention_processor import AttnProcessor

    unet, latents = make_unet(), torch.randn(2, 4, 8, 12)

    def denoise() -> None:
        for step in STEPS:
            unet(latents, torch.tensor(step), encoder_hidden_states=TEXT)

    with torch.no_grad(), record_words(unet, grid=(8, 12)) as maps:
        denoise()
    built: list[Tensor] = []
    for name, module in unet.named_modules():
        if name.endswith("attn2"):
            scores = module.get_attention_scores
            module.get_attention_scores = lambda *given, scores=scores: built.append(scores(*given)) or built[-1]
    unet.set_attn_processor(AttnProcessor())
    with torch.no_grad():
        denoise()
    right = torch.zeros(7, 8, 12, dtype=torch.float64)
    for weights in built:
        mean = weights.unflatten(0, (2, -1))[1].mean(0).T.double()  # the last row of the batch, all heads
        factor = 1 if mean.shape[1] == 96 else 2
        small = mean.reshape(7, 8 // factor, 12 // factor)
        right += small.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    assert maps.calls == len(built)
    torch.testing.assert_close(maps.sums / maps.calls, right / len(built), rtol=0, atol=1e-6)
    assert {96, 24} == {weights.shape[1] for weights in built}
    found = maps.on_image([2, 3], torch.rand(3, 64, 96))
    torch.testing.assert_close(found.values[0, 0], maps.sums[2:4].sum(0) / maps.calls)


@pytest.mark.parametrize("kind", ["Flux", "SD3"])
def test_words_of_a_transformer_are_those_of_its_joint_attention(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "Flux":  # words first
        model = diffusers.FluxTransformer2DModel(
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
            "hidden_states": torch.randn(1, 15, 4),
            "encoder_hidden_states": TEXT[:1],
            "pooled_projections": torch.randn(1, 32),
            "timestep": torch.ones(1),
            "img_ids": torch.arange(45.0).reshape(15, 3),
            "txt_ids": torch.zeros(7, 3),
        }
        text, image = range(7), slice(7, 22)
    else:  # words last
        model = diffusers.SD3Transformer2DModel(
            sample_size=10,
            patch_size=2,
            in_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            caption_projection_dim=32,
            pooled_projection_dim=32,
            out_channels=4,
            pos_embed_max_size=8,
        ).eval()
        given = {
            "hidden_states": torch.randn(1, 4, 6, 10),
            "encoder_hidden_states": TEXT[:1],
            "pooled_projections": torch.randn(1, 32),
            "timestep": torch.ones(1),
        }
        text, image = range(15, 22), slice(0, 15)
    with torch.no_grad(), record_words(model, grid=(3, 5), text=text) as maps:
        model(**given)
        model(**given)
    with torch.no_grad(), record(model, verify=True) as trace:
        model(**given)
    assert max(trace.errors.values()) < 1e-6
    dense = [trace[name].to_dense()[0, :, image, text.start : text.stop].mean(0) for name in trace]
    right = sum(one.T.reshape(7, 3, 5).double() for one in dense) / len(dense)
    assert maps.calls == 2 * len(dense)
    torch.testing.assert_close(maps.sums / maps.calls, right, rtol=0, atol=1e-6)


def test_a_wrong_grid_and_missing_words_are_refused() -> None:
    unet = make_unet()
    with pytest.raises(SettingError, match="image tokens"), torch.no_grad(), record_words(unet, grid=(5, 5)):
        unet(torch.randn(1, 4, 8, 8), torch.tensor(3), encoder_hidden_states=TEXT[:1])
    with (
        pytest.raises(SettingError, match="give text="),
        torch.no_grad(),
        record_words(unet, grid=(8, 8), text=range(5)),
    ):
        unet(torch.randn(1, 4, 8, 8), torch.tensor(3), encoder_hidden_states=TEXT[:1])
