"""The view of all heads: how tests open it, wait for it and read its pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page

from attnscope.heads import HeadTable
from tests.explorer.pages import shown, until
from tests.explorer.serving import Handle

MAX_SECONDS = 180  # 270 heads on a busy machine
LEFT, TOP, GAP = 36, 20, 4  # CSS pixels: names on the left, numbers on top, and between pictures

READ = """() => {
  const canvas = document.querySelector(".heads-area canvas");
  const { width, height } = canvas;
  const bytes = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const text = [];
  for (let at = 0; at < bytes.length; at += 32768)
    text.push(String.fromCharCode.apply(null, bytes.subarray(at, at + 32768)));
  return { width, height, bytes: btoa(text.join("")) };
}"""
FRAMES = "() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))"


def trace_in(handle: Handle) -> str:
    """The trace that a server opens with."""
    return handle.get("/api/1/session").json["traces"][0]["trace"]


@contextmanager
def heads_shown(
    browser: Browser, handle: Handle, query: str = "", *, head: str = "L0H0", **options: Any
) -> Iterator[Page]:
    """A page with all heads, once all layers have come; `query` is what the address says about the view."""
    url = f"{handle.url}#1/{trace_in(handle)}/{head}/heads{'?' if query else ''}{query}"
    with shown(browser, url, **options) as page:
        settled(page)
        yield page


def settled(page: Page) -> None:
    """Wait until all layers have come and are drawn."""
    until(page, lambda: "…" not in (words := page.inner_text(".heads-words")) and words, "all layers", MAX_SECONDS)
    page.evaluate(FRAMES)


def pixels(page: Page) -> NDArray[np.uint8]:
    """The canvas as it is drawn now: red, green and blue, (height, width, 3)."""
    page.evaluate(FRAMES)
    read = page.evaluate(READ)
    return np.frombuffer(base64.b64decode(read["bytes"]), np.uint8).reshape(read["height"], read["width"], 4)[:, :, :3]


def picture_at(drawn: NDArray[np.uint8], layer: int, head: int, size: int, scale: int = 1) -> NDArray[np.uint8]:
    """The device pixels of one picture."""
    left, top = (scale * (edge + place * (size + GAP)) for edge, place in ((LEFT, head), (TOP, layer)))
    return drawn[top : top + scale * size, left : left + scale * size]


def point_of(page: Page, layer: int, head: int, size: int = 64) -> tuple[float, float]:
    """The middle of a picture on the page."""
    box = page.locator(".heads-area canvas >> nth=0").bounding_box()
    assert box
    step = size + GAP
    return box["x"] + LEFT + head * step + size / 2, box["y"] + TOP + layer * step + size / 2


def cells(page: Page) -> list[list[str]]:
    """The text of each row of the table."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".heads-table tbody tr")]
             .map((row) => [...row.children].map((cell) => cell.innerText.trim()))"""
    )


def columns(page: Page) -> list[str]:
    """What the columns are called."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".heads-table thead th")].map((one) => one.innerText)"""
    )


def format_score(value: float) -> str:
    """A score as the table writes it."""
    if np.isnan(value):
        return "–"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def rows_of(table: HeadTable) -> dict[str, dict[str, float]]:
    """The scores of heads by their names, as the page calls them."""
    layers = list(dict.fromkeys(table.layers))
    return {
        f"L{layers.index(layer)}H{head}": {name: float(column[row]) for name, column in table.columns.items()}
        for row, (layer, head) in enumerate(zip(table.layers, table.heads, strict=True))
    }
