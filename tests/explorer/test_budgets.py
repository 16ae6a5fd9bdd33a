"""What the explorer may cost: milliseconds to the first picture, for a tile and for a frame."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page

from attnscope.models import load, load_tokenizer
from attnscope.recording import Trace, read
from tests.explorer.browser import needs_chromium, opened, wait_until_ready
from tests.explorer.gallery import Gallery, opened_gallery
from tests.explorer.picture import settled, table
from tests.explorer.synthetic import random_head, trace_of
from tests.explorer.timing import COUNT, Frames, answer_times, kept, p95, reference
from tests.models.smollm2 import FOLDER

pytestmark = [pytest.mark.timed, needs_chromium]

ROOT = Path(__file__).resolve().parents[2]
SHAKESPEARE = ROOT.parent / "shared" / "data" / "tinyshakespeare.txt"
SHORT, LONG, READ = 1000, 131_072, 8192
FRAME = 16.7  # milliseconds between the frames of a screen
LATE, LATE_FINE = 20.0, 50.0  # at most; with four times the pixels
TILES_AT_ONCE = 40


@pytest.fixture(scope="module")
def gallery(browser: Browser) -> Iterator[Gallery]:
    with opened_gallery(browser) as found:
        found.hang("short", random_head(SHORT))
        yield found


@pytest.fixture(scope="module")
def long_gallery(gallery: Gallery) -> Gallery:
    """2 layers of 2 heads of 131,072 tokens; the pyramid of the first head takes about a minute on two cores."""
    heads = [[random_head(LONG, dim=64, seed=10 * layer + head) for head in range(2)] for layer in range(2)]
    gallery.hang("long", heads[0][0], trace_of(heads))
    gallery.build("long")
    return gallery


@pytest.fixture(scope="module")
def book_gallery(gallery: Gallery) -> Gallery:
    """What SmolLM2 attends to in 8,192 tokens of Shakespeare, in two of its layers."""
    if not SHAKESPEARE.exists() or not FOLDER.exists():
        pytest.skip("needs tinyshakespeare.txt, 1.1 MB of Shakespeare's plays, and the weights of SmolLM2-135M")
    gallery.hang("book", random_head(READ), book())
    gallery.build("book")
    return gallery


def book() -> Trace:
    model, tokenizer = load(FOLDER), load_tokenizer(FOLDER)
    ids = tokenizer.encode(SHAKESPEARE.read_text()[: READ * 6])[:READ]
    return read(model, torch.tensor([ids]), tokenizer, layers=[3, 20], progress=False)


@contextmanager
def counted(gallery: Gallery, name: str, query: str = "", **options: Any) -> Iterator[Page]:
    """A page of a head whose script's time is counted."""
    with opened(gallery.browser, "about:blank", ready=False, fresh=True, **options) as page:
        page.add_init_script(COUNT)
        page.goto(gallery.address(name, query))
        wait_until_ready(page)
        settled(page)
        yield page


def place_of(page: Page) -> tuple[float, float]:
    box = page.locator("canvas.map-heat").bounding_box()
    assert box
    return box["x"] + box["width"] / 3, box["y"] + box["height"] / 2


def pan(page: Page) -> None:
    """To and fro for a second or two, by hand."""
    x, y = place_of(page)
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(60):
        page.mouse.move(x + 6 * (15 - abs(step % 30 - 15)), y - 4 * (15 - abs(step % 30 - 15)))
    page.mouse.up()


def zoom(page: Page) -> None:
    """In and out for a second or two, by the wheel."""
    page.mouse.move(*place_of(page))
    for step in range(40):
        page.mouse.wheel(0, -40 if step % 20 < 10 else 40)
        page.wait_for_timeout(10)


def frames_of(page: Page, move: Callable[[Page], None]) -> tuple[float, float, float]:
    """Medians of three runs: 95th percentiles of the time between frames and of script a frame; the longest task."""
    runs = []
    for _ in range(3):
        settled(page)
        frames = Frames(page)
        move(page)
        between, busy, long_tasks = frames.end()
        assert sum(part > 0.1 for part in busy) > 20  # or nothing has moved
        runs.append((p95(between), p95(busy), max(long_tasks, default=0.0)))
    first, second, third = (median(run[part] for run in runs) for part in range(3))
    return first, second, third


def smooth(gallery: Gallery, name: str, query: str, *, late: float = LATE, **options: Any) -> None:
    """Frames come in time while one pans and zooms, with little script in them and no long task.

    On a busy machine even a page that draws next to nothing is late: then its pace is what frames are held to.
    """
    with counted(gallery, name, query, **options) as page:
        for move in (pan, zoom):

            def measure(move: Callable[[Page], None] = move) -> dict[str, tuple[float, float]]:
                pace = reference(page)
                between, busy, longest = frames_of(page, move)
                return {
                    f"{name} {move.__name__}: frames": (between, late * (pace / FRAME if pace > LATE else 1.0)),
                    f"{name} {move.__name__}: script": (busy, 8),
                    f"{name} {move.__name__}: longest task": (longest, 50),
                }

            assert kept(measure)


def first_times(gallery: Gallery, name: str) -> tuple[float, float]:
    """Milliseconds from the start of a visit to the first paint and to the first heatmap."""
    with opened(gallery.browser, gallery.address(name), fresh=True) as page:
        painted, drawn = page.evaluate(
            """() => [performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? Infinity,
                 performance.getEntriesByName("first-heatmap")[0].startTime]"""
        )
    return painted, drawn


def test_a_short_text_is_there_in_300_and_drawn_in_600_milliseconds(gallery: Gallery) -> None:
    def measure() -> dict[str, tuple[float, float]]:
        painted, drawn = first_times(gallery, "short")
        return {"first paint": (painted, 300), "first heatmap of 1,000 tokens": (drawn, 600)}

    assert kept(measure)


def test_a_short_head_of_which_nothing_is_known_is_there_in_600_milliseconds(gallery: Gallery) -> None:
    """Its margins over a connection, and the map and its margins after another head in a page."""
    seeds = count(100)

    def measure() -> dict[str, tuple[float, float]]:
        heads = [random_head(3 * SHORT, seed=next(seeds)) for _ in range(3)]
        gallery.hang("fresh", heads[0], trace_of([heads]))
        path = f"/api/1/{gallery.traces['fresh']}/0/2/marginal"
        margins = answer_times(gallery.server, [f"{path}/{kind}/1/0" for kind in ("received", "entropy")])
        with gallery.show("fresh", "", fresh=True) as page:
            page.locator(".map").focus()
            begun = time.perf_counter()
            page.keyboard.press("]")
            settled(page)
            switched = (time.perf_counter() - begun) * 1000
        return {"margins": (sum(margins), 600), "another head": (switched, 600)}

    assert kept(measure)


def test_131072_tokens_are_drawn_in_a_second(long_gallery: Gallery) -> None:
    assert kept(lambda: {"first heatmap of 131,072 tokens": (first_times(long_gallery, "long")[1], 1000)})


def tile_times(gallery: Gallery, chance: random.Random, stride: int, *, again: bool = False) -> float:
    """The 95th percentile of some tiles all over the triangle, each asked for the first time, or for the second."""
    path = f"/api/1/{gallery.traces['long']}/0/0"
    across = LONG // (256 * stride)
    tiles = []
    while len(tiles) < TILES_AT_ONCE:
        y = chance.randrange(across)
        tiles.append(f"{path}/{9 - (stride.bit_length() - 1)}/{y}/{chance.randrange(y + 1)}?ch=mean")
    first = answer_times(gallery.server, list(dict.fromkeys(tiles)))
    return p95(answer_times(gallery.server, tiles) if again else first)


@pytest.mark.parametrize(
    ("stride", "again", "bound"), [(1, True, 30), (1, False, 60), (2, False, 250), (8, False, 250)]
)
def test_tiles_of_131072_tokens_come_in_time(long_gallery: Gallery, stride: int, again: bool, bound: int) -> None:
    name = f"tile of stride {stride}{', asked for again' if again else ''}"
    chance = random.Random(name)  # or one test would ask for what another has left in the cache
    assert kept(lambda: {name: (tile_times(long_gallery, chance, stride, again=again), bound)})


@pytest.mark.parametrize("query", ["", "z=12&c=4000,3950"])
def test_a_book_with_all_its_names_moves_smoothly(book_gallery: Gallery, query: str) -> None:
    smooth(book_gallery, "book", query)


def test_a_book_is_drawn_in_a_second(book_gallery: Gallery) -> None:
    assert kept(lambda: {"first heatmap of 8,192 tokens of a book": (first_times(book_gallery, "book")[1], 1000)})


# From the key to the first frame whose heatmap has a colour of a weight again, by a pixel of the last rows.
FIRST_PICTURE = """(known) => new Promise((resolve) => {
  const colours = new Set(known), canvas = document.querySelector("canvas.map-heat"), pen = canvas.getContext("2d");
  // A text is as wide as it is high: below or beside it the plot may be empty.
  const [begun, y] = [performance.now(), Math.min(canvas.width, canvas.height) - 20];
  let isGone = false;
  const look = () => {
    const [red, green, blue] = pen.getImageData(10, y, 1, 1).data;
    const isWeight = colours.has(red | green << 8 | blue << 16);
    isGone ||= !isWeight;
    if ((isGone && isWeight) || performance.now() - begun > 5000) return resolve(performance.now() - begun);
    requestAnimationFrame(look);
  };
  const press = new KeyboardEvent("keydown", { key: "]", bubbles: true, composed: true });
  document.querySelector(".map").dispatchEvent(press);
  requestAnimationFrame(look);
})"""


def test_another_head_of_8192_tokens_has_a_picture_in_300_milliseconds(book_gallery: Gallery) -> None:
    """Each head is visited for the first time; there are eighteen."""
    known = [int(red) | int(green) << 8 | int(blue) << 16 for red, green, blue in table("cividis")]
    with book_gallery.show("book", "", fresh=True) as page:
        page.locator(".map").focus()

        def measure() -> dict[str, tuple[float, float]]:
            times = []
            for _ in range(4):
                times.append(page.evaluate(FIRST_PICTURE, known))
                settled(page)
            return {"another head of 8,192 tokens, first picture": (median(times), 300)}

        assert kept(measure)


@pytest.mark.parametrize("query", ["", "z=1&c=90000,60000", "z=16&c=90000,60000"])
def test_131072_tokens_move_smoothly(long_gallery: Gallery, query: str) -> None:
    smooth(long_gallery, "long", query)


def test_131072_tokens_move_on_a_fine_screen(long_gallery: Gallery) -> None:
    smooth(long_gallery, "long", "z=1&c=90000,60000", late=LATE_FINE, device_scale_factor=2)


def test_all_tiles_in_view_are_recoloured_in_16_milliseconds_of_script(long_gallery: Gallery) -> None:
    with counted(long_gallery, "long", "z=1&c=90000,60000") as page:
        page.locator(".map").focus()

        def measure() -> dict[str, tuple[float, float]]:
            longest = []
            for _ in range(7):
                frames = Frames(page)
                page.wait_for_timeout(150)
                page.keyboard.press("l")
                page.wait_for_timeout(150)
                longest.append(max(frames.end()[1]))
            assert min(longest) > 0.5  # or nothing was recoloured
            return {"recolouring": (median(longest), 16)}

        assert kept(measure)
