"""What the explorer has saved: files, as a user gets them, and the pictures among them as pixels of the map."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import Browser, Page

from tests.explorer.pages import focus_map
from tests.explorer.picture import READ, Picture
from tests.explorer.synthetic import Synthetic


def opened_export(page: Page) -> None:
    """Open the dialog by its key."""
    focus_map(page)
    page.keyboard.press("e")
    page.wait_for_selector("dialog.export[open]")


def saved(page: Page, kind: str, scale: int | None = None) -> tuple[str, bytes]:
    """A file by its button, and what it is called."""
    if not page.locator("dialog.export[open]").count():
        opened_export(page)
    if scale is not None:
        page.click(f".export .segments button:has-text('{scale}×')")
    with page.expect_download() as found:
        page.click(f".export button:text-is('Save {kind}')")
    return found.value.suggested_filename, Path(found.value.path()).read_bytes()


def pixels_of(png: bytes) -> NDArray[np.uint8]:
    """Red, green, blue and how opaque, (height, width, 4)."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))


def picture_in(page: Page, head: Synthetic, pixels: NDArray[np.uint8], scale: int) -> Picture:
    """The map in a picture of the whole view at a scale, as `Picture` reads one from the screen."""
    view: dict[str, Any] = page.evaluate(READ, ["heat", [], ""])
    left, top, width, height = (
        round(part * scale)
        for part in (view["left"], view["top"], view["width"] / view["scale"], view["height"] / view["scale"])
    )
    plot = np.ascontiguousarray(pixels[top : top + height, left : left + width])
    read = {"width": width, "height": height, "scale": scale, "bytes": base64.b64encode(plot.tobytes()).decode()}
    return Picture({**view, **read}, head.queries, head.keys)


def drawn_svg(browser: Browser, svg: Path, scale: int) -> NDArray[np.uint8]:
    """A drawing as a browser shows it, by itself and with nothing to reach."""
    width, height = size_of(svg.read_bytes())
    with browser.new_context(
        viewport={"width": width, "height": height}, device_scale_factor=scale, offline=True
    ) as context:
        page = context.new_page()
        page.goto(svg.as_uri())
        return pixels_of(page.screenshot())


def size_of(svg: bytes) -> tuple[int, int]:
    """Pixels of a drawing as it is meant."""
    head = svg[:400].decode()
    width, height = (int(head.partition(f'{side}="')[2].partition('"')[0]) for side in (" width", " height"))
    return width, height
