"""The map as the browser has drawn it: pixels, where on the matrix they lie, and what weight a colour can stand for.

Pixels are read from the canvas, colours are found in the published tables, their range is what the page's fields say,
and places are worked out from centre and zoom: the page's own reckoning has no part in it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page

from tests.explorer.browser import opened, wait_until_ready

TABLES = Path(__file__).resolve().parents[2] / "web" / "src" / "paint" / "colour_tables.ts"
TILE, OCTAVES, STEPS = 256, 32, 254
HALF_A_CODE = OCTAVES / STEPS / 2
SINGLE_PRECISION = 1e-3  # octaves: what the server's arithmetic may add
LARGEST_ZOOM = 64

READ = """([layer, points, where]) => {
  const root = document.getElementById("explorer");
  const canvas = root.querySelector(`${where} canvas.map-${layer}`);
  const { width, height } = canvas;
  const bytes = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const text = [];
  const say = (part) => text.push(String.fromCharCode.apply(null, part));
  if (points) for (const [x, y] of points) say(bytes.subarray((y * width + x) * 4, (y * width + x) * 4 + 4));
  else for (let at = 0; at < bytes.length; at += 32768) say(bytes.subarray(at, at + 32768));
  const plot = root.querySelector(`${where} canvas.map-heat`).style;
  const { centre, zoom, colours } = root.attnscope.store.get();
  const range = [...root.querySelectorAll(".range input")].map((field) => field.valueAsNumber);
  return { width, height, bytes: btoa(text.join("")), scale: devicePixelRatio, centre, zoom, range, colours,
    left: parseFloat(plot.left), top: parseFloat(plot.top) };
}"""

SETTLED = """() => new Promise((resolve) => {
  const map = document.querySelector("#explorer .map");
  const look = (left) => map.dataset.state !== "ready" ? requestAnimationFrame(() => look(3))
    : left > 0 ? requestAnimationFrame(() => look(left - 1)) : resolve(true);
  requestAnimationFrame(() => requestAnimationFrame(() => look(3)));
})"""


@cache
def table(name: str) -> NDArray[np.int64]:
    """The 256 colours of a table, (256, 3)."""
    if name == "grey":
        return np.arange(256)[:, None].repeat(3, 1)
    found = re.search(rf"const {name}: Encoded = {{\s*first: \[([\d, ]+)\],\s*steps:(.*?)}};", TABLES.read_text(), re.S)
    assert found, name
    steps = [ord(letter) - ord("m") for letter in "".join(re.findall(r'"([a-z]+)"', found[2]))]
    changes = np.array(steps).reshape(3, 255)
    first = np.array([[int(part)] for part in found[1].split(",")])
    return np.cumsum(np.concatenate([first, changes], 1), 1).T


def entry_bounds(bits: tuple[float, float]) -> NDArray[np.float64]:
    """The logarithms, least and greatest, of the weights that each of the 256 colours may stand for; NaN for none.

    A code stands for half a step on either side of it, and a colour for all codes that the range maps to it.
    """
    low, high = bits
    bounds = np.full((256, 2), np.nan)
    for code in range(1, STEPS + 2):
        middle = (code - 1) * OCTAVES / STEPS - OCTAVES
        share = -1.0 if code == 1 else (middle - low) / (high - low)
        entry = min(255, max(0, int(np.floor(share * 255 + 0.5))))
        least = -np.inf if code == 1 else middle - HALF_A_CODE
        bounds[entry] = np.fmin(bounds[entry, 0], least), np.fmax(bounds[entry, 1], middle + HALF_A_CODE)
    return bounds


class Line(NamedTuple):
    """Device pixels along one axis, and the bin that each of them shows beyond doubt."""

    pixels: NDArray[np.int64]
    bins: NDArray[np.int64]

    def of(self, bins: list[int]) -> Line:
        """Those of some bins."""
        chosen = np.isin(self.bins, bins)
        return Line(self.pixels[chosen], self.bins[chosen])


class Picture:
    """The pixels of one of the two canvases, and the view that they show."""

    def __init__(self, read: dict[str, Any], queries: int, keys: int) -> None:
        self._bytes = base64.b64decode(read["bytes"])
        self.size = int(read["height"]), int(read["width"])
        self.scale, self.range, self.colours = float(read["scale"]), tuple(read["range"]), str(read["colours"])
        self.plot = read["left"], read["top"]
        self.queries, self.keys = queries, keys
        self.height, self.width = (side / self.scale for side in self.size)
        fit = min(LARGEST_ZOOM, self.width / keys, self.height / queries)
        self.zoom = min(LARGEST_ZOOM, max(fit, read["zoom"] or fit))
        centre = read["centre"] or {"query": 0, "key": 0}
        self.query = self._first(centre["query"], queries, self.height)
        self.key = self._first(centre["key"], keys, self.width)

    def at(self, query: float, key: float) -> Picture:
        """The same pixels, of a map that stands elsewhere than the state says."""
        found = copy(self)
        found.query = self._first(query, self.queries, self.height)
        found.key = self._first(key, self.keys, self.width)
        return found

    def _first(self, centre: float, length: int, pixels: float) -> float:
        return max(0.0, min(centre - pixels / self.zoom / 2, length - pixels / self.zoom))

    @property
    def stride(self) -> int:
        """Tokens along a side of a bin: the fewest that make it a pixel wide."""
        deepest = (-(-max(self.queries, self.keys) // TILE) - 1).bit_length()
        return next((1 << up for up in range(deepest) if (1 << up) * self.zoom >= 1 - 1e-9), 1 << deepest)

    @property
    def level(self) -> int:
        """The zoom level: 0 is one tile."""
        return (-(-max(self.queries, self.keys) // TILE) - 1).bit_length() - self.stride.bit_length() + 1

    def rows(self) -> Line:
        """Pixels from top to bottom."""
        return self._line(self.query, self.queries, self.size[0])

    def columns(self) -> Line:
        """Pixels from left to right."""
        return self._line(self.key, self.keys, self.size[1])

    def _line(self, first: float, length: int, count: int) -> Line:
        """Tiles begin and end at whole device pixels, so that what is drawn may lie half a pixel beside its place."""
        pace, bins = self.zoom * self.scale, -(-length // self.stride)
        borders = (np.append(np.arange(0, bins, TILE), bins) * self.stride - first) * pace
        moved = float(np.abs(borders - np.round(borders)).max()) > 1e-6
        pixels = np.arange(count)
        places = (first + (pixels + 0.5) / pace) / self.stride
        beside = np.abs(places - np.round(places)) * self.stride * pace
        certain = (beside > (0.501 if moved else 0.01)) & (places * self.stride < length)
        return Line(pixels[certain], places[certain].astype(np.int64))

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """Red, green and blue, (height, width, 3)."""
        return np.frombuffer(self._bytes, np.uint8).reshape(*self.size, 4)[:, :, :3]

    def entries(self, rows: Line, columns: Line) -> NDArray[np.int64]:
        """Which of the colours of the table each pixel has; -1 for a colour that is not in it."""
        return entries_of(self.pixels[np.ix_(rows.pixels, columns.pixels)], self.colours)


def entries_of(colours: NDArray[Any], name: str) -> NDArray[np.int64]:
    """The places of colours, (..., 3), in a table; -1 for a colour that is not in it."""
    wanted, known = (part.astype(np.int64) @ [65536, 256, 1] for part in (colours, table(name)))
    order = np.argsort(known)
    found = order[np.searchsorted(known, wanted, sorter=order).clip(max=255)]
    return np.where(known[found] == wanted, found, -1)


def taken(page: Page, queries: int, keys: int, where: str = "") -> Picture:
    """The heatmap as it is drawn now: the first on the page, or that of some part of it."""
    return Picture(page.evaluate(READ, ["heat", None, where]), queries, keys)


def view_of(page: Page, queries: int, keys: int) -> Picture:
    """Where everything lies now, without the pixels."""
    return Picture(page.evaluate(READ, ["heat", [], ""]), queries, keys)


def sampled(page: Page, layer: str, points: list[tuple[int, int]]) -> NDArray[np.uint8]:
    """The colours of some device pixels (x, y) of the "heat" or of the "overlay" that lies over it, (points, 3)."""
    return np.frombuffer(base64.b64decode(page.evaluate(READ, [layer, points, ""])["bytes"]), np.uint8).reshape(-1, 4)[
        :, :3
    ]


@contextmanager
def shown(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page on an address, once everything that its view shows is there and drawn."""
    with opened(browser, url, ready=False, **options) as page:
        wait_until_ready(page, timeout=60_000)
        settled(page)
        yield page


def settled(page: Page) -> None:
    """Wait until everything that the view shows is there and drawn."""
    page.evaluate(SETTLED)


def wrong(picture: Picture, rows: Line, columns: Line, truth: NDArray[np.float64]) -> list[str]:
    """What does not show the weights of the matrix, (row, column) of these lines; NaN is to be hatched."""
    entries = picture.entries(rows, columns)
    return [
        f"bin {rows.bins[row]}, {columns.bins[column]}: 2^{np.log2(truth[row, column]):.3f} is drawn as entry "
        f"{entries[row, column]}, {entry_bounds(picture.range)[entries[row, column]]}"
        for row, column in np.argwhere(~agrees(entries, truth, picture.range))[:5]
    ]


def agrees(entries: NDArray[np.int64], truth: NDArray[np.float64], bits: tuple[float, float]) -> NDArray[np.bool_]:
    """Whether each entry can stand for its weight; NaN is masked and has none."""
    bounds = entry_bounds(bits)[entries]
    low, high = bounds[..., 0], bounds[..., 1]
    with np.errstate(divide="ignore"):
        logarithms = np.log2(truth)
    inside = (logarithms >= low - SINGLE_PRECISION) & (logarithms <= high + SINGLE_PRECISION) & (entries >= 0)
    return np.where(np.isnan(truth), entries < 0, inside)
