"""Two heads at once: pixels of the pictures they share are read back, and moves and pins lead to the same tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page

from attnscope.explorer.library.library import Library
from attnscope.recording import Trace, read
from tests.explorer.browser import needs_chromium, slow_cases
from tests.explorer.gallery import Gallery
from tests.explorer.model_sessions import CHARACTERS, small
from tests.explorer.pages import MAP, change, drawn, fragment, in_trouble, state, until
from tests.explorer.picture import HALF_A_CODE, SINGLE_PRECISION, TABLES, Line, Picture, settled, shown, taken, wrong
from tests.explorer.serving import Handle, serving
from tests.explorer.synthetic import Synthetic, random_head, trace_of
from tests.explorer.test_access import SIZES, needs_axe, violations_in_every_look

pytestmark = needs_chromium

Values = NDArray[np.float64]
LONG = 4_101
LOW_WINDOW = {"width": 1000, "height": 420}
GREY, MIN_BITS, STEP = (176, 176, 176), -20, 2 * HALF_A_CODE
HATCH = np.linspace((244, 246, 248), (211, 216, 222), 100)  # its ground, its lines, and what lies between
ONE_TEXT, OTHER_TEXT = "the dog that bit the man fled", "the old dog that bit a man had fled"
BESIDE = ".beside"


class Pairs(Gallery):
    """Traces of two heads each, A and B."""

    def __init__(self, browser: Browser, server: Handle, library: Library) -> None:
        super().__init__(browser, server, library)
        self.others: dict[str, Synthetic] = {}

    def hang_two(self, name: str, one: Synthetic, other: Synthetic) -> None:
        self.hang(name, one, trace_of([[one, other]]))
        self.others[name] = other

    def compare(self, name: str, mode: str, query: str = "r=-32,0", **options: Any) -> AbstractContextManager[Page]:
        return self.show(name, f"{query}&cmp=L0H1,{mode}", **options)


@pytest.fixture(scope="module")
def pairs(browser: Browser) -> Iterator[Pairs]:
    library = Library()
    with serving(library, page=True) as server:
        found = Pairs(browser, server, library)
        for length in (1, 5, 255, 257, LONG):
            found.hang_two(str(length), random_head(length, seed=length), random_head(length, seed=length + 1))
        found.hang_two("full", *(random_head(130, 200, causal=False, seed=seed) for seed in (1, 2)))
        entry = found.library.entry(found.traces[str(LONG)])
        assert entry
        for head in range(2):
            found.library.head(entry, 0, head).atlas.build()
        yield found


@cache
def whole(head: Synthetic, stride: int, maximum: bool) -> Values:
    """All bins of a head that is not long."""
    if stride == 1:
        return head.rows(range(head.queries))
    return np.stack([head.pooled(stride, band)[int(maximum)] for band in range(-(-head.queries // stride))])


def bands_of(head: Synthetic, stride: int, bands: list[int]) -> Values:
    return np.stack([head.rows([band])[0] if stride == 1 else head.pooled(stride, band)[0] for band in bands])


def split_truth(one: Synthetic, other: Synthetic, stride: int, maximum: bool = False) -> Values:
    """Bins of A below the diagonal and on it; above it, B's with queries and keys exchanged."""
    below, above = whole(one, stride, maximum), whole(other, stride, maximum).T
    return np.where(np.tri(len(below), dtype=bool), below, above)


@cache
def ratio_table() -> NDArray[np.int64]:
    """The colours of ratios, (256, 3), straight between the published ones."""
    found = re.search(r"ratioAnchors = \[(.*?)\] as const", TABLES.read_text(), re.S)
    assert found
    anchors = np.array([[int(number) for number in row.split(",")] for row in re.findall(r"\[([\d, ]+)\]", found[1])])
    return np.stack(
        [np.floor(np.interp(np.arange(256), anchors[:, 0], anchors[:, channel]) + 0.5) for channel in (1, 2, 3)], 1
    ).astype(np.int64)


def hatched(picture: Picture, rows: Line, columns: Line) -> NDArray[np.bool_]:
    """Whether each pixel has a colour of the hatch; one of them is nearly the white of equal weights."""
    colours, place = np.unique(
        picture.pixels[np.ix_(rows.pixels, columns.pixels)].reshape(-1, 3), axis=0, return_inverse=True
    )
    near = np.abs(colours[:, None] - HATCH).max(2).min(1) <= 1
    return near[place].reshape(len(rows.pixels), len(columns.pixels))


def ratio_entries(picture: Picture, rows: Line, columns: Line) -> NDArray[np.int64]:
    """Which colour of the ratios each pixel has; -1 for a colour that is none of them, -2 for the grey of neither."""
    pixels = picture.pixels[np.ix_(rows.pixels, columns.pixels)].astype(np.int64) @ [65536, 256, 1]
    known = ratio_table() @ [65536, 256, 1]
    order = np.argsort(known)
    found = order[np.searchsorted(known, pixels, sorter=order).clip(max=255)]
    entries = np.where(known[found] == pixels, found, -1)
    entries = np.where(pixels == np.array(GREY) @ [65536, 256, 1], -2, entries)
    assert (hatched(picture, rows, columns) | (entries != -1)).all()
    return entries


def wrong_ratios(entries: NDArray[np.int64], one: Values, other: Values, bits: float) -> list[str]:
    """What does not show log2(A / B) to within a step of the code, 0.126 bits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.log2(one) - np.log2(other)
        larger = np.log2(np.fmax(one, other))
    masked = np.isnan(one) | np.isnan(other)
    # The entry of each difference of codes, told from the colours' definition alone.
    steps = np.arange(-126, 127) * STEP
    entry = np.floor((steps / bits + 1) / 2 * 255 + 0.5).clip(0, 255).astype(np.int64)
    low, high = np.full(256, np.inf), np.full(256, -np.inf)
    np.minimum.at(low, entry, steps)
    np.maximum.at(high, entry, steps)
    low[0], high[255] = -np.inf, np.inf
    slack = STEP + 2 * SINGLE_PRECISION
    inside = (exact >= low[entries] - slack) & (exact <= high[entries] + slack) & (entries >= 0)
    # The least that is compared is itself rounded to a code.
    small, large = larger < MIN_BITS + HALF_A_CODE, larger > MIN_BITS - HALF_A_CODE - STEP
    assert not masked.any() or (entries[masked] == -1).mean() > 0.9  # the others are of the hatch, too
    good = masked | ((entries == -2) & small) | (inside & large)
    return [
        f"{row}, {column}: A {one[row, column]:.3e} B {other[row, column]:.3e} is drawn as {entries[row, column]}"
        for row, column in np.argwhere(~good)[:5]
    ]


def pictured(page: Page, head: Synthetic, where: str = "") -> Picture:
    return taken(page, head.queries, head.keys, where)


@pytest.mark.parametrize(("name", "scale"), [*slow_cases(("1", 1), ("5", 2), ("255", 1)), ("257", 2)])
def test_a_split_square_is_a_below_the_diagonal_and_b_turned_over_above_it(pairs: Pairs, name: str, scale: int) -> None:
    one, other = pairs.heads[name], pairs.others[name]
    with pairs.compare(name, "split", device_scale_factor=scale) as page:
        picture = pictured(page, one)
        rows, columns = picture.rows(), picture.columns()
        assert picture.stride == 1
        truth = split_truth(one, other, 1)
        assert not np.isnan(truth).any()
        assert wrong(picture, rows, columns, truth[np.ix_(rows.bins, columns.bins)]) == []


@pytest.mark.parametrize(("query", "maximum"), [*slow_cases(("r=-32,0", False)), ("r=-32,0&agg=max", True)])
def test_bins_of_a_split_square_are_those_of_their_own_head(pairs: Pairs, query: str, maximum: bool) -> None:
    one, other = pairs.heads["257"], pairs.others["257"]
    with pairs.compare("257", "split", query, **LOW_WINDOW) as page:
        picture = pictured(page, one)
        rows, columns = picture.rows(), picture.columns()
        assert picture.stride == 2
        truth = split_truth(one, other, 2, maximum)
        assert wrong(picture, rows, columns, truth[np.ix_(rows.bins, columns.bins)]) == []


@pytest.mark.parametrize(("query", "stride"), [("r=-32,0", 32), *slow_cases(("r=-32,0&z=0.3&c=4101,2000", 4))])
def test_a_long_split_square_shows_both_at_every_level(pairs: Pairs, query: str, stride: int) -> None:
    """Coarse bins come from a pyramid, finer ones when asked for; one row has A, the diagonal and B."""
    one, other = pairs.heads[str(LONG)], pairs.others[str(LONG)]
    with pairs.compare(str(LONG), "split", query, **LOW_WINDOW) as page:
        picture = pictured(page, one)
        rows, columns = picture.rows(), picture.columns()
        assert picture.stride == stride
        band = int(rows.bins[len(rows.bins) // 2])
        beyond = columns.bins[columns.bins > band]
        assert len(beyond) > 10 or stride == 4
        truth = bands_of(one, stride, [band])[0]
        # Column by column, the other's rows.
        turned = {int(row): bands_of(other, stride, [int(row)])[0][band] for row in beyond[:12]}
        chosen = columns.of([*range(band + 1), *turned])
        expected = np.array([turned.get(int(column), truth[column]) for column in chosen.bins])
        mine = rows.of([band])
        assert wrong(picture, mine, chosen, np.broadcast_to(expected, (len(mine.bins), len(expected)))) == []


@pytest.mark.parametrize(
    ("name", "bits", "scale"),
    [*slow_cases(("5", 6.0, 1), ("255", 6.0, 1), ("255", 2.0, 1)), ("257", 10.0, 2), ("full", 6.0, 1)],
)
def test_a_ratio_is_that_of_the_exact_weights_to_an_eighth_of_a_bit(
    pairs: Pairs, name: str, bits: float, scale: int
) -> None:
    one, other = pairs.heads[name], pairs.others[name]
    with pairs.compare(name, "ratio", f"bits={bits:g}", device_scale_factor=scale) as page:
        picture = pictured(page, one)
        rows, columns = picture.rows(), picture.columns()
        assert picture.stride == 1
        here = np.ix_(rows.bins, columns.bins)
        entries = ratio_entries(picture, rows, columns)
        assert wrong_ratios(entries, whole(one, 1, False)[here], whole(other, 1, False)[here], bits) == []
        assert (entries > 140).any()
        assert ((entries >= 0) & (entries < 110)).any()


@pytest.mark.parametrize("maximum", [False, *slow_cases(True)])
def test_a_ratio_of_bins_is_that_of_their_means_or_of_their_maxima(pairs: Pairs, maximum: bool) -> None:
    one, other = pairs.heads["257"], pairs.others["257"]
    with pairs.compare("257", "ratio", "agg=max" if maximum else "agg=both", **LOW_WINDOW) as page:
        picture = pictured(page, one)
        rows, columns = picture.rows(), picture.columns()
        assert picture.stride == 2
        here = np.ix_(rows.bins, columns.bins)
        entries = ratio_entries(picture, rows, columns)
        assert wrong_ratios(entries, whole(one, 2, maximum)[here], whole(other, 2, maximum)[here], 6.0) == []


@pytest.mark.parametrize(("query", "stride"), [*slow_cases(("bits=6", 32)), ("bits=3&z=0.3&c=4101,2000", 4)])
def test_a_ratio_of_a_long_pair_is_right_at_every_level(pairs: Pairs, query: str, stride: int) -> None:
    one, other = pairs.heads[str(LONG)], pairs.others[str(LONG)]
    with pairs.compare(str(LONG), "ratio", query, **LOW_WINDOW) as page:
        picture = pictured(page, one)
        assert picture.stride == stride
        columns = picture.columns()
        owned = picture.rows().bins
        rows = picture.rows().of([int(owned[0]), int(owned[-1])])
        bands, place = np.unique(rows.bins, return_inverse=True)
        here, there = (bands_of(head, stride, bands.tolist())[place][:, columns.bins] for head in (one, other))
        assert wrong_ratios(ratio_entries(picture, rows, columns), here, there, float(query[5])) == []


def test_where_both_weights_are_below_a_millionth_a_ratio_is_grey_and_not_white(pairs: Pairs) -> None:
    one, other = (random_head(60, dim=4, seed=seed) for seed in (5, 6))
    hot = [Synthetic(head.query * 12, head.key) for head in (one, other)]
    pairs.hang_two("hot", *hot)
    with pairs.compare("hot", "ratio", "bits=6") as page:
        picture = pictured(page, one)
        rows, columns = picture.rows(), picture.columns()
        here = np.ix_(rows.bins, columns.bins)
        entries = ratio_entries(picture, rows, columns)
        above, below = (whole(head, 1, False)[here] for head in hot)
        assert wrong_ratios(entries, above, below, 6.0) == []
        assert (entries == -2).sum() > 100


def test_the_pair_under_the_pointer_is_said_exactly_for_both(pairs: Pairs) -> None:
    one, other = pairs.heads["255"], pairs.others["255"]
    with pairs.compare("255", "ratio", "z=20&c=100,50") as page:
        box = page.locator("canvas.map-heat").bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        cell = page.evaluate(f"{MAP}.hover")
        weights = [head.rows([cell["query"]])[0, cell["key"]] for head in (one, other)]
        told = f"{MAP}.saidOfBoth({MAP}.hover)"
        said = until(page, lambda: "~" not in (words := page.evaluate(told)) and words, "the exact weights")
        found = re.fullmatch(r"A (.*), B (.*), log2 ([+−].*)", said)
        assert found, said
        assert [written(found[1]), written(found[2])] == pytest.approx(weights, rel=0.03)
        assert float(found[3].replace("−", "-")) == pytest.approx(np.log2(weights[0] / weights[1]), abs=0.006)


def test_two_maps_side_by_side_show_both_heads_in_the_same_place_and_colours(pairs: Pairs) -> None:
    one, other = pairs.heads["257"], pairs.others["257"]
    with pairs.compare("257", "side", "r=-32,0&z=9&c=120,80", width=1400) as page:  # narrower, one is below the other
        page.wait_for_selector(f"{BESIDE} .map[data-state=ready]", state="attached")
        for head, where in ((one, ""), (other, BESIDE)):
            picture = pictured(page, head, where)
            rows, columns = picture.rows(), picture.columns()
            assert picture.zoom == 9
            assert rows.bins[0] > 60
            assert wrong(picture, rows, columns, whole(head, 1, False)[np.ix_(rows.bins, columns.bins)]) == []


def drag(page: Page, where: str, right: int, down: int) -> None:
    box = page.locator(f"{where} canvas.map-heat").first.bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + right, y + down, steps=3)
    page.mouse.up()
    page.mouse.move(5, 5)
    settled(page)
    page.wait_for_selector(f"{BESIDE} .map[data-state=ready]", state="attached")
    drawn(page)


@pytest.mark.slow
def test_locked_maps_move_together_whichever_is_dragged_and_unlocked_ones_alone(pairs: Pairs) -> None:
    one, other = pairs.heads["257"], pairs.others["257"]

    def right_in(page: Page, head: Synthetic, where: str) -> bool:
        """Whether the picture is the head's at the place that the state names."""
        picture = pictured(page, head, where)
        rows, columns = picture.rows(), picture.columns()
        return wrong(picture, rows, columns, whole(head, 1, False)[np.ix_(rows.bins, columns.bins)]) == []

    with pairs.compare("257", "side", "r=-32,0&z=9&c=120,80", width=1400) as page:  # narrower, one is below the other
        for where, right, down in (("", -90, -45), (BESIDE, 63, 27)):
            before = state(page)["centre"]
            drag(page, where, right, down)
            after = state(page)["centre"]
            moved = (after["key"] - before["key"], after["query"] - before["query"])
            assert moved == pytest.approx((-right / 9, -down / 9), abs=0.02)
            assert [right_in(page, one, ""), right_in(page, other, BESIDE)] == [True, True]
        page.get_by_role("button", name="Locked").click()
        assert not state(page)["locked"]
        stays = pictured(page, other, BESIDE).pixels
        drag(page, "", -180, 0)
        assert right_in(page, one, "")
        assert np.array_equal(pictured(page, other, BESIDE).pixels, stays)
        before = state(page)["centre"]
        drag(page, BESIDE, 0, -180)
        assert state(page)["centre"] == before
        assert not right_in(page, other, BESIDE)
        page.focus(f"{BESIDE} .map")
        held = pictured(page, other, BESIDE).pixels
        page.keyboard.press("ArrowLeft")
        drawn(page)
        assert not np.array_equal(pictured(page, other, BESIDE).pixels, held)
        assert state(page)["centre"] == before
        page.get_by_role("button", name="Locked").click()
        drawn(page)
        settled(page)
        assert [right_in(page, one, ""), right_in(page, other, BESIDE)] == [True, True]


def test_a_mode_that_two_heads_do_not_allow_is_refused_with_words(pairs: Pairs) -> None:
    with pairs.compare("full", "split", "r=-32,0") as page:
        assert state(page)["compare"]["mode"] == "side"
        assert "causal" in page.inner_text(".notice")
        split = page.get_by_role("button", name="Split")
        assert split.is_disabled()
        assert "causal" in (split.get_attribute("title") or "")
        assert page.get_by_role("button", name="Ratio").is_enabled()


@pytest.mark.slow
def test_an_address_names_a_comparison_and_leads_back_to_the_same_picture(pairs: Pairs) -> None:
    with pairs.show("255", "r=-32,0") as page:
        page.get_by_role("button", name="Compare", exact=True).click()
        assert state(page)["compare"] == {"trace": "", "layer": 0, "head": 1, "mode": "side"}
        page.get_by_role("button", name="Locked").click()
        page.get_by_role("button", name="Ratio").click()
        page.fill(".compare-bar input[type=number]", "3.5")
        page.keyboard.press("Enter")
        settled(page)
        until(page, lambda: "bits=3.5" in fragment(page), "the address")
        assert "cmp=L0H1,ratio&lock=0&bits=3.5" in fragment(page)
        before, pixels = state(page), pictured(page, pairs.heads["255"]).pixels
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_selector("html[data-state=ready]", state="attached")
        settled(page)
        assert state(page) == before
        assert np.array_equal(pictured(page, pairs.heads["255"]).pixels, pixels)


def test_keys_begin_swap_and_end_a_comparison(pairs: Pairs) -> None:
    one, other = pairs.heads["255"], pairs.others["255"]

    def is_shown(page: Page, head: Synthetic) -> bool:
        drawn(page)
        picture = pictured(page, head)
        rows, columns = picture.rows(), picture.columns()
        return wrong(picture, rows, columns, whole(head, 1, False)[np.ix_(rows.bins, columns.bins)]) == []

    with pairs.show("255") as page:
        page.keyboard.press("c")
        page.wait_for_selector(f"{BESIDE} .map[data-state=ready]", state="attached")
        assert is_shown(page, one)
        page.keyboard.press("v")
        assert is_shown(page, other)
        assert (state(page)["head"], state(page)["compare"]["head"]) == (1, 0)
        page.keyboard.press("v")
        assert is_shown(page, one)
        page.keyboard.down("v")
        page.wait_for_timeout(500)
        assert is_shown(page, other)
        page.keyboard.up("v")
        assert is_shown(page, one)
        page.keyboard.press("Escape")
        assert state(page)["compare"] is None
        assert page.locator("canvas.map-heat").count() == 1
        assert page.is_hidden(".compare-bar")


@pytest.fixture(scope="module")
def texts() -> Iterator[tuple[Handle, dict[str, str], dict[str, Trace]]]:
    """Two texts, read by one model; the second has words that the first has not, and the other way round."""
    model = small()
    traces = {name: read(model, name, CHARACTERS, progress=False) for name in (ONE_TEXT, OTHER_TEXT)}
    library = Library()
    ids = {name: library.add(trace, name=f"<b>{name}</b>") for name, trace in traces.items()}
    with serving(library, page=True) as handle:
        yield handle, ids, traces


@contextmanager
def two_texts(
    browser: Browser, texts: tuple[Handle, dict[str, str], Any], query: str = "", **options: Any
) -> Iterator[Page]:
    handle, ids, _ = texts
    address = f"{handle.url}#1/{ids[ONE_TEXT]}/L1H2/map?cmp={ids[OTHER_TEXT]}:L1H2,side{query}"
    with shown(browser, address, **options) as page:
        page.wait_for_selector(f"{BESIDE} .map[data-state=ready]", state="attached")
        yield page


def weights(trace: Trace) -> Values:
    """Of the head that is looked at."""
    return trace[1][:, :][0, 2].double().numpy()


def test_a_pinned_pair_is_compared_with_the_same_words_of_the_other_text(browser: Browser, texts: Any) -> None:
    query, key = ONE_TEXT.index("fled"), ONE_TEXT.index("dog")
    there = OTHER_TEXT.index("fled"), OTHER_TEXT.index("dog")
    with two_texts(browser, texts, f"&pin=q{query},k{key}") as page:
        told = until(
            page, lambda: re.search(r"Pinned: A (.*), B (.*), log2", page.inner_text(".compared-words")), "both"
        )
        _, _, traces = texts
        exact = weights(traces[ONE_TEXT])[query, key], weights(traces[OTHER_TEXT])[there]
        assert [written(number) for number in told.groups()] == pytest.approx(exact, rel=6e-3)
        words = page.inner_text(".compared-words")
        alone = [int(number) for number in re.findall(r"(\d+) of \d+", words)]
        assert alone == [len(ONE_TEXT) - common(), len(OTHER_TEXT) - common()]
        page.keyboard.press("v")
        until(
            page, lambda: state(page)["pinQuery"] == there[0] and state(page)["pinKey"] == there[1], "the other's pins"
        )


# The lines of text in each control, and how far it is out of the bar.
CONTROLS = """() => {
  const bar = document.querySelector(".compare-bar"), { right } = bar.getBoundingClientRect();
  const controls = [...bar.querySelectorAll("button, strong, .field > span")].filter((one) => one.checkVisibility());
  return controls.map((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    const lines = new Set([...range.getClientRects()].map((line) => line.top)).size;
    return [one.innerText, lines, Math.max(0, one.getBoundingClientRect().right - right)];
  });
}"""


def test_every_control_of_a_comparison_is_in_view_on_one_line(browser: Browser, texts: Any) -> None:
    with two_texts(browser, texts, "&pin=q20,k4", width=1280, height=720) as page:
        until(page, lambda: "Pinned" in page.inner_text(".compared-words"), "the words")
        controls = page.evaluate(CONTROLS)
        assert "Stop comparing" in [name for name, _, _ in controls]
        assert [control for control in controls if control[1:] != [1, 0]] == []


def common() -> int:
    """The length of the longest common subsequence, in the plainest way."""
    lengths = [[0] * (len(OTHER_TEXT) + 1) for _ in range(len(ONE_TEXT) + 1)]
    for i, one in enumerate(ONE_TEXT):
        for j, other in enumerate(OTHER_TEXT):
            lengths[i + 1][j + 1] = lengths[i][j] + 1 if one == other else max(lengths[i][j + 1], lengths[i + 1][j])
    return lengths[-1][-1]


def written(number: str) -> float:
    """A number as the page writes it."""
    found = re.fullmatch(r"([\d.]+)(?:×10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?", number)
    assert found, number
    return float(f"{found[1]}e{(found[2] or '0').translate(str.maketrans('⁻⁰¹²³⁴⁵⁶⁷⁸⁹', '-0123456789'))}")


@pytest.mark.slow
def test_a_click_in_the_other_map_pins_the_partner_and_without_one_says_so(browser: Browser, texts: Any) -> None:
    with two_texts(browser, texts, "&z=24&c=0,0") as page:
        box = page.locator(f"{BESIDE} canvas.map-heat").bounding_box()
        assert box
        first = OTHER_TEXT.index("dog")  # of the key; the view begins at the first token
        page.mouse.click(box["x"] + (first + 0.5) * 24, box["y"] + (first + 2.5) * 24)
        here = ONE_TEXT.index("dog")
        assert (state(page)["pinQuery"], state(page)["pinKey"]) == (here + 2, here)
        alone = OTHER_TEXT.index("old") + 1
        assert "l" not in ONE_TEXT[: ONE_TEXT.index("dog")]
        page.mouse.click(box["x"] + (alone + 0.5) * 24, box["y"] + (first + 2.5) * 24)
        assert "no partner" in page.inner_text(".notice")
        assert (state(page)["pinQuery"], state(page)["pinKey"]) == (here + 2, here)


@pytest.mark.slow
def test_locked_maps_of_two_texts_stand_at_the_same_words(browser: Browser, texts: Any) -> None:
    _, _, traces = texts
    here, there = ONE_TEXT.index("fled"), OTHER_TEXT.index("fled")
    with two_texts(browser, texts, f"&r=-32,0&z=40&c={here + 0.5},{here + 0.5}") as page:
        picture = taken(page, len(OTHER_TEXT), len(OTHER_TEXT), BESIDE).at(there + 0.5, there + 0.5)
        rows, columns = picture.rows(), picture.columns()
        truth = weights(traces[OTHER_TEXT])
        truth[~np.tri(len(truth), dtype=bool)] = np.nan
        assert wrong(picture, rows, columns, truth[np.ix_(rows.bins, columns.bins)]) == []


def test_the_names_of_traces_are_text(browser: Browser, texts: Any) -> None:
    with two_texts(browser, texts) as page:
        names = page.locator(".compare-bar select >> nth=0 >> option").all_inner_texts()
        assert [name[:3] for name in names] == ["<b>", "<b>"]
        assert page.locator(".compare-bar b").count() == 0
        page.select_option(".compare-bar select >> nth=0", index=0)
        assert state(page)["compare"]["trace"] == ""
        change(page, layer=2, head=3)
        page.select_option(".compare-bar select >> nth=0", index=1)
        _, ids, _ = texts
        assert state(page)["compare"] == {"trace": ids[OTHER_TEXT], "layer": 2, "head": 3, "mode": "side"}


def test_a_text_that_is_gone_is_said_to_be_gone(browser: Browser, texts: Any) -> None:
    handle, ids, _ = texts
    address = f"{handle.url}#1/{ids[ONE_TEXT]}/L1H2/map?cmp={'0' * 32}:L1H2,side"
    with in_trouble(browser, address) as page:
        page.wait_for_selector("html[data-state=ready]", state="attached")
        until(page, lambda: "B cannot be shown" in page.inner_text(".notice"), "the words")
        assert state(page)["compare"] is None


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_serious_in_a_comparison(browser: Browser, texts: Any, size: str) -> None:
    found: dict[str, list[str]] = {}
    with two_texts(browser, texts, "&pin=q8,k2", bypass_csp=True, **SIZES[size]) as page:
        found |= violations_in_every_look(page, "side")
        for mode in ("split", "ratio"):
            change(page, compare={"trace": "", "layer": 0, "head": 1, "mode": mode})
            drawn(page)
            found |= violations_in_every_look(page, mode)
    assert found == {}
