"""Layouts of known models: one patch of an image is changed, and only its position in the sequence changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.errors import SettingError, UnsupportedError
from attnscope.images.known_models import FINDERS
from attnscope.images.layout import PatchGrid
from attnscope.recording import record
from tests.recording.exhibit import BATCH, VISION, Exhibit, exhibit, noise, text
from tests.recording.zoo_multimodal import (
    IMAGE,
    LLAMA,
    MULTIMODAL,
    QWEN,
    QWEN2_VISION,
    VIDEO,
    WINDOWED_QWEN_VISION,
    text_around,
)
from tests.recording.zoo_perception import VISION_MODELS

PATCH = 4  # pixels along each side, in all of these models


def merged_tiles(model: PreTrainedModel) -> dict[str, Any]:
    """Two tiles in the first text and one in the second, whose 4 x 4 patches are merged to 2 x 2 tokens."""
    pixels = noise(BATCH, 2, 3, 16, 16)
    pixels[1, 1] = 0  # padding
    return text_around(8, 4) | {"pixel_values": pixels}


def tiles_one_after_the_other(model: PreTrainedModel) -> dict[str, Any]:
    """Two tiles in the first text and one in the second, in one batch."""
    return text_around(8, 4) | {"pixel_values": noise(3, 3, 16, 16)}


def videos_in_text(model: PreTrainedModel) -> dict[str, Any]:
    """A video of 2 x 4 x 2 patches in each text, merged to 2 x 2 x 1 tokens."""
    inputs = text_around(4, 4)
    ids = inputs["input_ids"]
    ids[ids == IMAGE] = VIDEO
    return inputs | {
        "pixel_values_videos": noise(2 * 16, 2 * 3 * PATCH * PATCH),
        "video_grid_thw": torch.tensor([[2, 4, 2]] * 2),
        "mm_token_type_ids": 2 * (ids == VIDEO).long(),
    }


def images_in_windows(model: PreTrainedModel) -> dict[str, Any]:
    """An image of 6 x 6 patches, whose windows of 2 x 2 tokens are not all full, and a smaller one."""
    inputs = text_around(9, 2)
    return inputs | {
        "pixel_values": noise(36 + 8, 2 * 3 * PATCH * PATCH),
        "image_grid_thw": torch.tensor([[1, 6, 6], [1, 2, 4]]),
        "mm_token_type_ids": (inputs["input_ids"] == IMAGE).long(),
    }


def images_of_two_sizes_in_text(model: PreTrainedModel, size: tuple[int, int] = (8, 12)) -> dict[str, Any]:
    """An image in each text, the second of which is 8 x 8 pixels and padded."""
    height, width = size
    side = PATCH * getattr(model.config, "spatial_merge_size", 1)
    counts = [height // side * (width // side), (8 // side) ** 2]
    sizes = torch.tensor([size, (8, 8)])
    return text_around(*counts) | {"pixel_values": noise(BATCH, 3, height, width), "image_sizes": sizes}


reader = partial(exhibit, model_class="AutoModelForImageTextToText")
tiles: dict[str, Any] = {
    "text_config": LLAMA,
    "vision_config": VISION | {"image_size": 16},
    "image_token_id": IMAGE,
    "scale_factor": 2,
}
pixtral: dict[str, Any] = {
    "text_config": LLAMA,
    "vision_config": VISION | {"model_type": "pixtral", "image_size": 16},
    "image_token_index": IMAGE,
    "vision_feature_layer": -1,
}
MORE = (
    reader("Pixtral", "llava", "", images_of_two_sizes_in_text, **pixtral, vision_feature_select_strategy="full"),
    reader("Mistral 3", "mistral3", "", partial(images_of_two_sizes_in_text, size=(8, 16)), **pixtral),
    reader(
        "InternVL with tiles",
        "internvl",
        "",
        tiles_one_after_the_other,
        text_config=LLAMA,
        vision_config=VISION | {"image_size": [16, 16], "patch_size": [4, 4]},
        image_token_id=IMAGE,
    ),
    reader(
        "Qwen2.5-VL with windows",
        "qwen2_5_vl",
        "",
        images_in_windows,
        **QWEN,
        vision_config=WINDOWED_QWEN_VISION | {"window_size": 16},
    ),
    reader("Idefics3 with tiles", "idefics3", "", merged_tiles, **tiles),
    reader("SmolVLM with tiles", "smolvlm", "", merged_tiles, **tiles),
    reader("Qwen2-VL with videos", "qwen2_vl", "", videos_in_text, **QWEN, vision_config=QWEN2_VISION),
    *(
        exhibit(f"{name}, not square", name, "", partial(wide_image, name), **VISION)
        for name, wide_image in (
            ("dinov2", lambda _, model: {"pixel_values": noise(BATCH, 3, 8, 16)}),
            ("vit", lambda _, model: {"pixel_values": noise(BATCH, 3, 16, 8), "interpolate_pos_encoding": True}),
            (
                "siglip_vision_model",
                lambda _, model: {"pixel_values": noise(BATCH, 3, 8, 16), "interpolate_pos_encoding": True},
            ),
        )
    ),
)
ZOO = {one.name: one for one in (*VISION_MODELS, *MULTIMODAL, *MORE)}
UNKNOWN = (
    "Conditional DETR",
    "DETR",
    "SegFormer",
    "Swin",
    "Llama 4 multimodal",
    "Pix2Struct",
)
"""Models of the zoo whose layout is not known."""
KNOWN = [name for name in ZOO if name not in UNKNOWN]


def without_mixing(model: nn.Module) -> None:
    """Set the output projections of all attention to zero, so that each position depends on its own patch only."""
    with torch.no_grad():
        for name, module in model.named_modules():
            leaf = name.rpartition(".")[2]
            is_output = leaf in ("out_proj", "o_proj", "projection_layer") or name.endswith(
                ("attn.proj", "attention.output.dense")
            )
            if is_output and isinstance(module, nn.Linear):
                for parameter in module.parameters():
                    parameter.zero_()


@contextmanager
def layer_inputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The hidden states that the first layer of each stack is called with, by the name of the layer."""
    seen: dict[str, Tensor] = {}

    def hook(name: str) -> Any:
        def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            states = next(
                (one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one.dim() >= 2), None
            )
            if states is not None:
                seen.setdefault(name, states.detach().clone())

        return before

    handles = [
        module.register_forward_pre_hook(hook(name), with_kwargs=True)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "0"
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def run(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
    with torch.no_grad(), layer_inputs(model) as seen:
        model(**inputs)
    return seen


def changed_image(inputs: dict[str, Any], grid: PatchGrid, patch: tuple[int, int, int]) -> dict[str, Any]:
    """The inputs with other pixels in the middle of one patch of an image."""
    frame, row, column = patch
    name = next(name for name in inputs if name.startswith("pixel_values"))
    pixels = inputs[name].clone()
    frames, rows, columns = grid.shape
    if pixels.dim() == 2:  # packed: patches in blocks of 2 x 2
        sizes = inputs["image_grid_thw" if "image_grid_thw" in inputs else "video_grid_thw"].tolist()
        start = sum(t * h * w for t, h, w in sizes[: grid.image])
        _, high, wide = sizes[grid.image]
        merged = high // rows
        # by the order in which the processor of Qwen2-VL writes patches
        block = (frame * (high // 2) + (row * merged) // 2) * (wide // 2) + (column * merged) // 2
        inner = 0 if merged == 2 else (row % 2) * 2 + column % 2
        pixels[start + block * 4 + inner] += 1.0
        return inputs | {name: pixels}
    flat = (
        pixels if name == "pixel_values_videos" or (pixels.dim() == 5 and pixels.shape[2] == 3 and frames > 1) else None
    )
    assert grid.pixels is not None
    height, width = grid.pixels
    top = int((grid.box.top + (row + 0.5) / rows * (grid.box.bottom - grid.box.top)) * height)
    left = int((grid.box.left + (column + 0.5) / columns * (grid.box.right - grid.box.left)) * width)
    if flat is not None:
        depth = pixels.shape[1] // frames
        pixels[grid.image, frame * depth, :, top, left] += 1.0
    elif pixels.dim() in (5, 6):  # lists of tiles, of which some are padding
        is_real = inputs.get("aspect_ratio_mask", pixels.flatten(-3).any(-1))
        pixels[(*is_real.nonzero()[grid.image].tolist(), slice(None), top, left)] += 1.0
    else:
        pixels[grid.image, :, top, left] += 1.0
    return inputs | {name: pixels}


def keys_of_image(model: nn.Module, part: str, inputs: dict[str, Any]) -> Tensor:
    """What the keys of a cross-attention layer are computed from, (batch, positions, channels)."""
    seen: list[Tensor] = []
    hook = model.get_submodule(f"{part}.k_proj").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    return seen[0].unflatten(0, (BATCH, -1)).flatten(1, 2)


def same_length(seen: dict[str, Tensor], part: str, length: int) -> str:
    """The first layer in a part whose input has this length."""
    inside = [name for name in seen if name.startswith(part and f"{part}.") and seen[name].shape[-2] == length]
    assert inside, f"{part}: { ({name: one.shape for name, one in seen.items()}) }"
    return inside[0]


@pytest.mark.parametrize("name", KNOWN)
def test_only_the_position_of_a_changed_patch_changes(name: str) -> None:
    one: Exhibit = ZOO[name]
    model = one.build()
    without_mixing(model)
    inputs = one.inputs(model)
    with torch.no_grad(), record(model) as trace:
        model(**inputs)
    assert trace.image_layouts
    before = run(model, inputs)
    for part, layouts in trace.image_layouts.items():
        if part.endswith("cross_attn"):
            continue  # test_cross_attention_to_tiles
        layer = same_length(before, part, layouts[0].length)
        for row, layout in enumerate(layouts):
            assert layout.grids or part.endswith(("language_model", "text_model"))
            for grid in layout.grids:
                frames, rows, columns = grid.shape
                for patch in {(0, 0, 0), (frames - 1, rows - 1, 0), (0, 0, columns - 1), (frames // 2, rows // 2, 0)}:
                    after = run(model, changed_image(inputs, grid, patch))
                    moved = (after[layer] - before[layer]).abs().amax(-1).reshape(-1, layout.length)
                    assert moved.nonzero().tolist() == [[row, int(grid.positions[patch])]], (part, patch)


def test_cross_attention_to_tiles() -> None:
    one = ZOO["Mllama"]
    model = one.build()
    without_mixing(model)
    inputs = one.inputs(model)
    with torch.no_grad(), record(model) as trace:
        model(**inputs)
    part = "model.language_model.layers.1.cross_attn"
    before = keys_of_image(model, part, inputs)
    layouts = trace.image_layouts[part]
    assert [[grid.image for grid in layout.grids] for layout in layouts] == [[0, 1], [2]]
    for row, layout in enumerate(layouts):
        for grid in layout.grids:
            for row_of_patch, column in itertools.product(*map(range, grid.shape[1:])):
                patch = 0, row_of_patch, column
                after = keys_of_image(model, part, changed_image(inputs, grid, patch))
                moved = (after - before).abs().amax(-1)
                assert moved.nonzero().tolist() == [[row, int(grid.positions[patch])]]
    image = trace.on_image(image=1)
    assert [layer for layer in image.layers if "language_model" in layer] == [part]
    found = image.attends_to(part, 5)
    assert set(found.elsewhere) == {"class 0", "class 1", "image 0"}
    torch.testing.assert_close(found.values.sum((1, 2, 3)) + sum(found.elsewhere.values()), torch.ones(4))
    with pytest.raises(SettingError, match="queries of layer"):
        image.attended_by(part, 5)


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_models_have_no_layout(name: str) -> None:
    model = ZOO[name].build()
    with torch.no_grad(), record(model) as trace:
        model(**ZOO[name].inputs(model))
    assert not trace.image_layouts.get("")
    assert not any(name.endswith("language_model") for name in trace.image_layouts)


@pytest.mark.parametrize(("name", "how"), [("Swin", "one window, first=0 and image=ROW"), ("SegFormer", "layers=")])
def test_models_that_are_not_known_are_refused_by_name(name: str, how: str) -> None:
    model = ZOO[name].build()
    with torch.no_grad(), record(model) as trace:
        model(**ZOO[name].inputs(model))
    with pytest.raises(UnsupportedError, match=how) as refused:
        trace.on_image()
    assert type(model).__name__ in str(refused.value)


def test_a_window_of_swin_by_hand() -> None:
    model = ZOO["Swin"].build()
    with torch.no_grad(), record(model) as trace:
        model(**ZOO["Swin"].inputs(model))
    name = next(iter(trace))
    windows, _, positions, _ = trace[name].shape
    side = int(positions**0.5)
    found = trace.on_image(grid=(side, side), first=0, image=windows - 1).attends_to(name, 1)
    torch.testing.assert_close(found.values[:, 0].flatten(1), trace[name].to_dense()[-1, :, 1])


def test_the_queries_of_a_layer_of_segformer_by_hand() -> None:
    model = ZOO["SegFormer"].build()
    with torch.no_grad(), record(model) as every:
        model(**ZOO["SegFormer"].inputs(model))
    name = next(iter(every))
    with torch.no_grad(), record(model, layers=[name]) as trace:
        model(**ZOO["SegFormer"].inputs(model))
    side = int(trace[name].shape[2] ** 0.5)
    found = trace.on_image(grid=(side, side), first=0).attended_by(name, 0)
    torch.testing.assert_close(found.values[:, 0].flatten(1), trace[name].to_dense()[0, :, :, 0])


def test_the_overview_of_llava_onevision_by_hand() -> None:
    vision = VISION | {"image_size": 8, "model_type": "siglip_vision_model", "vision_use_head": False}
    settings: dict[str, Any] = {"image_grid_pinpoints": [[8, 16]], "image_token_index": IMAGE}
    one = reader("", "llava_onevision", "", text, text_config=LLAMA, vision_config=vision, **settings)
    model: Any = one.build()
    pixels = {"pixel_values": noise(1, 3, 3, 8, 8), "image_sizes": torch.tensor([[8, 16]])}
    with torch.no_grad():
        tokens = len(model.model.get_image_features(**pixels, return_dict=True).pooler_output[0])
        with record(model) as trace:
            model(input_ids=torch.tensor([[1, *[IMAGE] * tokens, 5]]), **pixels)
    layer = list(trace)[-1]
    with pytest.raises(SettingError, match="first image token"):
        trace.on_image().attends_to(layer, 1)
    found = trace.on_image(grid=(2, 2), first=1).attends_to(layer, -1)
    torch.testing.assert_close(found.values[:, 0].flatten(1), trace[layer].to_dense()[0, :, -1, 1:5])


def test_every_known_model_is_tested() -> None:
    tested: set[str | None] = {"llava_next"}  # by test_tiles.py
    for name in KNOWN:
        model = ZOO[name].build()
        tested |= {getattr(getattr(module, "config", None), "model_type", None) for module in model.modules()}
    assert set(FINDERS) <= tested
