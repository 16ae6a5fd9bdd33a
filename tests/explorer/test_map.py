"""The map under the hand: it is never blank, asks for what it needs and no more, and an address names what it shows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Error, Page, Request, Route

from attnscope.atlas import pyramid
from tests.explorer.browser import needs_chromium, opened, wait_until_ready
from tests.explorer.gallery import WINDOW, Gallery, opened_gallery
from tests.explorer.pages import until
from tests.explorer.picture import Picture, settled, shown, table, taken, view_of, wrong
from tests.explorer.synthetic import random_head, trace_of

pytestmark = needs_chromium

LENGTH = 3000
TILE = re.compile(r"/api/1/[0-9a-f]+/\d+/(\d+)/(\d+)/(\d+)/(\d+)\?ch=")
DARK: dict[str, Any] = {"color_scheme": "dark"}  # where nothing that is loading looks like hatch

# Looks at every eighth pixel of every frame for a colour that stands neither for a weight nor for the mask.
WATCH = """([length, allowed]) => {
  const known = new Set(allowed), root = document.getElementById("explorer");
  const canvas = root.querySelector("canvas.map-heat"), map = root.querySelector(".map");
  window.frames_seen = [];
  const look = () => {
    const { width, height } = canvas;
    const zoom = root.attnscope.store.get().zoom ?? Math.min(width / length, height / length);
    const [right, bottom] = [width, height].map((side) => Math.min(side, Math.floor(length * zoom) - 1));
    const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, width, height).data.buffer);
    let strays = 0;
    for (let y = 0; y < bottom; y += 8) for (let x = 0; x < right; x += 8)
      if (!known.has(pixels[y * width + x] & 0xffffff)) strays++;
    window.frames_seen.push([strays, map.dataset.state]);
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""

# In the page, for the browser tells of a request that was given up after it has told of those that came instead.
COUNT = """() => {
  const { fetch } = window;
  let running = 0;
  window.most_running = 0;
  window.fetch = (path, options) => {
    const answer = fetch(path, options);
    if (!path.includes("?ch=")) return answer;
    let ended = false;
    const end = () => { if (!ended) running -= 1; ended = true; };
    options.signal.addEventListener("abort", end);
    running += 1;
    window.most_running = Math.max(window.most_running, running);
    return answer.finally(end);
  };
}"""

# Runs before the page: what is written on a canvas can be read nowhere else.
HEAR = """
window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  window.written.push(text);
  return write.call(this, text, ...place);
};
"""


@pytest.fixture(scope="module")
def gallery(browser: Browser) -> Iterator[Gallery]:
    with opened_gallery(browser) as found:
        heads = [random_head(LENGTH, seed=seed) for seed in (0, 1)]
        found.hang("walk", heads[0], trace_of([heads]))
        found.heads["second"] = heads[1]
        yield found


def picture_of(page: Page, length: int = LENGTH) -> Picture:
    return taken(page, length, length)


def state_of(page: Page) -> dict[str, Any]:
    return page.evaluate("document.getElementById('explorer').attnscope.store.get()")


def middle_of(page: Page, right: float = 0.5, down: float = 0.5) -> tuple[int, int]:
    """A place on the map, in the middle or elsewhere, with the pointer put there."""
    box = page.locator("canvas.map-heat").bounding_box()
    assert box
    place = int(box["x"] + box["width"] * right), int(box["y"] + box["height"] * down)  # events come in whole pixels
    page.mouse.move(*place)
    return place


def dragged(page: Page, dx: float, dy: float, steps: int = 8) -> None:
    x, y = middle_of(page)
    page.mouse.down()
    page.mouse.move(x + dx, y + dy, steps=steps)
    page.mouse.up()


class Slow:
    """Tiles take half a second from now on; whoever waits lets them through."""

    def __init__(self, page: Page, seconds: float = 0.5) -> None:
        self.page, self.seconds = page, seconds
        self.held: list[tuple[float, Route]] = []
        page.route(TILE, lambda route: self.held.append((time.monotonic() + seconds, route)))

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.page.wait_for_timeout(20)
            due = [route for when, route in self.held if when <= time.monotonic()]
            self.held = [one for one in self.held if one[1] not in due]
            for route in due:
                with suppress(Error):  # the page has given it up
                    route.continue_()

    def settle(self) -> None:
        end = time.monotonic() + 30
        while self.page.locator(".map").get_attribute("data-state") != "ready":
            assert time.monotonic() < end
            self.wait(0.1)


class TileRequests:
    """The tiles that a page requests, and those whose requests it cancels."""

    def __init__(self, page: Page) -> None:
        self.requested: list[tuple[int, ...]] = []
        self.cancelled: list[tuple[int, ...]] = []
        page.on("request", lambda request: self._add(request, self.requested))
        page.on("requestfailed", lambda request: self._add(request, self.cancelled))

    def _add(self, request: Request, into: list[tuple[int, ...]]) -> None:
        if TILE.search(request.url):
            into.append(tile_of(request))


def tile_of(request: Request) -> tuple[int, ...]:
    """Its head, level, row and column."""
    found = TILE.search(request.url)
    assert found
    return tuple(map(int, found.groups()))


def hatch_of(page: Page) -> set[int]:
    """The colours of the mask, from the corner that it hides: cells right of the diagonal."""
    picture = picture_of(page)
    corner = picture.pixels[: picture.size[0] // 8, int(LENGTH * picture.zoom) // 2 : int(LENGTH * picture.zoom) - 1]
    return {packed(colour) for colour in np.unique(corner.reshape(-1, 3), axis=0)}


def packed(colour: Any) -> int:
    red, green, blue = (int(part) for part in colour)
    return red | green << 8 | blue << 16


def test_with_a_slow_server_no_frame_of_panning_and_zooming_is_blank(gallery: Gallery) -> None:
    with gallery.show("walk", "", **DARK) as page:
        hatch = hatch_of(page)
        weights = {packed(colour) for colour in table("cividis")}
        assert len(hatch) < 200
        assert not hatch & weights
        slow, tiles = Slow(page), TileRequests(page)
        page.evaluate(WATCH, [LENGTH, sorted(hatch | weights)])
        middle_of(page, 0.3, 0.7)
        for turn in (-240, -240, -240, -480, 240, 480):
            page.mouse.wheel(0, turn)
            slow.wait(0.25)
        for dx, dy in ((-150, -200), (140, 130), (-60, 200)):
            dragged(page, dx, dy)
            slow.wait(0.25)
        page.keyboard.press("0")
        slow.settle()
        frames = page.evaluate("window.frames_seen")
    assert len(tiles.requested) > 10
    assert sum(state in ("thumbnail", "loading") for _, state in frames) > 20  # placeholders were all there was
    assert [strays for strays, _ in frames if strays] == []


def test_another_head_has_a_small_picture_at_once_while_its_tiles_are_loading(gallery: Gallery) -> None:
    with gallery.show("walk", "scale=log", **DARK) as page:
        slow = Slow(page, seconds=60)  # the tiles of this test never come
        page.locator(".map").focus()
        page.keyboard.press("]")
        slow.wait(0.1)

        def is_picture() -> bool:
            slow.wait(0.05)
            picture = picture_of(page)
            rows, columns = picture.rows(), picture.columns()
            return bool((picture.entries(rows, columns) >= 0).mean() > 0.4)

        until(page, is_picture, "a picture of the triangle")
        assert page.locator(".map").get_attribute("data-state") == "thumbnail"
        picture = picture_of(page)
        rows = picture.rows().of(picture.rows().bins[-8:].tolist())
        drawn = picture.entries(rows, picture.columns())[0]
        # A bin of the picture is a mean over more pairs than one of the tile, of random weights: mostly within a bit.
        mean = gallery.heads["second"].pooled(picture.stride, int(rows.bins[0]))[0][picture.columns().bins]
        low, high = picture.range
        seen = ~np.isnan(mean)
        off = np.abs(drawn / 255 * (high - low) + low - np.log2(mean))[seen]
        assert np.median(off) < 1


def test_requests_for_what_is_no_longer_in_view_are_given_up_and_no_more_than_six_run(gallery: Gallery) -> None:
    with gallery.show("walk", "z=4&c=400,200") as page:
        slow, tiles = Slow(page, seconds=2), TileRequests(page)
        page.evaluate(COUNT)
        dragged(page, -100, -200)
        slow.wait(0.4)
        before = list(tiles.requested)
        assert before
        page.locator(".map").focus()
        for _ in range(10):
            page.keyboard.press("Shift+ArrowDown")
        slow.wait(0.5)
        assert set(tiles.cancelled) >= set(before)  # and what was asked for on the way
        slow.settle()
        top = state_of(page)["centre"]["query"] - WINDOW["height"] / 4
        assert all((y + 1) * 256 <= top for _, z, y, _ in tiles.cancelled if z == 4)
        assert 1 < page.evaluate("window.most_running") <= 6


def test_tiles_above_the_diagonal_are_never_asked_for(gallery: Gallery) -> None:
    with opened(gallery.browser, "about:blank", ready=False, **WINDOW) as page:
        tiles = TileRequests(page)
        page.goto(gallery.address("walk"))
        wait_until_ready(page)
        middle_of(page, 0.5, 0.5)
        for turn in (-240, -240, -360, 120, 240):
            page.mouse.wheel(0, turn)
            settled(page)
            dragged(page, -150, 40)
            settled(page)
    assert len(tiles.requested) > 10
    for _, z, y, x in tiles.requested:
        span = 256 * (16 >> z)
        assert x * span <= min(LENGTH, (y + 1) * span) - 1


def test_the_meaning_of_colours_does_not_change_while_one_moves(gallery: Gallery) -> None:
    head, ranges = gallery.heads["walk"], set()
    with gallery.show("walk", "scale=log") as page:
        middle_of(page, 0.2, 0.8)
        for turn in (0, -480, -480, 240):
            page.mouse.wheel(0, turn)
            settled(page)
            picture = picture_of(page)
            ranges.add(picture.range)
            rows, columns = picture.rows().of(picture.rows().bins[:3].tolist()), picture.columns()
            truth = {band: head.pooled(picture.stride, band)[0] for band in np.unique(rows.bins).tolist()}
            assert wrong(picture, rows, columns, np.stack([truth[band][columns.bins] for band in rows.bins])) == []
        page.wait_for_timeout(600)
        assert "r=" not in page.url
    assert len(ranges) == 1


def test_the_address_names_everything_that_is_shown(gallery: Gallery) -> None:
    with gallery.show("walk", "") as page:
        middle_of(page, 0.25, 0.75)
        for _ in range(4):
            page.mouse.wheel(0, -300)
        settled(page)
        page.mouse.click(*middle_of(page, 0.4, 0.6))
        page.keyboard.press("]")
        page.click("summary:text-is('View')")
        page.get_by_label("Colours", exact=True).select_option("magma")
        page.get_by_label("Darkest colour at").fill("-14.5")
        page.get_by_label("Darkest colour at").press("Enter")
        page.get_by_role("button", name="largest").click()
        until(page, lambda: "agg=max" in page.url, "the address, which is written twice a second at most")
        first, link = state_of(page), page.url
    assert (first["head"], first["colours"], first["range"], first["channel"]) == (1, "magma", [-14.5, 0], "max")
    assert first["pinQuery"] is not None
    assert first["pinKey"] is not None
    link, address = gallery.server.url + link[link.index("#") :], link
    pictures, second = [], first
    for _ in range(2):
        with shown(gallery.browser, link, **WINDOW) as page:
            second = state_of(page)
            pictures.append(picture_of(page).pixels)
            assert page.url == address
    for name in ("trace", "layer", "head", "view", "pinQuery", "pinKey", "channel", "range", "colours", "scale"):
        assert second[name] == first[name]
    assert abs(second["zoom"] / first["zoom"] - 1) < 1e-3
    assert max(abs(second["centre"][side] - first["centre"][side]) for side in ("query", "key")) <= 0.01
    assert np.array_equal(*pictures)


@pytest.mark.slow
def test_back_goes_through_pins_and_heads(gallery: Gallery) -> None:
    with gallery.show("walk", "scale=log") as page:
        page.locator(".map").focus()
        page.keyboard.press("]")
        page.wait_for_timeout(600)  # what follows at once is one step back
        page.mouse.click(*middle_of(page, 0.2, 0.5))
        page.wait_for_timeout(600)
        pinned = state_of(page)
        assert (pinned["head"], pinned["pinQuery"] is None) == (1, False)
        page.go_back()
        assert [state_of(page)[name] for name in ("head", "pinQuery", "pinKey")] == [1, None, None]
        page.go_back()
        assert state_of(page)["head"] == 0
        page.go_forward()
        page.go_forward()
        assert state_of(page) == pinned
        settled(page)
        assert_shows(page, gallery, "second")
        page.go_back()
        page.go_back()
        settled(page)
        assert_shows(page, gallery, "walk")


def assert_shows(page: Page, gallery: Gallery, name: str) -> None:
    """The picture is that of a head, by some rows of it."""
    picture = picture_of(page)
    band = int(picture.rows().bins[-1])
    rows, columns = picture.rows().of([band]), picture.columns()
    truth = gallery.heads[name].pooled(picture.stride, band)[0][columns.bins]
    assert wrong(picture, rows, columns, np.tile(truth, (len(rows.bins), 1))) == []


@pytest.mark.slow
def test_the_wheel_keeps_the_cell_under_the_pointer_and_ends_at_64_pixels(gallery: Gallery) -> None:
    def under(x: float, y: float) -> tuple[float, float]:
        picture = view_of(page, LENGTH, LENGTH)
        box = page.locator("canvas.map-heat").bounding_box()
        assert box
        return picture.query + (y - box["y"]) / picture.zoom, picture.key + (x - box["x"]) / picture.zoom

    with gallery.show("walk", "z=0.7&c=2000,900") as page:
        x, y = middle_of(page, 0.3, 0.6)
        before = under(x, y)
        for turn in (-100, -240, -333, 150, -240, -240, -240, -240, -240, -240, -240):
            page.mouse.wheel(0, turn)
            settled(page)
            after = under(x, y)
            assert max(abs(one - other) for one, other in zip(before, after, strict=True)) < 1e-6
            hover = page.evaluate("document.getElementById('explorer').attnscope.map.hover")
            assert (hover["query"], hover["key"]) == (int(before[0]), int(before[1]))
        assert state_of(page)["zoom"] == view_of(page, LENGTH, LENGTH).zoom == 64


def test_a_preview_says_so_until_the_picture_is_built(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = pyramid._scale

    def slow_scale(*arguments: Any) -> Callable[[float], object]:
        """Progress that the page has time to ask for."""
        report = scale(*arguments)
        return lambda share: (report(share), time.sleep(0.05))

    monkeypatch.setattr(pyramid, "_scale", slow_scale)
    length = 16_384
    head = random_head(length, dim=64, seed=5)
    gallery.hang("unbuilt", head)
    with opened(gallery.browser, "about:blank", ready=False, **WINDOW) as page:
        page.add_init_script(HEAR)
        page.goto(gallery.address("unbuilt", "r=-32,0"))
        page.wait_for_selector(".map[data-state=preview]", timeout=20_000)
        preview = taken(page, length, length)
        assert (preview.entries(preview.rows(), preview.columns()) >= 0).mean() > 0.4  # the triangle is there
        page.wait_for_selector(".map[data-state=ready]", timeout=60_000)
        said = page.evaluate("window.written.splice(0)")
        settled(page)
        page.mouse.move(5, 5)
        middle_of(page)  # and so it is drawn again
        settled(page)
        after = page.evaluate("window.written")
        picture = taken(page, length, length)
    shares = [int(found[1]) for text in said if (found := re.fullmatch(r"sampled preview, building (\d+) ?%", text))]
    assert shares == sorted(shares)
    assert len(set(shares)) > 1
    assert after
    assert not any("preview" in text for text in after)
    band = int(picture.rows().bins[-1])
    rows, columns = picture.rows().of([band]), picture.columns()
    truth = head.pooled(picture.stride, band)[0][columns.bins]
    assert wrong(picture, rows, columns, np.tile(truth, (len(rows.bins), 1))) == []
