"""Vision transformers of timm: their weights without a fused kernel, and the rectangle of each patch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnscope.errors import UnsupportedError
from attnscope.recording import Trace, record
from tests.images.timm_library import create_model, timm_installed

PATCH, ROWS, COLUMNS = 8, 4, 2
SIZE: dict[str, Any] = {"img_size": (PATCH * ROWS, PATCH * COLUMNS), "embed_dim": 32, "num_heads": 2}
MODELS: dict[str, dict[str, int]] = {
    "vit_tiny_patch16_224": {"class": 1},
    "vit_small_patch14_reg4_dinov2": {"class": 1, "register": 4},
    "vit_base_patch16_siglip_224": {},
    "deit_tiny_distilled_patch16_224": {"class": 1, "distillation": 1},
    "vit_small_patch16_dinov3": {"class": 1, "register": 4},
    "eva02_tiny_patch14_224": {"class": 1},
    "beit_base_patch16_224": {"class": 1},
    "vit_relpos_small_patch16_224": {},
}
"""Models of timm, with the special tokens before their patches."""
PLAIN = ["vit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2", "vit_base_patch16_siglip_224"]


@pytest.fixture(autouse=True, scope="module")
def timm() -> Iterator[None]:
    """Timm for this file."""
    with timm_installed():
        yield


def build(name: str, **options: Any) -> Any:
    """A small model with random parameters."""
    torch.manual_seed(0)
    return create_model(name, **SIZE, patch_size=PATCH, **{"depth": 2, **options}).eval()


def run(model: nn.Module, pixels: Tensor) -> Trace:
    with torch.no_grad(), record(model) as trace:
        model(pixels)
    return trace


def places() -> list[tuple[int, int]]:
    return [(row, column) for row in range(ROWS) for column in range(COLUMNS)]


def mark(pixels: Tensor, place: tuple[int, int]) -> Tensor:
    """The images with other pixels in one patch of the second one."""
    row, column = place
    marked = pixels.clone()
    marked[1, :, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] += 1.0
    return marked


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_without_a_fused_kernel(name: str) -> None:
    model = build(name)
    pixels = torch.randn(2, 3, PATCH * ROWS, PATCH * COLUMNS)
    trace = run(model, pixels)
    own: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False  # builds the weights
        block.attn.attn_drop.register_forward_hook(lambda _module, _given, weights: own.append(weights))
    with torch.no_grad():
        model(pixels)
    layers = [layer for layer in trace if layer.startswith("blocks.")]
    assert len(layers) == 2
    for layer, weights in zip(layers, own, strict=True):
        torch.testing.assert_close(trace[layer].to_dense(), weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "special"), MODELS.items())
def test_only_the_position_of_a_changed_patch_changes(name: str, special: dict[str, int]) -> None:
    model = build(name, depth=1)
    states: list[Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda _module, given: states.append(given[0]))
    pixels = torch.randn(2, 3, PATCH * ROWS, PATCH * COLUMNS)
    layouts = run(model, pixels).image_layouts[""]
    assert {kind: len(some) for kind, some in layouts[1].special.items()} == special
    grid = layouts[1].grids[0]
    assert grid.shape == (1, ROWS, COLUMNS)
    for place in places():
        with torch.no_grad():
            model(mark(pixels, place))
        moved = (states[-1] - states[0]).abs().amax(-1)
        assert moved.nonzero().tolist() == [[1, int(grid.positions[(0, *place)])]]


def test_an_image_of_another_size_has_its_own_grid() -> None:
    model = build("vit_tiny_patch16_224", dynamic_img_size=True)
    trace = run(model, torch.randn(1, 3, 3 * PATCH, 5 * PATCH))
    assert trace.on_image().attends_to(0, "class").grid == (1, 3, 5)


def attend_to_bright_patches(model: Any) -> None:
    """Set the parameters so that all queries attend to the patch whose pixels are not zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.patch_embed.proj.weight[0] = 1.0
        block = model.blocks[0]
        block.norm1.weight.fill_(1.0)
        width = SIZE["embed_dim"]
        block.attn.qkv.bias[:width] = 100.0  # all queries
        block.attn.qkv.weight[width : 2 * width, 0] = 100.0  # keys of bright patches


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("name", PLAIN)
def test_a_bright_patch_lights_its_rectangle(name: str, by_hand: bool) -> None:
    model = build(name, depth=1)
    attend_to_bright_patches(model)
    black = torch.zeros(2, 3, PATCH * ROWS, PATCH * COLUMNS)
    given: dict[str, Any] = {"grid": (ROWS, COLUMNS), "first": sum(MODELS[name].values())} if by_hand else {}
    for place in places():
        pixels = mark(black, place)
        image = run(model, pixels).on_image(pixels[1], image=1, **given)
        for query in (0, (0, 1), (3, 0)):
            lit = image.attends_to(0, query).to_pixels(PATCH * ROWS, PATCH * COLUMNS)[:, 0]
            np.testing.assert_array_equal(lit, pixels[1, :2].numpy())  # in both heads


def test_layouts_that_are_not_known_are_refused() -> None:
    hybrid: Any = create_model("vit_tiny_r_s16_p8_224", img_size=64, embed_dim=32, num_heads=2, depth=1)
    trace = run(hybrid.eval(), torch.randn(1, 3, 64, 64))
    with pytest.raises(UnsupportedError, match="give grid and first"):
        trace.on_image()
    assert trace.on_image(grid=(2, 2), first=1).attends_to(0, 0).grid == (1, 2, 2)
    padding = build("vit_tiny_patch16_224", dynamic_img_size=True, dynamic_img_pad=True)
    assert not run(padding, torch.randn(1, 3, 30, 16)).image_layouts
    size: dict[str, Any] = {"img_size": 32, "window_size": 4, "embed_dim": 32, "depths": (1,), "num_heads": (2,)}
    windows: Any = create_model("swin_tiny_patch4_window7_224", **size)
    windows.layers[0].blocks[0].attn.fused_attn = True  # off by default
    assert not run(windows.eval(), torch.randn(1, 3, 32, 32)).image_layouts
