"""The picture view of layouts that are not one plain grid: each pinned patch or word lights the patch it attends to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page
from torch import Tensor, nn

from attnscope.images.layout import WHOLE, Layout, PatchGrid, consecutive, in_blocks
from attnscope.images.photo import Photo
from attnscope.recording import Trace, record
from tests.explorer.browser import needs_chromium
from tests.explorer.pages import change, shown, state, until
from tests.explorer.serving import serving
from tests.explorer.test_picture_view import MAIN, is_yellow, pixels, ready

pytestmark = [needs_chromium, pytest.mark.slow]

LAYOUTS = {
    "registers": Layout(5 + 8, (PatchGrid(consecutive(5, 1, 2, 4)),), {"class": range(1), "register": range(1, 5)}),
    "merged": Layout(16, (PatchGrid(in_blocks(0, 1, 4, 4, merge=2)),)),
    "images": Layout(16, (PatchGrid(consecutive(2, 1, 2, 3), 0), PatchGrid(consecutive(9, 1, 3, 2), 1))),
    "video": Layout(15, (PatchGrid(consecutive(1, 2, 2, 3)),)),
}
"""Layers by name. Those of images and of the video have words before, between and after the patches."""
NUM_PINS = 4
Place = tuple[int, int]


class PermutedPositions(nn.Module):
    """Position i attends to position `targets[i]` alone."""

    def __init__(self, targets: Tensor) -> None:
        super().__init__()
        self.targets = targets

    def forward(self) -> Tensor:
        keys = 20 * torch.eye(len(self.targets)).expand(1, 1, -1, -1)
        return nn.functional.scaled_dot_product_attention(keys[:, :, self.targets], keys, keys)


def targets_of(name: str) -> Tensor:
    """A permutation of all positions."""
    return torch.randperm(LAYOUTS[name].length, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    model = nn.ModuleDict({name: PermutedPositions(targets_of(name)) for name in LAYOUTS})
    with torch.no_grad(), record(model) as trace:
        for module in model.values():
            module()
    add_images(trace)
    with serving(trace, page=True) as handle, shown(browser, handle.url, opening=True, width=1400, height=800) as found:
        yield found


def add_images(trace: Trace) -> None:
    """Add the layouts, and two white photos."""
    trace.image_layouts = {name: (layout,) for name, layout in LAYOUTS.items()}
    trace.photos = {image: Photo(np.full((60, 90, 3), 255, np.uint8), WHOLE) for image in (0, 1)}


def show(page: Page, name: str, grid: PatchGrid, frame: int) -> None:
    """Show a frame of an image in a layer, with nothing pinned."""
    change(page, view="picture", layer=list(LAYOUTS).index(name), head=0, pinQuery=None, pinKey=None)
    ready(page)
    page.locator(".picture-bar select").select_option(str(grid.image))
    if grid.shape[0] > 1:
        page.locator(".picture-bar input[max='1']:not([step])").fill(str(frame))
    ready(page)


def lit_patches(page: Page, rows: int, columns: int) -> set[Place] | None:
    """The patches that are lit; None while a patch is lit in part."""
    found = is_yellow(pixels(page))
    height, width = found.shape
    lit = set()
    for row, column in np.ndindex(rows, columns):
        top, bottom = (round(at * height / rows) for at in (row, row + 1))
        left, right = (round(at * width / columns) for at in (column, column + 1))
        inside = found[top + 4 : bottom - 4, left + 4 : right - 4]
        if inside.any():
            lit.add((row, column))
            if not inside.all():
                return None
    return lit


def places_of(grid: PatchGrid, frame: int) -> dict[int, Place]:
    """The row and column of each position in a frame."""
    _, rows, columns = grid.shape
    return {int(grid.positions[frame, row, column]): (row, column) for row, column in np.ndindex(rows, columns)}


@pytest.mark.parametrize(
    ("name", "image", "frame"),
    [("registers", 0, 0), ("merged", 0, 0), ("images", 0, 0), ("images", 1, 0), ("video", 0, 0), ("video", 0, 1)],
)
def test_pins_light_what_they_attend_to(page: Page, name: str, image: int, frame: int) -> None:
    layout, targets = LAYOUTS[name], targets_of(name).tolist()
    grid = layout.grids[image]
    _, rows, columns = grid.shape
    places = places_of(grid, frame)
    show(page, name, grid, frame)
    on_image = [at for at in range(layout.length) if targets[at] in places]
    elsewhere = [at for at in range(layout.length) if targets[at] not in places]
    words = [at for at in on_image if not any((one.positions == at).any() for one in layout.grids)]
    assert words or name == "merged"  # which has no positions beside the patches
    for position in {*on_image[:NUM_PINS], *words[:1], *elsewhere[:1]}:
        change(page, pinQuery=position)
        wanted = {places[targets[position]]} if position in on_image else set()
        until(
            page, lambda wanted=wanted: lit_patches(page, rows, columns) == wanted, f"{wanted} of position {position}"
        )


def test_a_click_pins_the_position_of_a_merged_patch(page: Page) -> None:
    (grid,) = LAYOUTS["merged"].grids
    show(page, "merged", grid, 0)
    box = page.locator(MAIN).bounding_box()
    assert box is not None
    for row, column in ((0, 2), (1, 1), (3, 0)):
        page.mouse.click(box["x"] + (column + 0.5) / 4 * box["width"], box["y"] + (row + 0.5) / 4 * box["height"])
        assert state(page)["pinQuery"] == int(grid.positions[0, row, column]) != 4 * row + column
