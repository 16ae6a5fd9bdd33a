"""Where the patches of an image are in the sequences of known models.

In: a module, and the arguments of its forward pass. Out: a `Layout` per sequence, for each submodule that reads one.
Only models in the tables of this file are known: for every other one, and for inputs whose sizes do not agree, there is
no layout. Does not know: hooks, attention. Memory: O(patches).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from attnscope.images.layout import WHOLE, Box, Layout, PatchGrid, consecutive, encoder_layout, in_blocks, text_layout
from attnscope.images.tiles import choose_canvas, without_padding

Arguments = Mapping[str, Any]
Layouts = dict[str, tuple[Layout, ...]]
"""The layouts of each submodule by its name: one per row of its batch."""
Finder = Callable[[nn.Module, Arguments], Layouts]

CLASS_TOKEN = {"class": 1}

TIMM_MODELS = {"Beit", "Eva", "VisionTransformer", "VisionTransformerDistilled", "VisionTransformerRelPos"}
"""The known classes of timm, tested by `tests/images/test_timm.py`. DINOv3 is an `Eva`."""
TIMM_TOKENS = {"class": "cls_token", "distillation": "dist_token", "register": "reg_token"}
"""The special tokens of these models in order, and the parameters that hold them."""


def find_layouts(module: nn.Module, arguments: Arguments) -> Layouts:
    """The layouts of a module and its submodules for these arguments; empty if they are unknown."""
    finder = finder_of(module)
    return {} if finder is None else finder(module, arguments)


def finder_of(module: nn.Module) -> Finder | None:
    """The function that finds the layouts of a module, or None for an unknown one."""
    if type(module).__module__.startswith("timm.models."):
        return timm_encoder if type(module).__name__ in TIMM_MODELS else None
    return FINDERS.get(getattr(getattr(module, "config", None), "model_type", None))


def describe_by_hand(model: str) -> str:
    """How to give the patches of a model whose layout is not known, by the name of its class; "" for other models.

    >>> describe_by_hand("SwinModel")
    'its layers attend inside of windows, each a row of the batch: give the grid of one window, first=0 and image=ROW'
    """
    return next((how for prefix, how in BY_HAND.items() if model.startswith(prefix)), "")


def timm_encoder(module: Any, arguments: Arguments) -> Layouts:
    """The layouts of a vision transformer of timm: class, distillation and register tokens, then patches."""
    pixels, embed = arguments.get("x"), module.patch_embed
    if not _has_shape(pixels, 4) or type(embed).__name__ != "PatchEmbed":
        return {}  # in hybrid models, a token is a cell of a convolutional network
    if any(size % step for size, step in zip(pixels.shape[2:], embed.patch_size, strict=True)):
        return {}  # some models crop such an image, others pad it
    tokens = {name: getattr(module, parameter, None) for name, parameter in TIMM_TOKENS.items()}
    special = {name: token.shape[1] for name, token in tokens.items() if token is not None}
    if sum(special.values()) != module.num_prefix_tokens:
        return {}
    return _encoder(pixels, embed.patch_size, special)


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
        down, across = (step * merge(config) for step in _pair(config.vision_config.patch_size))
        grids = []
        for image, (height, width) in enumerate(_image_sizes(_real_images(pixels), arguments.get("image_sizes"))):
            rows, columns = height / down, width / across
            if not rows.is_integer() or not columns.is_integer():
                return {}
            grids.append(PatchGrid(consecutive(0, 1, int(rows), int(columns)), image, (height, width)))
        return _in_text(module, ids == _image_token(config), _whole_images(grids))

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
        found = _in_text(module, ids == getattr(config, f"{kind}_token_id"), _whole_images(grids))
    return found


def _packed_encoder(window: Callable[[Any], int | None]) -> Finder:
    """A finder for encoders as in Qwen2-VL: all images in one sequence, ordered by blocks that are merged later.

    With a `window`, the blocks are ordered by windows of so many blocks along each side.
    """

    def find(module: Any, arguments: Arguments) -> Layouts:
        sizes, config = arguments.get("grid_thw"), module.config
        if not _has_shape(sizes, 2) or arguments.get("window_index") is not None:
            return {}
        grids, first = [], 0
        for image, (frames, rows, columns) in enumerate(sizes.tolist()):
            places = in_blocks(first, frames, rows, columns, config.spatial_merge_size, window=window(config))
            grids.append(PatchGrid(places, image, (rows * config.patch_size, columns * config.patch_size)))
            first += places.numel()
        return {"": (Layout(first, tuple(grids)),)}

    return find


def _sized_encoder(module: Any, arguments: Arguments) -> Layouts:
    """The layout of the encoder of Pixtral: images of any size in one sequence, row by row."""
    pixels, (down, across) = arguments.get("pixel_values"), _pair(module.config.patch_size)
    if not _has_shape(pixels, 4):
        return {}
    grids, first = [], 0
    for image, (height, width) in enumerate(_image_sizes(pixels, arguments.get("image_sizes"))):
        if height % down or width % across:
            return {}
        grids.append(PatchGrid(consecutive(first, 1, height // down, width // across), image, (height, width)))
        first += grids[-1].positions.numel()
    return {"": (Layout(first, tuple(grids)),)}


def _image_sizes(images: Tensor, sizes: Any) -> list[tuple[int, int]]:
    """Height and width of each image: those of the batch, or the `sizes` before they were padded."""
    if sizes is None:
        return [(images.shape[2], images.shape[3])] * len(images)
    return [(int(height), int(width)) for height, width in sizes]


def _tiles_in_text(module: Any, arguments: Arguments) -> Layouts:
    """The layouts of LLaVA-NeXT: each photo is an overview and tiles, which are joined in the text.

    For n photos, images 0 to n - 1 are the joined tiles of each photo, n to 2n - 1 their overviews, and the others the
    single tiles, which are in the image encoder only.
    """
    ids, pixels, sizes = (arguments.get(name) for name in ("input_ids", "pixel_values", "image_sizes"))
    config, vision = module.config, module.config.vision_config
    tile, patch = vision.image_size, vision.patch_size
    if not _has_shape(ids, 2) or not isinstance(pixels, Tensor) or pixels.dim() not in (4, 5) or sizes is None:
        return {}
    if pixels.shape[-2:] != (tile, tile):
        return {}
    photos, side = _image_sizes(pixels, sizes), tile // patch
    in_text: list[ImageTokens] = []
    in_encoder: list[tuple[int, Box]] = []
    next_tile = 2 * len(photos)
    for photo, size in enumerate(photos):
        canvas = choose_canvas(size, config.image_grid_pinpoints)
        down, across = canvas.size[0] // tile, canvas.size[1] // tile
        if canvas.size != (down * tile, across * tile) or tile % patch:
            return {}
        rows, columns = without_padding(size, (down * side, across * side))
        joined = consecutive(side * side, 1, len(rows), len(columns) + 1)[..., :-1]  # a line break ends each row
        box = canvas.locate(*(patch * end for end in (rows.start, columns.start, rows.stop, columns.stop)))
        overview = len(photos) + photo
        grids = PatchGrid(joined, photo, box=box), PatchGrid(consecutive(0, 1, side, side), overview)
        in_text.append(ImageTokens(side * side + len(rows) * (len(columns) + 1), grids))
        in_encoder.append((overview, WHOLE))
        for top, left in product(range(0, canvas.size[0], tile), range(0, canvas.size[1], tile)):
            in_encoder.append((next_tile, canvas.locate(top, left, top + tile, left + tile)))
            next_tile += 1
    found = _in_text(module, ids == _image_token(config), in_text)
    return found and found | _tile_encoder(module, pixels, in_encoder)


def _tile_encoder(module: Any, pixels: Tensor, tiles: Sequence[tuple[int, Box]]) -> Layouts:
    """The layouts of the image encoder inside of a module for tiles: their numbers, and their parts of the photo."""
    batch = {"pixel_values": pixels.flatten(0, -4)[:1].expand(len(tiles), -1, -1, -1)}
    return {
        name: tuple(
            replace(layout, grids=tuple(replace(grid, image=image, pixels=None, box=box) for grid in layout.grids))
            for layout, (image, box) in zip(layouts, tiles, strict=True)
        )
        for name, part in module.named_modules()
        if isinstance(getattr(part, "config", None), type(module.config.vision_config))
        for layouts in find_layouts(part, batch).values()
    }


def _cross_attended_tiles(module: Any, arguments: Arguments) -> Layouts:
    """The layouts of Mllama: text attends to the tiles of a row one after the other, in cross-attention layers."""
    ids, pixels, mask = (arguments.get(name) for name in ("input_ids", "pixel_values", "aspect_ratio_mask"))
    if not _has_shape(ids, 2) or not _has_shape(pixels, 6) or not _has_shape(mask, 3):
        return {}
    found = _stacked_tiles(pixels, mask, module.config.vision_config.patch_size, len(pixels), 0)
    if not found or found[0].length == ids.shape[1]:
        return {}  # queries and keys could not be told apart by their number
    return {name: found for name, _ in module.named_modules() if name.endswith(".cross_attn")}


def _tile_stack_encoder(module: Any, arguments: Arguments) -> Layouts:
    """The layouts of the encoder of Mllama: all tiles of an image in one sequence, each padded to 8 positions."""
    pixels, mask = arguments.get("pixel_values"), arguments.get("aspect_ratio_mask")
    if not _has_shape(pixels, 6) or not _has_shape(mask, 3):
        return {}
    patch = module.config.patch_size
    tokens = 1 + (pixels.shape[-2] // patch) * (pixels.shape[-1] // patch)
    found = _stacked_tiles(pixels, mask, patch, len(pixels) * pixels.shape[1], -tokens % 8)
    return {"": found} if found else {}


def _stacked_tiles(pixels: Tensor, mask: Tensor, patch: int, sequences: int, padding: int) -> tuple[Layout, ...]:
    """Sequences of tiles, each a class token, patches and padding; tiles that are not in the mask have no number."""
    height, width = pixels.shape[-2:]
    rows, columns = height // patch, width // patch
    if (rows * patch, columns * patch) != (height, width):
        return ()
    is_real = mask.bool().cpu().reshape(sequences, -1)
    numbers = (is_real.flatten().cumsum(0) - 1).reshape(is_real.shape).tolist()
    step = 1 + rows * columns + padding
    tiles = is_real.shape[1]
    special = {f"class {tile}": range(tile * step, tile * step + 1) for tile in range(tiles)}
    return tuple(
        Layout(
            tiles * step,
            tuple(
                PatchGrid(consecutive(tile * step + 1, 1, rows, columns), numbers[row][tile], (height, width))
                for tile in range(tiles)
                if is_real[row, tile]
            ),
            special,
        )
        for row in range(sequences)
    )


class ImageTokens(NamedTuple):
    """The tokens of one image in a text: how many there are, and which of them are patches, counted from 0."""

    num_tokens: int
    grids: tuple[PatchGrid, ...]


def _whole_images(grids: Sequence[PatchGrid]) -> list[ImageTokens]:
    """Images all of whose tokens are patches."""
    return [ImageTokens(grid.positions.numel(), (grid,)) for grid in grids]


def _in_text(module: nn.Module, is_image: Tensor, images: Sequence[ImageTokens]) -> Layouts:
    """Give the image tokens of a batch of texts to the images, in order; nothing if their numbers differ."""
    parts = [name for name, _ in module.named_modules() if name.rpartition(".")[2] in ("language_model", "text_model")]
    part = min(parts, key=len, default=None)
    stops = torch.tensor([0, *(image.num_tokens for image in images)]).cumsum(0).tolist()
    per_row = is_image.sum(1).tolist()
    if part is None or sum(per_row) != stops[-1]:
        return {}
    layouts, begin = [], 0
    for row, tokens in zip(is_image.cpu(), per_row, strict=True):
        end = begin + tokens
        inside = [
            (start - begin, image)
            for (start, stop), image in zip(pairwise(stops), images, strict=True)
            if begin <= start and stop <= end
        ]
        if sum(image.num_tokens for _, image in inside) != tokens:
            return {}
        spans = [(start, grid) for start, image in inside for grid in image.grids]
        layouts.append(text_layout(row.nonzero()[:, 0], len(row), spans))
        begin = end
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


def _blocks_of_window(config: Any) -> int:
    """How many merged blocks a window has along each side, as in Qwen2.5-VL."""
    return config.window_size // config.spatial_merge_size // config.patch_size


_with_class = _image_encoder(lambda _: CLASS_TOKEN)
_with_registers = _image_encoder(lambda config: {**CLASS_TOKEN, "register": config.num_register_tokens})
_patches_only = _image_encoder(lambda _: {})

BY_HAND = {
    "Swin": "its layers attend inside of windows, each a row of the batch: give the grid of one window, first=0 and "
    "image=ROW",
    "Segformer": "its layers have grids of several sizes, and fewer keys than queries: record layers of one size with "
    "layers=, and give the grid of their queries and first=0",
    "LlavaOnevision": "its tiles may be resized between the image encoder and the text: for the overview in the text, "
    "give the grid of one tile, such as grid=(27, 27), and as first the position of the first image token",
}
"""How to give the patches of some models that are not known, by the beginning of the name of the class."""

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
            "internvl_vision",
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
    "internvl": _images_in_text(lambda config: 1 / config.downsample_ratio),
    "llava": _images_in_text(lambda _: 1),
    "llava_next": _tiles_in_text,
    "mistral3": _images_in_text(lambda config: config.spatial_merge_size),
    "mllama": _cross_attended_tiles,
    "mllama_vision_model": _tile_stack_encoder,
    "paligemma": _images_in_text(lambda _: 1),
    "gemma3": _images_in_text(_pooled_side),
    **dict.fromkeys(("idefics3", "smolvlm"), _images_in_text(lambda config: config.scale_factor)),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), _packed_in_text),
    **dict.fromkeys(("qwen2_vl_vision", "qwen3_vl_vision"), _packed_encoder(lambda _: None)),
    "qwen2_5_vl_vision": _packed_encoder(_blocks_of_window),
    "pixtral": _sized_encoder,
}
"""The known models of transformers, by the model type of their config. `tests/images/test_known_models.py` changes one
patch of an image for each of them, and compares the position that changes."""
