"""`attnscope picture MODEL PHOTO`: draw what an image model attends to on a photo."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.cli.commands import Options, argument, command, option
from attnscope.cli.output_paths import check_output_file, report_write_errors
from attnscope.cli.photos import record_photo
from attnscope.errors import SettingError
from attnscope.extras import require

if TYPE_CHECKING:
    from attnscope.images import ImageAttention, PatchMap

FORMATS = (".png", ".svg", ".pdf")


@command(
    "picture",
    about="draw what an image model attends to on a photo",
    description="Draw what the heads of an image model attend to on PHOTO, as PNG, SVG or PDF.",
    notes=(
        "Without --patch, --received or --rollout, the query is the class token, or all\n"
        "queries where the model has none. Supported are vision encoders of transformers\n"
        "in a folder that has a preprocessor_config.json."
    ),
    examples=[
        "attnscope picture facebook/dinov2-small photo.jpg",
        "attnscope picture ./vit photo.jpg --layer 11 --patch 3,5 --to patch.svg",
    ],
)
@argument("model", about="a folder, or a name on the hub")
@argument("photo", about="an image file")
@option("--to", default="picture.png", metavar="FILE", about="the figure: .png, .svg or .pdf (default: picture.png)")
@option("--layer", type=int, default=-1, metavar="N", about="the layer, counted from 0 (default: the last one)")
@option("--patch", metavar="ROW,COLUMN", about="draw what this patch attends to")
@option("--received", is_flag=True, about="draw what all queries attend to, as a mean")
@option("--rollout", is_flag=True, about="draw the attention rollout of the class token through all layers")
@option("--hide-sinks", is_flag=True, about="leave out patches that receive at least 5 % of all attention in a head")
def picture(options: Options) -> None:
    """Record the photo, draw the map and print where the rest of the attention is."""
    if sum((options.patch is not None, options.received, options.rollout)) > 1:
        raise SettingError("picture: give one of --patch, --received and --rollout")
    patch = None if options.patch is None else parse_patch(options.patch)
    if Path(options.to).suffix.lower() not in FORMATS:
        raise SettingError(f"picture: expected a file that ends in .png, .svg or .pdf, got {options.to}")
    check_output_file(options.to, command_name="picture")
    require("figures")
    from attnscope.figures import on_image

    image = record_photo(options.model, options.photo).on_image()
    found = make_map(image, options, patch)
    sinks = image.sinks(options.layer)
    if options.hide_sinks:
        found = found.hide([sink.patch for sink in sinks if sink.patch is not None])
    with report_write_errors(options.to, command_name="picture"):
        on_image(found).savefig(options.to)
    frames, rows, columns = found.grid
    print(f"{options.to}: {found.title}, {rows} x {columns} patches" + (f", {frames} frames" if frames > 1 else ""))
    for name, share in found.elsewhere.items():
        print(f"  {name}: {share.mean().item():.1%} of the attention, as a mean over heads")
    for sink in sinks:
        print(f"  sink: {sink.name}, up to {sink.share.max().item():.1%} of all attention in a head")


def make_map(image: ImageAttention, options: Options, patch: tuple[int, int] | None) -> PatchMap:
    """The map that the options choose."""
    if options.rollout:
        return image.rollout("class")
    if patch is not None:
        return image.attends_to(options.layer, patch)
    queries = image.layer(options.layer).queries
    if options.received or queries is None or "class" not in queries.special:
        return image.received(options.layer)
    return image.attends_to(options.layer, "class")


def parse_patch(text: str) -> tuple[int, int]:
    """Parse a patch.

    >>> parse_patch("3,5")
    (3, 5)
    """
    found = re.fullmatch(r"(\d+)\s*,\s*(\d+)", text.strip())
    if found is None:
        raise SettingError(f"picture: expected --patch ROW,COLUMN, such as 3,5, got {text!r}")
    return int(found[1]), int(found[2])
