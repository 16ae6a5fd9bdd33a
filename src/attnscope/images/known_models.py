"""Where the patches of an image are in the sequences of known models.

In: a module, and the arguments of its forward pass. Out: a `Layout` per sequence, for each submodule that reads one.
Only models in the tables of this file are known: for every other one, and for inputs whose sizes do not agree, there is
no layout. Does not know: hooks, attention. Memory: O(patches).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from attnscope.images.layout import Box, Layout, PatchGrid, consecutive, encoder_layout, in_blocks, text_layout

Arguments = Mapping[str, Any]
Layouts = dict[str, tuple[Layout, ...]]
"""The layouts of each submodule by its name: one per row of its batch."""
Finder = Callable[[nn.Module, Arguments], Layouts]

CLASS_TOKEN = {"class": 1}


def find_layouts(module: nn.Module, arguments: Arguments) -> Layouts:
    """The layouts of a module and its submodules for these arguments; empty if they are unknown."""
    finder = finder_of(module)
    return {} if finder is None else finder(module, arguments)


def finder_of(module: nn.Module) -> Finder | None:
    """The function that finds the layouts of a module, or None for an unknown one."""
    if type(module).__module__.startswith("timm.models.") and hasattr(module, "num_prefix_tokens"):
        return timm_encoder
    return FINDERS.get(getattr(getattr(module, "config", None), "model_type", None))


def timm_encoder(module: Any, arguments: Arguments) -> Layouts:
    """The layouts of a vision transformer of timm: class token, registers, patches."""
    pixels = arguments.get("x")
    patch = getattr(getattr(module, "patch_embed", None), "patch_size", None)
    registers = getattr(module, "num_reg_tokens", 0)
    prefix = module.num_prefix_tokens
    if not _has_shape(pixels, 4) or not isinstance(patch, tuple) or prefix - registers not in (0, 1):
        return {}
    if any(size % step for size, step in zip(pixels.shape[2:], patch, strict=True)):
        return {}  # some models crop such an image, others pad it
    return _encoder(pixels, patch, {"class": prefix - registers, "register": registers})


def _image_encoder(special: Callable[[Any], Mapping[str, int]], after: Mapping[str, str] | None = None) -> Finder:
    """A finder for encoders of transformers: special tokens, patches row by row, and tokens after them."""

    def find(module: Any, arguments: Arguments) -> Layouts:
        pixels, config = arguments.get("pixel_values"), module.config
        if not _has_shape(pixels, 4):
            return {}
        behind = {name: getattr(config, count) for name, count in (after or {}).items()}
        return _encoder(pixels, _pair(config.patch_size), special(config), behind)

    return find


def _encoder(
    pixels: Tensor, patch: tuple[int, int], special: Mapping[str, int], after: Mapping[str, int] | None = None
) -> Layouts:
    """One layout per image of a batch (images, channels, height, width)."""
    count, _, height, width = pixels.shape
    rows, columns = height // patch[0], width // patch[1]
    if not rows or not columns:
        return {}
    box = Box(0.0, 0.0, columns * patch[1] / width, rows * patch[0] / height)
    return {
        "": tuple(
            encoder_layout((1, rows, columns), special, after=after or {}, image=image, pixels=(height, width), box=box)
            for image in range(count)
        )
    }


def _video_encoder(special: Mapping[str, int]) -> Finder:
    """A finder for encoders of videos: special tokens, and patches of several frames each, frame by frame."""

    def find(module: Any, arguments: Arguments) -> Layouts:
        videos, config = arguments.get("pixel_values_videos", arguments.get("pixel_values")), module.config
        if not _has_shape(videos, 5):
            return {}
        count, frames, _, height, width = videos.shape
        depth = config.tubelet_size if isinstance(config.tubelet_size, int) else config.tubelet_size[0]
        patch = config.patch_size if isinstance(config.tubelet_size, int) else config.tubelet_size[1:]
        down, across = _pair(patch)
        if frames % depth or height % down or width % across:
            return {}
        shape = frames // depth, height // down, width // across
        return {
            "": tuple(encoder_layout(shape, special, image=image, pixels=(height, width)) for image in range(count))
        }

    return find


def _images_in_text(merge: Callable[[Any], float]) -> Finder:
    """A finder for decoders of text with images, each `merge` x `merge` patches a token, row by row."""

    def find(module: Any, arguments: Arguments) -> Layouts:
        ids, pixels, config = arguments.get("input_ids"), arguments.get("pixel_values"), module.config
        if not _has_shape(ids, 2) or not isinstance(pixels, Tensor) or pixels.dim() not in (4, 5):
            return {}
        images = _real_images(pixels)
        height, width = images.shape[2:]
        down, across = (step * merge(config) for step in _pair(config.vision_config.patch_size))
        rows, columns = height / down, width / across
        if not rows.is_integer() or not columns.is_integer():
            return {}
        shape = 1, int(rows), int(columns)
        grids = [PatchGrid(consecutive(0, *shape), image, (height, width)) for image in range(len(images))]
        return _in_text(module, ids == _image_token(config), grids)

    return find


def _real_images(pixels: Tensor) -> Tensor:
    """Images (images, channels, height, width); from a batch of lists, without those that are padding."""
    if pixels.dim() == 4:
        return pixels
    images = pixels.flatten(0, 1)
    return images[(images != 0).flatten(1).any(1)]


def _packed_in_text(module: Any, arguments: Arguments) -> Layouts:
    """The layout of a text with images or videos of any size, as in Qwen2-VL: blocks of patches are one token."""
    ids, config = arguments.get("input_ids"), module.config
    found: Layouts = {}
    for kind in ("image", "video"):
        sizes = arguments.get(f"{kind}_grid_thw")
        if not _has_shape(ids, 2) or not _has_shape(sizes, 2):
            continue
        if found:
            return {}  # images and videos in one text: unknown which of them comes first
        merge, patch = config.vision_config.spatial_merge_size, config.vision_config.patch_size
        grids = [
            PatchGrid(consecutive(0, frames, rows // merge, columns // merge), image, (rows * patch, columns * patch))
            for image, (frames, rows, columns) in enumerate(sizes.tolist())
        ]
        found = _in_text(module, ids == getattr(config, f"{kind}_token_id"), grids)
    return found


def _packed_encoder(module: Any, arguments: Arguments) -> Layouts:
    """The layout of the encoder of Qwen2-VL: all images in one sequence, ordered by blocks that are merged later."""
    sizes, config = arguments.get("grid_thw"), module.config
    if not _has_shape(sizes, 2):
        return {}
    grids, first = [], 0
    for image, (frames, rows, columns) in enumerate(sizes.tolist()):
        places = in_blocks(first, frames, rows, columns, config.spatial_merge_size)
        grids.append(PatchGrid(places, image, (rows * config.patch_size, columns * config.patch_size)))
        first += places.numel()
    return {"": (Layout(first, tuple(grids)),)}


def _in_text(module: nn.Module, is_image: Tensor, grids: Sequence[PatchGrid]) -> Layouts:
    """Give the image tokens of a batch of texts to the images, in order; nothing if their numbers differ."""
    parts = [name for name, _ in module.named_modules() if name.rpartition(".")[2] in ("language_model", "text_model")]
    part = min(parts, key=len, default=None)
    stops = torch.tensor([0, *(grid.positions.numel() for grid in grids)]).cumsum(0).tolist()
    per_row = is_image.sum(1).tolist()
    if part is None or sum(per_row) != stops[-1]:
        return {}
    layouts, begin = [], 0
    for row, count in zip(is_image.cpu(), per_row, strict=True):
        spans = [
            (start - begin, grid)
            for (start, stop), grid in zip(pairwise(stops), grids, strict=True)
            if begin <= start and stop <= begin + count
        ]
        if sum(grid.positions.numel() for _, grid in spans) != count:
            return {}
        layouts.append(text_layout(row.nonzero()[:, 0], len(row), spans))
        begin += count
    return {part: tuple(layouts)}


def _image_token(config: Any) -> int:
    return config.image_token_id if hasattr(config, "image_token_id") else config.image_token_index


def _has_shape(tensor: Any, dimensions: int) -> TypeGuard[Tensor]:
    return isinstance(tensor, Tensor) and tensor.dim() == dimensions


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _pooled_side(config: Any) -> float:
    """How many patches of an image are averaged into one token along each side, as in Gemma 3."""
    vision = config.vision_config
    return vision.image_size / vision.patch_size / config.mm_tokens_per_image**0.5


_with_class = _image_encoder(lambda _: CLASS_TOKEN)
_with_registers = _image_encoder(lambda config: {**CLASS_TOKEN, "register": config.num_register_tokens})
_patches_only = _image_encoder(lambda _: {})

FINDERS: dict[str | None, Finder] = {
    **dict.fromkeys(
        (
            "altclip_vision_model",
            "beit",
            "blip_2_vision_model",
            "chinese_clip_vision_model",
            "clip_vision_model",
            "clipseg_vision_model",
            "dinov2",
            "instructblip_vision_model",
            "metaclip_2_vision_model",
            "mlcd_vision_model",
            "owlvit_vision_model",
            "vit",
            "vit_msn",
        ),
        _with_class,
    ),
    **dict.fromkeys(("dinov2_with_registers", "dinov3_vit"), _with_registers),
    **dict.fromkeys(
        ("aimv2_vision_model", "idefics3_vision", "ijepa", "siglip_vision_model", "smolvlm_vision"), _patches_only
    ),
    "deit": _image_encoder(lambda _: {**CLASS_TOKEN, "distillation": 1}),
    "yolos": _image_encoder(lambda _: CLASS_TOKEN, {"detection": "num_detection_tokens"}),
    "videomae": _video_encoder({}),
    "vivit": _video_encoder(CLASS_TOKEN),
    "vjepa2": _video_encoder({}),
    "llava": _images_in_text(lambda _: 1),
    "paligemma": _images_in_text(lambda _: 1),
    "gemma3": _images_in_text(_pooled_side),
    **dict.fromkeys(("idefics3", "smolvlm"), _images_in_text(lambda config: config.scale_factor)),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), _packed_in_text),
    **dict.fromkeys(("qwen2_vl_vision", "qwen3_vl_vision"), _packed_encoder),
}
"""The known models of transformers, by the model type of their config. `tests/images/test_known_models.py` changes one
patch of an image for each of them, and compares the position that changes."""
