"""The picture view: a model whose patch i attends to patch j lights exactly the rectangle of patch j, in pixels."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page
from torch import Tensor, nn

from attnscope.recording import Trace, record
from tests.explorer.browser import needs_chromium
from tests.explorer.pages import change, looks, shown, state, until
from tests.explorer.serving import Handle, serving
from tests.explorer.test_access import SIZES, needs_axe, violations_in_every_look
from tests.explorer.test_static_export import from_disk

pytestmark = needs_chromium

ROWS, COLUMNS = 2, 5
LENGTH = 1 + ROWS * COLUMNS
HEIGHT, WIDTH = 60, 100
BOX = (0.1, 0.25, 0.9, 1.0)  # the part of the photo that the model was given
MAIN = ".picture-main"

PIXELS = """(selector) => {
  const canvas = document.querySelector(selector);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let text = "";
  const step = 32768;
  for (let at = 0; at < data.length; at += step) text += String.fromCharCode.apply(null, data.subarray(at, at + step));
  return [canvas.width, canvas.height, btoa(text)];
}"""


class PermutedPatches(nn.Module):
    """Position i attends to position `targets[i]` in the first head, and to all alike in the second."""

    def __init__(self, targets: Tensor) -> None:
        super().__init__()
        self.targets = targets

    def forward(self) -> Tensor:
        """Run attention with the fused kernel of torch."""
        keys = 20 * torch.eye(LENGTH).expand(1, 2, -1, -1)
        queries = 20 * torch.stack([torch.eye(LENGTH)[self.targets], torch.zeros(LENGTH, LENGTH)])[None]
        return nn.functional.scaled_dot_product_attention(queries, keys, keys)


def targets() -> Tensor:
    """A permutation of all positions without fixed points."""
    return torch.arange(LENGTH).roll(4)


def photographed() -> Trace:
    """A trace with a white photo."""
    model = PermutedPatches(targets())
    with torch.no_grad(), record(model) as trace:
        model()
    white = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    trace.attach_photo(white, grid=(ROWS, COLUMNS), first=1, box=BOX)
    return trace


@pytest.fixture(scope="module")
def handle() -> Iterator[Handle]:
    with serving(photographed(), page=True) as found:
        yield found


@pytest.fixture(scope="module")
def tab(browser: Browser, handle: Handle) -> Iterator[Page]:
    with shown(browser, handle.url, opening=True, width=1400, height=800) as page:
        yield page


@pytest.fixture
def page(tab: Page) -> Page:
    """The picture, with nothing pinned."""
    change(tab, view="picture", layer=0, head=0, pinQuery=None, pinKey=None, pictureKind="query", hideSink=False)
    ready(tab)
    return tab


def ready(page: Page) -> None:
    page.wait_for_selector(f"{MAIN}[data-state=ready]")
    page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")


def pixels(page: Page, selector: str = f"{MAIN} canvas") -> np.ndarray:
    """A picture, by default the large one, (height, width, 3)."""
    width, height, text = page.evaluate(PIXELS, selector)
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)[..., :3].astype(int)


def lit(page: Page) -> np.ndarray:
    """Which pixels of the picture are lit."""
    return is_yellow(pixels(page))


def is_yellow(found: np.ndarray) -> np.ndarray:
    """Which pixels have the brightest colour of the table; the rest is a white photo that is darkened, and outlines."""
    return (found[..., 0] > 230) & (found[..., 1] > 200) & (found[..., 2] < 130)


def edges(row: int, column: int, height: int, width: int) -> tuple[float, float, float, float]:
    """Top, bottom, left and right of a patch, in pixels of a picture."""
    left, top, right, bottom = BOX
    down, across = (bottom - top) / ROWS, (right - left) / COLUMNS
    return (
        (top + row * down) * height,
        (top + (row + 1) * down) * height,
        (left + column * across) * width,
        (left + (column + 1) * across) * width,
    )


def is_lit_exactly(found: np.ndarray, row: int, column: int) -> bool:
    """Whether the lit pixels are those of the patch; the pixels that its edges cross may be either."""
    height, width = found.shape
    top, bottom, left, right = edges(row, column, height, width)
    y, x = np.arange(height)[:, None] + 0.5, np.arange(width) + 0.5
    inside = (y > top + 1) & (y < bottom - 1) & (x > left + 1) & (x < right - 1)
    outside = (y < top - 1) | (y > bottom + 1) | (x < left - 1) | (x > right + 1)
    return bool(found[inside].all() and not found[outside].any() and inside.any())


def point(page: Page, row: int, column: int) -> tuple[float, float]:
    """The middle of a patch on the page."""
    box = page.locator(MAIN).bounding_box()
    assert box is not None
    top, bottom, left, right = edges(row, column, 1, 1)
    return box["x"] + (left + right) / 2 * box["width"], box["y"] + (top + bottom) / 2 * box["height"]


def test_a_trace_with_an_image_opens_on_its_picture(page: Page) -> None:
    assert state(page)["view"] == "picture"
    assert page.locator(".picture-heads button").count() == 2


def test_each_patch_lights_the_rectangle_that_it_attends_to(page: Page) -> None:
    lights_each_target(page)


def test_a_saved_page_lights_the_same_rectangles_and_ranks_heads_by_a_region(browser: Browser, tmp_path: Path) -> None:
    photographed().save_page(tmp_path / "page.html", layer=0, head=0)
    with from_disk(browser, tmp_path / "page.html", "#1/-/L0H0/picture") as page:
        ready(page)
        lights_each_target(page)
        change(page, pinQuery=LENGTH - 1, region="1-3,6-8")
        until(page, lambda: "0.364" in page.locator(".ranking").inner_text(), "the ranking")
        page.get_by_role("button", name="Attended by").click()
        change(page, pinQuery=None, pinKey=6, region="")
        until(page, lambda: is_lit_exactly(lit(page), 1, 4), "the patch that attends to it")


def lights_each_target(page: Page) -> None:
    for position in range(1, LENGTH):
        row, column = divmod(position - 1, COLUMNS)
        page.mouse.click(*point(page, row, column))
        assert state(page)["pinQuery"] == position
        page.mouse.move(5, 5)
        target = int(targets()[position])
        if target == 0:
            until(page, lambda: not lit(page).any(), "a dark picture")
            until(page, lambda: "100%" in page.locator(".picture-shares").inner_text(), "the weight before the patches")
        else:
            place = divmod(target - 1, COLUMNS)
            until(page, lambda place=place: is_lit_exactly(lit(page), *place), f"the patch {place} alone")


def test_a_region_ranks_heads_and_the_keyboard_reaches_patches(page: Page) -> None:
    page.mouse.click(*point(page, 1, 4))  # position 10, which attends to position 6, row 1, column 0
    page.mouse.move(*point(page, 0, 0))
    page.mouse.down()
    page.mouse.move(*point(page, 1, 1), steps=4)
    page.mouse.up()
    assert state(page)["region"] == "1-3,6-8"
    assert state(page)["pinQuery"] == LENGTH - 1
    until(page, lambda: "0.364" in page.locator(".ranking").inner_text(), "the ranking")  # 4 of 11 positions
    rows = page.locator(".ranking li").all_inner_texts()
    assert ["L0H0" in rows[0], rows[0].split()[-1], "L0H1" in rows[1]] == [True, "1.00", True]
    assert "100%" in page.locator(".picture-region").inner_text()
    page.focus(MAIN)
    page.keyboard.press("Escape")
    assert (state(page)["region"], state(page)["pinQuery"]) == ("", None)
    for key in ("ArrowRight", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    assert state(page)["pinQuery"] == 3  # from where the pointer is, row 1, column 1: to the right and up
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Enter")
    assert state(page)["region"] == "3-4,8-9"


@pytest.mark.slow
def test_the_other_direction_and_all_queries(page: Page) -> None:
    page.get_by_role("button", name="Attended by").click()
    page.mouse.click(*point(page, 1, 0))  # position 6, to which position 10 attends
    assert (state(page)["pinKey"], state(page)["pinQuery"]) == (6, None)
    page.mouse.move(5, 5)
    until(page, lambda: is_lit_exactly(lit(page), 1, 4), "the patch that attends to it")
    page.get_by_role("button", name="All queries").click()
    until(page, lambda: "all queries" in page.locator(".picture-title").inner_text(), "the title")
    page.get_by_role("button", name="Rollout").click()
    until(page, lambda: "its rollout" in page.locator(".picture-title").inner_text(), "what rollout needs")
    change(page, pinQuery=LENGTH - 1)
    until(page, lambda: "rollout of patch 1,4" in page.locator(".picture-title").inner_text(), "rollout")
    until(page, lambda: page.locator(".picture-heads").count() == 0, "one map for all heads")


@pytest.mark.slow
def test_small_pictures_have_their_own_colour_scale_or_one_for_all(page: Page) -> None:
    change(page, pinQuery=LENGTH - 1)  # all weight on one patch in the first head, all alike in the second
    ready(page)

    def lit_of(head: int) -> float:
        return float(is_yellow(pixels(page, f".picture-heads button:nth-child({head + 1}) canvas")).mean())

    until(page, lambda: 0 < lit_of(0) < 0.1 and lit_of(1) > 0.4, "the brightest colour in each head")
    page.get_by_label("one colour scale").check()
    until(page, lambda: 0 < lit_of(0) < 0.1 and lit_of(1) == 0, "the brightest colour in the first head alone")
    page.get_by_label("one colour scale").uncheck()


@pytest.mark.slow
def test_sinks_are_named_and_hidden(page: Page) -> None:
    until(page, lambda: page.locator(".picture-sinks li").count() > 0, "the sinks")
    change(page, head=1, pinQuery=3)
    ready(page)
    before = pixels(page)
    page.get_by_role("button", name="Hide sinks").click()
    until(page, lambda: "hidden" in page.locator(".picture-sinks").inner_text(), "hidden sinks")
    assert (pixels(page) != before).any()


@pytest.mark.slow
def test_the_picture_is_saved_with_its_photo(page: Page) -> None:
    image = pytest.importorskip("PIL.Image")
    change(page, pinQuery=LENGTH - 1)
    ready(page)
    page.mouse.move(5, 5)
    until(page, lambda: is_lit_exactly(lit(page), 1, 0), "the patch")
    with page.expect_download() as png:
        page.get_by_role("button", name="Save PNG").click()
    found = np.asarray(image.open(io.BytesIO(png.value.path().read_bytes())).convert("RGB")).astype(int)
    found = found[: round(found.shape[1] * HEIGHT / WIDTH)]
    assert is_lit_exactly(is_yellow(found), 1, 0)
    with page.expect_download() as svg:
        page.get_by_role("button", name="Save SVG").click()
    text = svg.value.path().read_text()
    assert text.count("<image") == 2  # the photo and the patches
    assert "AttnScope" in text


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_serious(browser: Browser, handle: Handle, size: str) -> None:
    with shown(browser, handle.url, opening=True, bypass_csp=True, **SIZES[size]) as page:
        ready(page)
        change(page, pinQuery=4, region="1-3,6-8")
        looks(page, "light")
        assert violations_in_every_look(page, "picture") == {}
