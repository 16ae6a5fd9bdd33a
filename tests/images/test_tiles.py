"""LLaVA-NeXT: one pixel of a photo is changed before the image processor, and only the patches on it change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.images import ImageAttention, Layout, PatchGrid
from attnscope.images.tiles import choose_canvas, without_padding
from attnscope.recording import Trace, record
from tests.images.test_known_models import run, without_mixing
from tests.recording.exhibit import VISION, exhibit
from tests.recording.zoo_multimodal import IMAGE, LLAMA

llava_next = pytest.importorskip("transformers.models.llava_next.image_processing_pil_llava_next")

TILE = 16
OVERVIEW = 1  # the number of the overview of a single photo
CANVASES = [[16, 32], [32, 16], [32, 32], [48, 16]]
PROCESSOR = llava_next.LlavaNextImageProcessorPil(
    size={"shortest_edge": TILE},
    crop_size={"height": TILE, "width": TILE},
    image_grid_pinpoints=CANVASES,
    resample=Image.Resampling.NEAREST,
)
SIZES = {
    "fills its canvas": (32, 32),
    "padding of whole patches": (8, 32),
    "padding of parts of patches": (10, 32),
    "padding at the sides": (48, 11),
}
"""Photos that are not resized, height and width."""


def build() -> PreTrainedModel:
    model = exhibit(
        "LLaVA-NeXT",
        "llava_next",
        "",
        lambda _: {},
        model_class="AutoModelForImageTextToText",
        text_config=LLAMA,
        vision_config=VISION | {"image_size": TILE, "model_type": "clip_vision_model"},
        image_token_index=IMAGE,
        image_grid_pinpoints=CANVASES,
    ).build()
    without_mixing(model)
    return model


def make_photo(size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 100, (*size, 3), dtype=np.uint8)


def make_inputs(model: Any, *photos: np.ndarray) -> dict[str, Any]:
    """Photos in one text, each with as many tokens as the model gives it."""
    inputs = dict(PROCESSOR(images=[Image.fromarray(photo) for photo in photos], return_tensors="pt"))
    with torch.no_grad():
        features = model.model.get_image_features(**inputs, return_dict=True).pooler_output
    words = [[1, *[IMAGE] * len(some), 5] for some in features]
    return inputs | {"input_ids": torch.tensor([[token for word in words for token in word]])}


def record_inputs(model: PreTrainedModel, inputs: dict[str, Any]) -> Trace:
    with torch.no_grad(), record(model) as trace:
        model(**inputs)
    return trace


def patches_at(grid: PatchGrid, size: tuple[int, int], pixel: tuple[int, int]) -> set[int]:
    """The positions of the patches that a pixel of a photo overlaps."""
    _, rows, columns = grid.shape
    places = [(pixel[0] + down, pixel[1] + across) for down in (0.01, 0.99) for across in (0.01, 0.99)]
    box, found = grid.box, set()
    for down, across in places:
        row = math.floor((down / size[0] - box.top) / (box.bottom - box.top) * rows)
        column = math.floor((across / size[1] - box.left) / (box.right - box.left) * columns)
        if 0 <= row < rows and 0 <= column < columns:
            found.add(int(grid.positions[0, row, column]))
    return found


def moved(before: dict[str, Tensor], after: dict[str, Tensor], layer: str) -> set[tuple[int, int]]:
    """Rows of the batch and positions that changed in the input of a layer."""
    change = (after[layer] - before[layer]).abs().amax(-1)
    return {(row, position) for row, position in change.nonzero().tolist()}


def expected(layouts: tuple[Layout, ...], size: tuple[int, int], pixel: tuple[int, int]) -> list[set[tuple[int, int]]]:
    """Rows of the batch and positions of the patches at a pixel: those of the overview, and the others."""
    found: list[set[tuple[int, int]]] = [set(), set()]
    for row, layout in enumerate(layouts):
        for grid in layout.grids:
            found[grid.image != OVERVIEW] |= {(row, position) for position in patches_at(grid, size, pixel)}
    return found


@pytest.mark.parametrize("name", SIZES)
def test_only_the_patches_on_a_changed_pixel_change(name: str) -> None:
    size = SIZES[name]
    model, photo = build(), make_photo(size)
    inputs = make_inputs(model, photo)
    layouts = record_inputs(model, inputs).image_layouts
    text, encoder = layouts["model.language_model"], layouts["model.vision_tower"]
    before = run(model, inputs)
    layers = {
        part: next(name for name in before if name.startswith(f"{part}.") and name.endswith("layers.0"))
        for part in ("model.language_model", "model.vision_tower")
    }
    rng = np.random.default_rng(2)
    seen = dict.fromkeys(layers, 0)
    inside = zip(*(rng.integers(0, side, 12).tolist() for side in size), strict=True)
    for pixel in [(0, 0), (size[0] - 1, size[1] - 1), *inside]:
        changed = photo.copy()
        changed[pixel] += 100
        after = run(model, make_inputs(model, changed))
        for part, found in (("model.language_model", text), ("model.vision_tower", encoder)):
            overview, joined = expected(found, size, pixel)
            changes = moved(before, after, layers[part])
            assert changes - overview == joined
            seen[part] += len(changes & overview)  # not always: an overview has fewer pixels than some photos
    assert min(seen.values()) > 0


def test_two_photos_have_images_of_their_own() -> None:
    model = build()
    photos = make_photo((32, 32)), make_photo((8, 32))
    inputs = make_inputs(model, *photos)
    trace = record_inputs(model, inputs)
    before = run(model, inputs)
    changed = photos[1].copy()
    changed[5, 17] += 100
    after = run(model, make_inputs(model, photos[0], changed))
    layer = next(name for name in before if name.endswith("language_model.layers.0"))
    right = {grid.image: grid for grid in trace.image_layouts["model.language_model"][0].grids}
    assert sorted(right) == [0, 1, 2, 3]
    [joined] = patches_at(right[1], (8, 32), (5, 17))
    assert (0, joined) in moved(before, after, layer)
    first = {int(position) for image in (0, 2) for position in right[image].positions.flatten()}
    assert not {position for _, position in moved(before, after, layer)} & first


def test_a_photo_needs_no_box_and_the_weights_sum_to_one() -> None:
    model, photo = build(), make_photo((10, 32))
    trace = record_inputs(model, make_inputs(model, photo))
    image: ImageAttention = trace.on_image(photo, processor=PROCESSOR)
    found = image.attends_to(-1, -1)
    assert found.grid == (1, 2, 8)
    assert found.box == pytest.approx((0.0, 0.1, 1.0, 0.9))
    assert set(found.elsewhere) == {"text", "image 1"}  # line breaks count as text
    torch.testing.assert_close(found.values.sum((1, 2, 3)) + sum(found.elsewhere.values()), torch.ones(4))
    assert trace.on_image(photo, image=1).attends_to(0, "class").grid == (1, 4, 4)  # the overview, in the encoder
    assert trace.on_image(photo, image=3).attends_to(0, "class").box == pytest.approx((0.5, -0.3, 1.0, 1.3))


@pytest.mark.parametrize("seed", range(3))
def test_canvases_and_padding_are_those_of_transformers(seed: int) -> None:
    from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
    from transformers.models.llava_next.modeling_llava_next import unpad_image

    rng = np.random.default_rng(seed)
    canvases = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    for height, width in rng.integers(20, 2000, (200, 2)).tolist():
        canvas = choose_canvas((height, width), canvases)
        assert canvas.size == tuple(select_best_resolution((height, width), canvases))
        assert canvas.resized == get_patch_output_size(np.empty((3, height, width)), canvas.size, "channels_first")
        rows, columns = canvas.size[0] // 14, canvas.size[1] // 14
        places = torch.arange(rows * columns).reshape(1, rows, columns)
        left, across = without_padding((height, width), (rows, columns))
        assert torch.equal(
            unpad_image(places, (height, width)), places[:, left.start : left.stop, across.start : across.stop]
        )


def test_other_numbers_of_tokens_have_no_layout() -> None:
    model = build()
    inputs = make_inputs(model, make_photo((32, 32)))
    trace = record_inputs(model, {"input_ids": torch.tensor([[1, 2, 3]])})
    assert not trace.image_layouts
    with pytest.raises(ValueError, match="tokens"), torch.no_grad():
        model(**inputs | {"input_ids": inputs["input_ids"][:, 2:]})
