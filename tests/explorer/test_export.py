"""What is exported is what is shown: pictures are read back to weights, tables are the weights themselves."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from attnscope.recording import Trace
from tests.explorer.browser import needs_chromium, slow_cases
from tests.explorer.exported import drawn_svg, opened_export, picture_in, pixels_of, saved, size_of
from tests.explorer.gallery import Gallery, opened_gallery
from tests.explorer.pages import change, drawn, ready, shown, small_served, until
from tests.explorer.picture import Line, Picture, agrees, settled
from tests.explorer.serving import Handle, serving
from tests.explorer.synthetic import Synthetic, random_head
from tests.explorer.test_access import SIZES, needs_axe, violations_in_every_look
from tests.explorer.test_hostile import HOSTILE, IMAGE, SCRIPT, UNSAFE, assert_nothing_ran, served, watched, weights

pytestmark = needs_chromium

VALUES_FROM = 34  # pixels a cell: numbers are written into larger ones
HALF_A_NUMBER = 8  # pixels above and below the middle of a cell that its number takes
NAMES = {"{http://www.w3.org/2000/svg}" + name for name in ("svg", "defs", "clipPath", "path", "pattern", "rect", "g")}
NAMES |= {"{http://www.w3.org/2000/svg}image", "{http://www.w3.org/2000/svg}text"}
LINK = "{http://www.w3.org/1999/xlink}href"
ROUNDING = 2  # of 255: letters are laid over the map in one step or in two
HATCH = 0xD3 - ROUNDING  # the darkest part of its colours
MAPS = "#explorer .map:visible"
BOTH_CANVASES = """(map) => {
  const [heat, overlay] = map.querySelectorAll("canvas");
  const both = document.createElement("canvas");
  [both.width, both.height] = [overlay.width, overlay.height];
  const pen = both.getContext("2d");
  pen.fillStyle = "white";
  pen.fillRect(0, 0, both.width, both.height);
  pen.drawImage(heat, parseFloat(heat.style.left), parseFloat(heat.style.top));
  pen.drawImage(overlay, 0, 0);
  return both.toDataURL();
}"""
VIEWS = {"5": "r=-32,0", "257": "r=-32,0&agg=mean", "1000": "r=-32,0&agg=mean&z=3.7&c=700,500"}


@pytest.fixture(scope="module")
def gallery(browser: Browser) -> Iterator[Gallery]:
    with opened_gallery(browser) as found:
        for length in (5, 257, 1000):
            found.hang(str(length), random_head(length, seed=length))
        found.hang("full", random_head(300, causal=False))
        found.hang("long", random_head(16_384))
        yield found


def clear_of_numbers(line: Line, picture: Picture, first: float) -> Line:
    """The pixels of rows that lie above and below the numbers in cells."""
    if picture.zoom < VALUES_FROM:
        return line
    place = (first + (line.pixels + 0.5) / picture.zoom / picture.scale) % 1
    chosen = np.abs(place - 0.5) * picture.zoom > HALF_A_NUMBER
    return Line(line.pixels[chosen], line.bins[chosen])


def assert_is_of(head: Synthetic, picture: Picture) -> None:
    """Every pixel that belongs to one bin beyond doubt shows that bin."""
    rows, columns = clear_of_numbers(picture.rows(), picture, picture.query), picture.columns()
    bands, place = np.unique(rows.bins, return_inverse=True)
    assert len(bands) >= min(head.queries, 100)
    assert len(np.unique(columns.bins)) >= min(head.keys, 100)
    if picture.stride == 1:
        truth = head.rows(bands.tolist())[place]
    else:
        truth = np.stack([head.pooled(picture.stride, band)[0] for band in bands.tolist()])[place]
    right = agrees(picture.entries(rows, columns), truth[:, columns.bins], picture.range)
    assert right.all(), f"{(~right).sum()} of {right.size} pixels, the first at {np.argwhere(~right)[0]}"


@pytest.mark.parametrize("density", [*slow_cases(1), 2])
@pytest.mark.parametrize("name", ["257", *slow_cases("5", "1000")])
def test_a_png_of_any_size_shows_the_weights(gallery: Gallery, name: str, density: int) -> None:
    head = gallery.heads[name]
    with gallery.show(name, VIEWS[name], device_scale_factor=density) as page:
        for scale in (1, 2, 4):
            called, png = saved(page, "PNG", scale)
            assert re.fullmatch(r"synthetic_L0H0_q\d+-\d+_k\d+-\d+\.png", called)
            pixels = pixels_of(png)
            told = re.search(r"([\d,]+) × ([\d,]+) pixels", page.inner_text(".export"))
            assert told
            assert pixels.shape[1::-1] == tuple(int(part.replace(",", "")) for part in told.groups())
            assert_is_of(head, picture_in(page, head, pixels, scale))


@pytest.mark.parametrize("name", ["5", *slow_cases("257", "1000")])
def test_an_svg_shows_the_weights_however_it_is_enlarged(gallery: Gallery, tmp_path: Path, name: str) -> None:
    head = gallery.heads[name]
    with gallery.show(name, VIEWS[name]) as page:
        called, svg = saved(page, "SVG")
        (tmp_path / called).write_bytes(svg)
        for scale in (1, 2, 4):
            pixels = drawn_svg(gallery.browser, tmp_path / called, scale)
            assert_is_of(head, picture_in(page, head, pixels, scale))


@pytest.mark.parametrize(
    ("name", "query"), [*slow_cases(("full", "r=-32,0&agg=mean&sink=hide")), ("257", "r=-32,0&sink=hide")]
)
def test_a_hidden_first_token_is_hidden_in_pictures_too(
    gallery: Gallery, tmp_path: Path, name: str, query: str
) -> None:
    head = gallery.heads[name]
    with gallery.show(name, query) as page:
        pictures = {1: pixels_of(saved(page, "PNG", 1)[1])}
        (tmp_path / "drawing.svg").write_bytes(saved(page, "SVG")[1])
        pictures[2] = drawn_svg(gallery.browser, tmp_path / "drawing.svg", 2)
        for scale, pixels in pictures.items():
            picture = picture_in(page, head, pixels, scale)
            rows = picture.rows()
            hidden, next_to = (picture.columns().of([column]) for column in (0, 5))
            assert (picture.entries(rows, hidden) == -1).all()
            assert (picture.entries(rows.of(list(range(5, head.queries))), next_to) >= 0).all()


def screens(page: Page) -> list[np.ndarray]:
    """The maps on the page, each with what is written over it."""
    found = [one.evaluate(BOTH_CANVASES).partition(",")[2] for one in page.locator(MAPS).all()]
    return [pixels_of(base64.b64decode(one)).astype(int) for one in found]


@pytest.mark.parametrize("mode", ["ratio", *slow_cases("split", "side")])
def test_two_heads_are_exported_as_they_are_shown(browser: Browser, small: Handle, tmp_path: Path, mode: str) -> None:
    with shown(browser, small.url) as page:
        change(page, layer=1, head=2, compare={"trace": "", "layer": 0, "head": 1, "mode": mode})
        until(page, lambda: page.locator(MAPS).count() == (2 if mode == "side" else 1), "the maps")
        settled(page)
        page.wait_for_timeout(300)
        png = pixels_of(saved(page, "PNG", 1)[1]).astype(int)
        _, svg = saved(page, "SVG")
        page.keyboard.press("Escape")
        maps, left = screens(page), 0
        for screen in maps:
            picture = png[: screen.shape[0], left : left + screen.shape[1]]
            different = (np.abs(screen - picture) > ROUNDING).any(-1)
            # The lines of the hatch begin at the corner of the canvas, which is another one.
            assert (screen[different][:, :3] >= HATCH).all()
            left += screen.shape[1]
        assert left == png.shape[1]
    words = "".join(ElementTree.fromstring(svg).itertext())
    assert ("log2 of L1H2 / L0H1" if mode == "ratio" else "L1H2 and L0H1") in words
    (tmp_path / "two.svg").write_bytes(svg)
    drawing = drawn_svg(browser, tmp_path / "two.svg", 1)
    assert len(np.unique(drawing.view(np.uint32))) > 100, "as many colours"


# Pairs of texts of a drawing that touch; the box of a slanted one is mostly empty, so two of them do not count.
TOUCHING = """() => {
  const all = [...document.querySelectorAll("text")].filter((one) => one.textContent.trim() !== "").map((one) => {
    const { left, right, top, bottom } = one.getBoundingClientRect();
    const { width, height } = one.getBBox();
    const slanted = Math.abs(right - left - width) + Math.abs(bottom - top - height) > 1;
    // A box is a line high, which is more than its letters are.
    const less = slanted ? 3 : 0.2 * (bottom - top);
    return { text: one.textContent, slanted, left: left + 1, right: right - 1, top: top + less, bottom: bottom - less };
  });
  const { width, height } = document.documentElement.viewBox.baseVal;
  const found = [];
  all.forEach((one, index) => {
    const inside = one.left >= -1 && one.top >= -1 && one.right <= width + 1 && one.bottom <= height + 1;
    if (!inside) found.push([one.text, "outside"]);
    for (const other of all.slice(index + 1)) {
      if (one.slanted && other.slanted) continue;
      if (one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom)
        found.push([one.text, other.text]);
    }
  });
  return found;
}"""


def touching(browser: Browser, svg: bytes, folder: Path) -> list[list[str]]:
    """The texts of a drawing that touch others or leave it, at a size at which a unit is a pixel."""
    root = ElementTree.fromstring(svg)
    width, height = root.attrib["viewBox"].split()[2:]
    root.attrib.update(width=width, height=height)
    (folder / "figure.svg").write_bytes(ElementTree.tostring(root))
    with browser.new_context(offline=True) as context:
        page = context.new_page()
        page.goto((folder / "figure.svg").as_uri())
        return page.evaluate(TOUCHING)


def test_nothing_touches_anything_else_in_a_figure_of_any_size(browser: Browser, small: Handle, tmp_path: Path) -> None:
    with shown(browser, small.url, width=1280, height=720) as page:
        change(page, pinQuery=0, pinKey=1)
        drawn(page)
        assert touching(browser, saved(page, "SVG")[1], tmp_path) == [], "as shown"
        sizes = [("single column", 8), ("single column", 6), ("double column", 8), ("double column", 14)]
        for size, points in sizes:
            page.click(f".export .segments button:has-text('{size}')")
            page.fill(".export input[aria-label='Size of the letters in points']", str(points))
            for heads in ("", "L0H1 L1H2 L1H0"):
                page.fill(".export input[aria-label='Other heads']", heads)
                _, svg = saved(page, "SVG")
                assert touching(browser, svg, tmp_path) == [], (size, points, heads)
                root = ElementTree.fromstring(svg)
                assert root.attrib["width"] == {"single column": "3.25in", "double column": "6.75in"}[size]
                titles = [one.text for one in root.iter() if one.attrib.get("font-weight") == "600"]
                assert titles == ["L0H0", *heads.split()]
                assert "“" in "".join(root.itertext()), "the caption names the text"
        for part in ("title", "tags", "strips", "legend", "caption", "mask"):
            page.click(f".export input[name={part}]")
        _, bare = saved(page, "SVG")
        left = [one.text or "" for one in ElementTree.fromstring(bare).iter() if one.tag.endswith("}text")]
        assert left
        assert all(re.fullmatch(r"[\d,]+", text) for text in left), "only positions are left"
        assert b"#d3d8de" not in bare, "no hatch"
        page.fill(".export input[aria-label='Other heads']", "L9H9")
        page.click(".export button:text-is('Save SVG')")
        until(page, lambda: "There is no head L9H9" in page.inner_text(".export-says"), "the reason")


@pytest.mark.slow
def test_screen_and_png_are_drawn_alike_but_for_what_helps_to_move(gallery: Gallery) -> None:
    """A zoomed view has a minimap on the screen alone; the pointer leaves no trace in a picture."""
    with gallery.show("1000", "r=-20,0&z=3.7&c=700,500&pin=q690,k480") as page:
        box = page.locator("canvas.map-heat").bounding_box()
        assert box
        _, before = saved(page, "PNG", 1)
        page.keyboard.press("Escape")
        page.mouse.move(box["x"] + 100, box["y"] + 100)
        page.wait_for_timeout(100)
        _, after = saved(page, "PNG", 1)
        assert before == after
        page.keyboard.press("Escape")
        page.mouse.move(0, 0)
        settled(page)
        (screen,) = screens(page)
        picture = pixels_of(after)[: screen.shape[0], : screen.shape[1]].astype(int)
        places = np.argwhere((np.abs(screen - picture) > ROUNDING).any(-1))
        sides = places.max(0) - places.min(0)
        assert 90 < sides.min() <= sides.max() < 160, "the minimap, and nothing else, is on the screen alone"


@pytest.mark.slow
def test_a_picture_is_on_white_or_as_the_page_is(browser: Browser) -> None:
    with small_served() as handle, shown(browser, handle.url, color_scheme="dark") as page:
        drawn(page)
        _, white = saved(page, "PNG", 1)
        page.click(".export label:has-text('on white')")
        _, dark = saved(page, "PNG", 1)
    assert pixels_of(white)[0, 0].tolist() == [255, 255, 255, 255]
    assert pixels_of(dark)[0, 0].tolist() == [0x14, 0x17, 0x1A, 255]


def test_tables_are_the_exact_weights_in_view(gallery: Gallery) -> None:
    head = gallery.heads["1000"]
    with gallery.show("1000", VIEWS["1000"]) as page:
        view = page.evaluate("document.getElementById('explorer').attnscope.map.visible()")
        (rows, after), (columns, end) = view["query"], view["key"]
        truth = head.rows(range(rows, after))[:, columns:end]
        called, npy = saved(page, "NPY")
        assert called == f"synthetic_L0H0_q{rows}-{after - 1}_k{columns}-{end - 1}.npy"
        assert f"{-(-len(npy) // 1000):,} KB" in page.inner_text(".export-kinds")
        array = np.load(io.BytesIO(npy))
        assert array.dtype == np.float32
        assert np.array_equal(np.isnan(array), np.isnan(truth))
        assert np.allclose(array, truth, rtol=1e-4, atol=1e-9, equal_nan=True)
        _, text = saved(page, "CSV")
    table = list(csv.reader(io.StringIO(text.decode("utf-8-sig"))))
    assert [row[0].split()[0] for row in table[1:]] == [str(place) for place in range(rows, after)]
    assert [name.split()[0] for name in table[0][1:]] == [str(place) for place in range(columns, end)]
    told = np.array([[float(cell or "nan") for cell in row[1:]] for row in table[1:]], np.float32)
    assert np.array_equal(told, array, equal_nan=True)


def test_more_pairs_than_a_table_holds_are_refused_with_what_to_do(gallery: Gallery) -> None:
    gallery.hang("2100", random_head(2100))
    with gallery.show("2100", "") as page:
        opened_export(page)
        assert page.locator(".export button:text-is('Save CSV')").is_disabled()
        said = page.inner_text(".export-kinds")
        assert said.count("4,410,000 pairs in view, and 4,194,304 fit into a file: zoom in.") == 2
        assert page.locator(".export button:text-is('Save PNG')").is_enabled()


@pytest.mark.slow
def test_the_dialog_is_used_by_keyboard_alone_and_gives_the_map_back(browser: Browser, small: Handle) -> None:
    with shown(browser, small.url) as page:
        opened_export(page)
        assert page.evaluate("document.activeElement.textContent") == "Save PNG"
        with page.expect_download() as found:
            page.keyboard.press("Enter")
        assert found.value.suggested_filename.endswith(".png")
        until(page, lambda: page.inner_text(".export-says").startswith("Saved Decoder_L0H0_q0-71_k0-71.png"), "word")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog.export", state="detached")  # its end is told in a task of its own
        assert page.evaluate("document.activeElement.classList.contains('map')")
        page.keyboard.press("Escape")
        page.keyboard.press("h")  # keys work again
        until(page, lambda: "/heads" in page.evaluate("location.hash"), "the heads")


@pytest.mark.slow
def test_where_no_map_is_in_view_the_whole_head_is_saved(browser: Browser, small: Handle) -> None:
    with shown(browser, small.url) as page:
        address = page.evaluate("location.hash").partition("?")[0].replace("/map", "/text")
        page.goto("about:blank")
        page.goto(f"{small.base}/{address}")
        page.wait_for_selector(".text-view[data-state=ready]")
        called, npy = saved(page, "NPY")
    assert called == "Decoder_L0H0_q0-71_k0-71.npy"
    assert np.load(io.BytesIO(npy)).shape == (72, 72)


@pytest.mark.slow
def test_closing_the_dialog_gives_up_what_is_being_made(gallery: Gallery) -> None:
    with gallery.show("long", "") as page:
        downloads: list[object] = []
        page.on("download", lambda download: downloads.append(download))
        opened_export(page)
        with page.expect_event("requestfailed", lambda request: "/page?" in request.url):
            page.click(".export button:text-is('Save HTML')")
            page.wait_for_timeout(200)
            page.keyboard.press("Escape")
        page.wait_for_timeout(300)
        assert downloads == []


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_serious_in_the_dialog(browser: Browser, small: Handle, size: str) -> None:
    with shown(browser, small.url, **SIZES[size]) as page:
        opened_export(page)
        assert violations_in_every_look(page, "export") == {}
        assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0


@pytest.fixture(scope="module")
def hostile() -> Iterator[Handle]:
    """Hostile tokens, in a trace, a model and layers of hostile names."""
    trace = Trace.from_attentions({f"{SCRIPT}\u202e": weights(len(HOSTILE))}, tokens=HOSTILE)
    trace.model = f"../..\\{IMAGE}{SCRIPT}\u202egnp.exe\u0000{'M' * 5000}"
    with served(trace, f"{SCRIPT}\u202e{'T' * 5000}") as handle:
        yield handle


@pytest.fixture
def exporting(browser: Browser, hostile: Handle) -> Iterator[Page]:
    with watched(browser, hostile.url) as page:
        ready(page)
        change(page, pinQuery=12, pinKey=9, zoom=28)
        drawn(page)
        yield page
        assert_nothing_ran(page)


def test_hostile_names_make_harmless_file_names(exporting: Page) -> None:
    for kind in ("PNG", "SVG", "CSV", "NPY", "HTML"):
        called, content = saved(exporting, kind)
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{1,60}_L0H0_q\d+-\d+_k\d+-\d+\.[a-z]{3,4}", called), called
        assert ".." not in called.replace("../", "")
        assert content


def test_hostile_tokens_in_a_drawing_are_text_and_nothing_else(
    exporting: Page, browser: Browser, tmp_path: Path
) -> None:
    _, svg = saved(exporting, "SVG")
    root = ElementTree.fromstring(svg)
    assert {one.tag for one in root.iter()} <= NAMES
    attributes = [(name, value) for one in root.iter() for name, value in one.attrib.items()]
    assert not [name for name, _ in attributes if name.startswith("on")]
    assert all(value.startswith("data:image/png;base64,") for name, value in attributes if name == LINK)
    assert {value for name, value in attributes if name == "style"} == {"image-rendering: pixelated;"}
    assert not [value for _, value in attributes if re.search(r"https?:|javascript:|file:", value)]
    texts = [one.text or "" for one in root.iter() if one.tag.endswith("}text")]
    assert any("<script>" in text for text in texts)
    assert not [text for text in texts if set(UNSAFE) & set(text)]
    assert max(map(len, texts)) < 32 * 16
    assert len(svg) < 1_000_000
    (tmp_path / "hostile.svg").write_bytes(svg)
    requests: list[str] = []
    width, height = size_of(svg)
    with browser.new_context(viewport={"width": width, "height": height}) as context:
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.goto((tmp_path / "hostile.svg").as_uri())
        assert page.evaluate("window.hacked") is None
    assert requests == [(tmp_path / "hostile.svg").as_uri()]


def test_hostile_tokens_in_a_table_are_no_formulas(exporting: Page) -> None:
    _, text = saved(exporting, "CSV")
    table = list(csv.reader(io.StringIO(text.decode("utf-8-sig"))))
    names = [*table[0][1:], *(row[0] for row in table[1:])]
    assert len({len(row) for row in table}) == 1
    assert all(re.match(r"\d+ ", name) for name in names)
    assert any("<script>" in name for name in names)
    cells = [cell for row in table[1:] for cell in row[1:]]
    assert all(cell == "" or 0 <= float(cell) <= 1 for cell in cells)


def test_what_a_page_does_not_know_of_is_not_exported_as_known(browser: Browser) -> None:
    """A trace without texts has numbers for names, in pictures as on the screen."""
    with (
        serving(random_head(40).trace(), page=True) as handle,
        shown(browser, handle.url) as page,
    ):
        drawn(page)
        _, svg = saved(page, "SVG")
    texts = [one.text or "" for one in ElementTree.fromstring(svg).iter() if one.tag.endswith("}text")]
    assert "0 2 4 6" in " ".join(texts)
    assert any(
        "synthetic · shown · L0H0 · weight, each pair, log2, -10 to 0 bits" in re.sub("[\u2068\u2069]", "", text)
        for text in texts
    )
