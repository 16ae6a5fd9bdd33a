"""A photo as an array, and the part of it that a model was given.

In: an array, tensor, image of Pillow or file, and an image processor. Out: (height, width, 3) from 0 to 1, and a `Box`.
Does not know: attention, patches. Memory: the photo.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from attnscope.errors import SettingError, ShapeError, UnsupportedError
from attnscope.extras import import_extra
from attnscope.images.layout import Box

MAX_ASPECT_ERROR = 0.01
"""The relative difference of aspect ratios that the rounding of a resized image explains."""


class Photo(NamedTuple):
    """A photo of a trace: (height, width, 3) in uint8, and the part of it that the model was given."""

    pixels: np.ndarray
    crop: Box


def to_photo(image: Any) -> np.ndarray:
    """A photo as float32 (height, width, 3) from 0 to 1.

    Args:
        image: The path of a file, an image of Pillow, an array (height, width) or (height, width, 3 or 4), or a tensor
            (3, height, width). Floats that are not between 0 and 1, as of a normalized tensor, are scaled to it.

    Raises:
        SettingError: The file cannot be read.
        ShapeError: It is not an image.
    """
    if isinstance(image, str | Path):
        return to_photo(open_photo(image))
    values = image.detach().float().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if isinstance(image, Tensor) and values.ndim == 3 and values.shape[0] in (1, 3):
        values = values.transpose(1, 2, 0)
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or values.shape[2] not in (1, 3, 4) or not values.size:
        raise ShapeError(f"expected a photo (height, width, 3), got {tuple(values.shape)}")
    scaled = values[..., :3].astype(np.float32)
    if values.dtype == np.uint8:
        scaled /= 255
    elif scaled.min() < 0 or scaled.max() > 1:
        low, high = float(scaled.min()), float(scaled.max())
        scaled = (scaled - low) / max(high - low, 1e-12)
    return np.broadcast_to(scaled, (*scaled.shape[:2], 3)).copy()


def open_photo(path: str | Path) -> Any:
    """Read a file as an RGB image of Pillow, turned as its EXIF orientation says.

    Args:
        path: The image file.

    Returns:
        An image of Pillow, in RGB.

    Raises:
        SettingError: The file does not exist, or is not an image.
    """
    pillow, operations = import_extra("PIL.Image"), import_extra("PIL.ImageOps")
    try:
        with pillow.open(path) as image:
            return operations.exif_transpose(image).convert("RGB")
    except (OSError, ValueError, pillow.DecompressionBombError) as error:
        raise SettingError(f"{path} cannot be read as an image: {error}") from error


def to_bytes(photo: np.ndarray) -> np.ndarray:
    """A photo from 0 to 1 as uint8.

    >>> to_bytes(np.array([0.0, 0.5, 1.0]))
    array([  0, 128, 255], dtype=uint8)
    """
    return np.round(photo * 255).astype(np.uint8)


def find_crop(size: tuple[int, int], pixels: tuple[int, int] | None, processor: Any = None) -> Box:
    """The part of a photo that a model was given.

    Args:
        size: Height and width of the photo.
        pixels: Height and width of what the model was given; None if they are unknown, which takes the whole photo.
        processor: The image processor of transformers that prepared it, or a processor that has one.

    Raises:
        SettingError: The aspect ratios differ, and no processor says whether the photo was cropped or stretched.
        UnsupportedError: The processor pads the photo.

    >>> find_crop((240, 480), (240, 480))
    Box(left=0.0, top=0.0, right=1.0, bottom=1.0)
    """
    if pixels is None:
        return Box()
    processor = getattr(processor, "image_processor", processor)
    if processor is None:
        ratio = (size[1] / size[0]) / (pixels[1] / pixels[0])
        if abs(ratio - 1) <= MAX_ASPECT_ERROR:
            return Box()
        raise SettingError(
            f"on_image: the photo has {size[1]} x {size[0]} pixels and the model was given {pixels[1]} x {pixels[0]}, "
            "so it was cropped or stretched; give processor=, the image processor, or box=, the part of the photo that "
            "the model was given"
        )
    if getattr(processor, "do_pad", False) or getattr(processor, "do_image_splitting", False):
        raise UnsupportedError(
            f"on_image: {type(processor).__name__} pads or splits the photo; give box=, the part of the photo that the "
            "image of the model is"
        )
    if not getattr(processor, "do_center_crop", False):
        return Box()
    height, width = _resized_shape(size, processor)
    return _centre(height, width, pixels)


def _resized_shape(size: tuple[int, int], processor: Any) -> tuple[int, int]:
    """Height and width of a photo after the resizing of an image processor, before its crop."""
    height, width = size
    if not getattr(processor, "do_resize", False):
        return size
    wanted = processor.size
    names = ("shortest_edge", "longest_edge", "height", "width")
    shortest, longest, *exact = (
        wanted.get(one) if isinstance(wanted, Mapping) else getattr(wanted, one) for one in names
    )
    if shortest and not longest:
        short, long = sorted(size)
        edge = int(shortest * long / short)
        return (shortest, edge) if height <= width else (edge, shortest)
    if all(exact):
        return int(exact[0] or 0), int(exact[1] or 0)
    raise UnsupportedError(f"on_image: unsupported size {wanted} of {type(processor).__name__}; give box=")


def _centre(height: int, width: int, crop: tuple[int, int]) -> Box:
    """The box of a centre crop; beyond the photo where the crop is larger and was filled with zeros."""
    top, left = (height - crop[0]) // 2, (width - crop[1]) // 2
    return Box(left / width, top / height, (left + crop[1]) / width, (top + crop[0]) / height)
