"""Photos are read as arrays, and the part that an image processor leaves of them is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessor, ViTImageProcessor

from attnscope.errors import SettingError, ShapeError, UnsupportedError
from attnscope.images.layout import Box
from attnscope.images.photo import find_crop, to_photo

PLAIN: dict[str, Any] = {"do_normalize": False}
PROCESSORS = {
    "centre crop": CLIPImageProcessor(size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}, **PLAIN),
    "stretched": ViTImageProcessor(size={"height": 32, "width": 32}, **PLAIN),
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("size", [(100, 200), (160, 120), (90, 90)])
def test_a_patch_of_the_photo_is_the_patch_of_the_model(name: str, size: tuple[int, int]) -> None:
    processor, (height, width) = PROCESSORS[name], size
    box = find_crop(size, (32, 32), processor)
    for row, column in ((0, 0), (1, 2), (3, 3)):
        patch = Box(column / 4, row / 4, (column + 1) / 4, (row + 1) / 4).inside(box)
        pixels = np.zeros((*size, 3), dtype=np.uint8)
        down = slice(round(patch.top * height), round(patch.bottom * height))
        pixels[down, round(patch.left * width) : round(patch.right * width)] = 255
        given = processor(images=Image.fromarray(pixels), return_tensors="pt")["pixel_values"][0].mean(0)
        means = given.reshape(4, 8, 4, 8).mean((1, 3))
        assert divmod(int(means.argmax()), 4) == (row, column)
        assert means.max() > 0.85 * means.sum()  # the rest is what resizing blurs over the edges


def test_an_ambiguous_part_of_the_photo_is_refused() -> None:
    assert find_crop((224, 224), (112, 112)) == Box()
    with pytest.raises(SettingError, match="the photo has 640 x 480 pixels and the model was given 224 x 224"):
        find_crop((480, 640), (224, 224))
    with pytest.raises(UnsupportedError, match="pads or splits"):
        find_crop((480, 640), (224, 224), SimpleNamespace(do_pad=True))


def test_photos_of_all_kinds_are_the_same_array(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 9, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "photo.png")
    right = pixels.astype(np.float32) / 255
    tensor = torch.from_numpy(right).permute(2, 0, 1)
    for one in (image, pixels, right, tensor, tmp_path / "photo.png", str(tmp_path / "photo.png")):
        np.testing.assert_allclose(to_photo(one), right, atol=1e-6)
    assert to_photo(np.zeros((4, 5))).shape == (4, 5, 3)
    assert 0 <= to_photo(torch.randn(3, 4, 5)).min() <= to_photo(torch.randn(3, 4, 5)).max() <= 1
    exif = image.getexif()
    exif[0x0112] = 6  # turned by 90 degrees
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert to_photo(tmp_path / "turned.jpg").shape == (9, 6, 3)
    with pytest.raises(SettingError, match="cannot be read as an image"):
        to_photo(tmp_path / "missing.png")
    with pytest.raises(ShapeError, match="expected a photo"):
        to_photo(np.zeros((2, 3, 4, 5)))
