"""Pixels are numbers: what the browser draws is read back and held against weights in double precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page

from tests.explorer.browser import needs_chromium, slow_cases
from tests.explorer.gallery import Gallery, opened_gallery
from tests.explorer.pages import change
from tests.explorer.picture import (
    HALF_A_CODE,
    SINGLE_PRECISION,
    Line,
    Picture,
    agrees,
    entries_of,
    entry_bounds,
    sampled,
    settled,
    table,
    taken,
    view_of,
    wrong,
)
from tests.explorer.synthetic import Synthetic, planted_head, random_head

pytestmark = needs_chromium

LONG = 100_003
PLANTED_IN, PLANTED_STRIDE = 8_192, 16
PLANTED_BLOCK = 8  # bins along the side of a block with one mark: at most 16 pixels, as a bin has 1 to 2
LOW_WINDOW = {"width": 1000, "height": 420}  # a plot of fewer pixels than there are bins at the level below the first


@pytest.fixture(scope="module")
def gallery(browser: Browser) -> Iterator[Gallery]:
    with opened_gallery(browser) as found:
        for length in (1, 2, 5, 255, 256, 257, LONG):
            found.hang(str(length), random_head(length, seed=length))
        found.hang("full", random_head(300, causal=False))
        found.hang("cross", random_head(130, 300, causal=False))
        yield found


def picture_of(page: Page, head: Synthetic) -> Picture:
    return taken(page, head.queries, head.keys)


def truth_of(head: Synthetic, stride: int, rows: Line, columns: Line, *, maximum: bool = False) -> NDArray[np.float64]:
    """The weights that the pixels of these lines are to show."""
    bands, place = np.unique(rows.bins, return_inverse=True)
    if stride == 1:
        return head.rows(bands.tolist())[place][:, columns.bins]
    return np.stack([head.pooled(stride, band)[int(maximum)] for band in bands.tolist()])[place][:, columns.bins]


def check(picture: Picture, head: Synthetic, *, bands: list[int] | None = None, maximum: bool = False) -> None:
    """Every pixel that belongs to one bin beyond doubt shows that bin; of long heads, those of some rows of bins."""
    rows = picture.rows() if bands is None else picture.rows().of(bands)
    columns = picture.columns()
    assert len(rows.bins) >= min(head.queries, 2)
    assert len(columns.bins) >= min(head.keys, 12)  # of bins about a pixel wide, few have one of their own
    assert wrong(picture, rows, columns, truth_of(head, picture.stride, rows, columns, maximum=maximum)) == []


@pytest.mark.parametrize("name", ["cividis", "viridis", "magma", "grey"])
def test_every_colour_of_a_table_is_another(name: str) -> None:
    assert len(np.unique(table(name), axis=0)) == 256


@pytest.mark.parametrize("bits", [(-20.0, 0.0), (-32.0, 0.0)])
def test_every_code_inside_the_range_has_a_colour_of_its_own(bits: tuple[float, float]) -> None:
    low, high = entry_bounds(bits)[1:].T
    assert np.nanmax(high - low) <= 32 / 254 + 1e-9


@pytest.mark.parametrize(
    ("length", "scale"), [(1, 1), (5, 1), (257, 2), *slow_cases((2, 1), (5, 2), (255, 1), (256, 1), (256, 2), (257, 1))]
)
def test_the_whole_matrix_is_drawn_as_it_is_and_again_after_zooming_in_and_out(
    gallery: Gallery, length: int, scale: int
) -> None:
    head = gallery.heads[str(length)]
    with gallery.show(str(length), device_scale_factor=scale) as page:
        first = picture_of(page, head)
        assert first.stride == 1
        check(first, head)
        box = page.locator("canvas.map-heat").bounding_box()
        assert box
        page.mouse.move(box["x"] + min(200, length * first.zoom / 2), box["y"] + min(200, length * first.zoom / 2))
        for turn in (-240, 240, 240):
            page.mouse.wheel(0, turn)
            settled(page)
            check(picture_of(page, head), head)
        assert np.array_equal(picture_of(page, head).pixels, first.pixels)


@pytest.mark.parametrize(("length", "scale"), [*slow_cases((255, 1), (256, 2)), (257, 1)])
def test_the_last_cells_are_drawn_as_they_are_at_the_deepest_zoom(gallery: Gallery, length: int, scale: int) -> None:
    head = gallery.heads[str(length)]
    with gallery.show(str(length), f"r=-32,0&z=64&c={length},{length}", device_scale_factor=scale) as page:
        picture = picture_of(page, head)
        assert picture.zoom == 64
        assert picture.rows().bins[-1] == picture.columns().bins[-1] == length - 1
        check(picture, head)


@pytest.mark.parametrize(("query", "maximum"), [("r=-32,0", False), ("r=-32,0&agg=max", True)])
def test_two_by_two_cells_are_drawn_as_their_mean_and_as_their_maximum(
    gallery: Gallery, query: str, maximum: bool
) -> None:
    head = gallery.heads["257"]
    with gallery.show("257", query, **LOW_WINDOW) as page:
        picture = picture_of(page, head)
        assert (picture.stride, picture.level) == (2, 0)
        check(picture, head, maximum=maximum)


@pytest.mark.parametrize("colours", [*slow_cases("viridis"), "magma"])
def test_other_tables_and_a_narrow_range_show_the_same_numbers(gallery: Gallery, colours: str) -> None:
    head = gallery.heads["255"]
    with gallery.show("255", f"r=-12,-4&cm={colours}") as page:
        picture = picture_of(page, head)
        assert (picture.colours, picture.range) == (colours, (-12, -4))
        check(picture, head)


UNIFORM_BITS = 8  # the colours run from uniform attention to 2^8 times as much


@pytest.mark.parametrize(
    ("name", "query", "stride"), [("257", "", 2), ("cross", "scale=uniform", 1), *slow_cases(("257", "agg=max", 2))]
)
def test_far_out_colours_are_relative_to_uniform_attention(
    gallery: Gallery, name: str, query: str, stride: int
) -> None:
    """The weight of a bin times the keys that the query in its middle sees."""
    head = gallery.heads[name]
    with gallery.show(name, query, **(LOW_WINDOW if stride > 1 else {})) as page:
        picture = picture_of(page, head)
        assert picture.stride == stride
        rows, columns = picture.rows(), picture.columns()
        truth = truth_of(head, stride, rows, columns, maximum="max" in query)
        middle = rows.bins * stride + (stride - 1) / 2
        seen = np.minimum(head.keys, middle + 1) if name == "257" else np.full(len(middle), head.keys)
        with np.errstate(divide="ignore"):
            share = ((np.log2(truth) + np.log2(seen)[:, None]) / UNIFORM_BITS).clip(0, 1) * 255
        entries = picture.entries(rows, columns)
        assert ((entries < 0) == np.isnan(truth)).all()
        off = np.abs(entries - share)[~np.isnan(truth)]
        assert off.max() <= 0.5 + (HALF_A_CODE + SINGLE_PRECISION) / UNIFORM_BITS * 255
        assert len(np.unique(entries)) > 30
        if name == "257":
            change(page, scale="log")
            settled(page)
            assert not np.array_equal(picture_of(page, head).pixels, picture.pixels)


@pytest.mark.parametrize("name", [*slow_cases("full"), "cross"])
def test_without_a_mask_nothing_is_hatched(gallery: Gallery, name: str) -> None:
    head = gallery.heads[name]
    with gallery.show(name) as page:
        picture = picture_of(page, head)
        check(picture, head)
        assert (picture.entries(picture.rows(), picture.columns()) >= 0).all()
    with gallery.show(name, f"r=-32,0&z=20&c={head.queries},{head.keys}") as page:
        check(picture_of(page, head), head)


def test_a_weight_of_zero_is_the_darkest_colour_and_not_masked(gallery: Gallery) -> None:
    query, key = torch.full((8, 1), 40.0), torch.tensor([0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0])[:, None]
    head = Synthetic(query, key)
    gallery.hang("zeros", head)
    assert (head.rows(range(2, 8)).astype(np.float32)[:, :2] == 0).all()  # in double precision they are about 1e-157
    with gallery.show("zeros") as page:
        picture = picture_of(page, head)
        rows, columns = picture.rows(), picture.columns()
        entries, truth = picture.entries(rows, columns), truth_of(head, 1, rows, columns)
        assert (entries[truth < 1e-100] == 0).all()
        assert (entries[np.isnan(truth)] == -1).all()
        check(picture, head)


@pytest.fixture(scope="module")
def long_head(gallery: Gallery) -> Synthetic:
    """With its pyramid, which takes 25 s of one core."""
    gallery.build(str(LONG))
    return gallery.heads[str(LONG)]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "scale"), [("diagonal", 1), ("edge", 1), ("edge", 2), ("inside", 2)])
def test_cells_of_a_long_matrix_are_exact(gallery: Gallery, long_head: Synthetic, place: str, scale: int) -> None:
    centre = {"diagonal": "65536.5,65536.5", "edge": f"{LONG},{LONG}", "inside": "99000,4321.25"}[place]
    with gallery.show(str(LONG), f"r=-32,0&z=24&c={centre}", device_scale_factor=scale) as page:
        picture = picture_of(page, long_head)
        assert picture.stride == 1
        assert place != "edge" or picture.rows().bins[-1] == picture.columns().bins[-1] == LONG - 1
        check(picture, long_head)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zoom", "level", "scale"), [("0.375", 7, 2), ("0.375", 7, 1), ("0.048", 4, 1), (None, 0, 1), (None, 0, 2)]
)
def test_bins_of_a_long_matrix_are_the_means_of_their_cells(
    gallery: Gallery, long_head: Synthetic, zoom: str | None, level: int, scale: int
) -> None:
    """Levels that are computed when asked for, and that come from a pyramid.

    The last bin has 3 tokens of 4 at level 7; at the others so few that it has no pixel of its own.
    """
    query = "r=-32,0" if zoom is None else f"r=-32,0&z={zoom}&c={LONG},{LONG}"
    with gallery.show(str(LONG), query, device_scale_factor=scale, **(LOW_WINDOW if zoom is None else {})) as page:
        picture = picture_of(page, long_head)
        assert (picture.level, picture.stride) == (level, 512 >> level)
        owned = picture.rows().bins.tolist()
        assert (level, scale) != (7, 2) or owned[-1] == LONG // 4
        check(picture, long_head, bands=[owned[0], owned[-1]])


def test_two_hundred_strong_links_show_in_the_overview_of_a_diffuse_head(gallery: Gallery) -> None:
    head, links = planted_head(PLANTED_IN, 200)
    gallery.hang("planted", head)
    weights = head.rows([query for query, _ in links])[range(200), [key for _, key in links]]
    assert weights.min() > 0.8
    strongest: dict[tuple[int, int], float] = {}
    for (query, key), weight in zip(links, weights.tolist(), strict=True):
        here = query // PLANTED_STRIDE, key // PLANTED_STRIDE
        strongest[here] = max(weight, strongest.get(here, 0))
    colours = {}
    for channel in ("both", "mean", "max"):
        with gallery.show("planted", f"r=-20,0&agg={channel}", width=1600, height=1000, device_scale_factor=2) as page:
            page.wait_for_load_state("networkidle")  # the dots come after the colours
            colours[channel] = at_bins(page, list(strongest), "heat" if channel == "max" else "overlay")
    dotted, plain = ((colours[channel] == 255).all(1) for channel in ("both", "mean"))
    marks: dict[tuple[int, int], float] = {}  # of a block, the weight that has a mark
    for (row, column), weight, seen in zip(strongest, strongest.values(), dotted, strict=True):
        block = row // PLANTED_BLOCK, column // PLANTED_BLOCK
        marks[block] = max(marks.get(block, 0), weight * bool(seen))
    assert all(marks[row // PLANTED_BLOCK, column // PLANTED_BLOCK] > 0.8 for row, column in strongest)
    assert dotted.sum() == len(marks) > 150
    assert not plain.any()
    entries = entries_of(colours["max"], "cividis")
    assert agrees(entries, np.array(list(strongest.values())), (-20.0, 0.0)).all()


def at_bins(page: Page, bins: list[tuple[int, int]], layer: str) -> NDArray[np.uint8]:
    """The colours over the middle of bins of the overview."""
    picture = view_of(page, PLANTED_IN, PLANTED_IN)
    assert picture.stride == PLANTED_STRIDE
    rows, columns = picture.rows(), picture.columns()
    left, top = (0, 0) if layer == "heat" else (round(side * picture.scale) for side in picture.plot)
    points = [(left + int(columns.of([column]).pixels[0]), top + int(rows.of([row]).pixels[0])) for row, column in bins]
    return sampled(page, layer, points)
