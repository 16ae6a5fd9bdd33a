"""The explorer by keyboard alone: each key does what the help list says of it, and everything can be reached."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.explorer.browser import needs_chromium, slow_cases
from tests.explorer.pages import (
    change,
    drawn,
    focus_map,
    fragment,
    long_trace,
    ready,
    shown,
    smollm2_served,
    spoken,
    state,
    until,
    visible,
)
from tests.explorer.serving import TEXT, Handle, small_trace

pytestmark = needs_chromium
HELP = "dialog.help"
LAST = len(TEXT) - 1  # the small trace has a token for each character


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Handle]:
    with smollm2_served(long_trace()) as handle:
        yield handle


@pytest.fixture(scope="module")
def tab(browser: Browser, small: Handle) -> Iterator[Page]:
    with shown(browser, small.url) as found:
        yield found


@pytest.fixture
def page(tab: Page, small: Handle) -> Page:
    """The small trace as it opens, in the same tab for all tests."""
    tab.goto("about:blank")
    tab.goto(f"{small.base}/#1/-/L0H0/map")
    ready(tab)
    focus_map(tab)
    return tab


def press(page: Page, *keys: str) -> dict[str, Any]:
    """Press keys, wait for the frame in which a move is told, and say what is shown now."""
    for key in keys:
        page.keyboard.press(key)
    page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    return state(page)


def corner(page: Page) -> tuple[int, int]:
    """The first query and the first key in view."""
    now = visible(page)
    return now["query"][0], now["key"][0]


@pytest.mark.parametrize(
    ("keys", "down", "right"),
    [
        (("ArrowRight", "d"), 0, 1),
        (("Shift+ArrowUp", "W"), -1, 0),
        *slow_cases(
            (("ArrowLeft", "a"), 0, -1),
            (("ArrowUp", "w"), -1, 0),
            (("ArrowDown", "s"), 1, 0),
            (("Shift+ArrowLeft", "A"), 0, -1),
            (("Shift+ArrowRight", "D"), 0, 1),
            (("Shift+ArrowDown", "S"), 1, 0),
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_arrows_and_their_letters_move_the_view_their_way(
    page: Page, keys: tuple[str, str], down: int, right: int
) -> None:
    moved = []
    for key in keys:
        change(page, zoom=60, centre={"query": 40, "key": 40})
        drawn(page)
        before = corner(page)
        press(page, key)
        after = corner(page)
        moved.append((after[0] - before[0], after[1] - before[1]))
        assert [(step > 0) - (step < 0) for step in moved[-1]] == [down, right]
    assert moved[0] == moved[1]


@pytest.mark.slow
def test_with_shift_an_arrow_moves_further(page: Page) -> None:
    steps = []
    for key in ("ArrowDown", "Shift+ArrowDown"):
        change(page, zoom=60, centre={"query": 20, "key": 20})
        drawn(page)
        before = corner(page)
        press(page, key)
        steps.append(corner(page)[0] - before[0])
    assert steps[1] > 3 * steps[0] > 0


def test_plus_and_minus_zoom_and_undo_each_other(page: Page) -> None:
    change(page, zoom=20, centre={"query": 40, "key": 40})
    for larger in ("+", "="):
        assert press(page, larger)["zoom"] == pytest.approx(20 * 2**0.5)
        assert press(page, "-")["zoom"] == pytest.approx(20)


@pytest.mark.slow
def test_zero_shows_the_whole_matrix_and_one_makes_a_token_a_pixel(browser: Browser, smollm2: Handle) -> None:
    with shown(browser, smollm2.url) as page:
        focus_map(page)
        tokens = page.evaluate("document.getElementById('explorer').attnscope.map.visible().query[1]")
        change(page, zoom=50, centre={"query": 40, "key": 40})
        drawn(page)
        assert visible(page)["query"][1] - visible(page)["query"][0] < tokens
        press(page, "0")
        assert visible(page) == {"query": [0, tokens], "key": [0, tokens]}
        fit = state(page)["zoom"]
        press(page, "+", "+", "1")
        # A matrix that is smaller than the plot at one pixel a token is not made smaller than the plot.
        assert state(page)["zoom"] in (fit, pytest.approx(1))


@pytest.mark.parametrize(
    ("forward", "backward", "pin", "fixed"),
    [(".", ",", "pinQuery", "pinKey"), *slow_cases((">", "<", "pinKey", "pinQuery"))],
)
def test_stops_and_commas_walk_along_a_side_and_stop_at_its_ends(
    page: Page, forward: str, backward: str, pin: str, fixed: str
) -> None:
    first = press(page, forward)
    assert first[pin] is not None, "with nothing pinned the walk begins in the middle of the view"
    assert first[fixed] is None
    assert press(page, forward)[pin] == first[pin] + 1
    assert press(page, backward, backward)[pin] == first[pin] - 1
    change(page, **{pin: 0})
    assert press(page, backward)[pin] == 0
    change(page, **{pin: LAST})
    assert press(page, forward)[pin] == LAST


def test_enter_pins_the_middle_and_escape_lets_go_and_then_does_nothing(page: Page) -> None:
    seen = visible(page)
    pinned = press(page, "Enter")
    assert pinned["pinQuery"] == sum(seen["query"]) // 2
    assert pinned["pinKey"] == sum(seen["key"]) // 2
    let_go = press(page, "Escape")
    assert (let_go["pinQuery"], let_go["pinKey"], let_go["view"]) == (None, None, "map")
    assert press(page, "Escape") == let_go


@pytest.mark.slow
def test_enter_pins_the_cell_under_the_pointer(page: Page) -> None:
    box = page.locator(".map").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.7)
    hover = page.evaluate("document.getElementById('explorer').attnscope.map.hover")
    pinned = press(page, "Enter")
    assert (pinned["pinQuery"], pinned["pinKey"]) == (hover["query"], hover["key"])


def test_f_follows_the_strongest_other_key_and_b_goes_back(page: Page) -> None:
    change(page, layer=1, head=2, pinQuery=60)
    row = small_trace()[1].batch(0).head(2)[60].clone()
    row[60] = 0  # a token that looks mostly at itself leads to the next strongest
    until(page, lambda: page.locator(".side-query li").count(), "the report on the query")
    followed = press(page, "f")
    assert followed["pinQuery"] == int(row.argmax())
    assert press(page, "b")["pinQuery"] == 60


@pytest.mark.slow
def test_f_and_b_say_why_they_do_nothing(page: Page) -> None:
    before = state(page)
    assert press(page, "f") == before
    assert "Pin a query first" in page.inner_text(".notice")
    assert press(page, "b") == before
    assert "Nothing was followed yet" in page.inner_text(".notice")


def test_brackets_walk_the_ranking_and_braces_the_layers_and_both_stop_at_the_ends(page: Page) -> None:
    assert press(page, "}", "}")["layer"] == 1
    assert press(page, "{", "{")["layer"] == 0
    change(page, pinQuery=40, pinKey=11)
    until(page, lambda: page.locator(".rank-row").count() == 8, "the ranking by this weight")
    names = page.locator(".rank-name").all_inner_texts()
    values = [float(value.replace("×10⁻", "e-")) for value in page.locator(".rank-row .number").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    page.click(".rank-row >> nth=0")

    def current() -> str:
        now = state(page)
        return f"L{now['layer']}H{now['head']}"

    walked = [current()]
    for _ in names:
        press(page, "]")
        walked.append(current())
    assert walked == [*names, names[-1]]
    press(page, *["["] * len(names))
    assert current() == names[0]
    drawn(page)
    label = page.locator(".head-grid [aria-current]").get_attribute("aria-label")
    assert label == f"layer {names[0][1]}, head {names[0][3]}, weight {page.inner_text('.rank-row .number >> nth=0')}"


def test_t_and_h_show_the_text_and_all_heads_and_escape_leads_back_to_the_map(page: Page) -> None:
    for key, view in (("t", "text"), ("h", "heads")):
        assert press(page, key)["view"] == view
        assert page.evaluate("document.activeElement !== document.body"), "the view has the keyboard"
        assert press(page, "Escape")["view"] == "map"
        assert page.evaluate("document.activeElement.classList.contains('map')")


def test_c_compares_with_the_next_head_and_stops_when_pressed_again(page: Page) -> None:
    assert press(page, "c")["compare"] == {"trace": "", "layer": 0, "head": 1, "mode": "side"}
    assert press(page, "c")["compare"] is None
    change(page, head=3)
    assert press(page, "c")["compare"]["head"] == 2, "after the last head comes the one before it"


@pytest.mark.slow
def test_v_swaps_two_heads_and_held_only_while_it_is_held(page: Page) -> None:
    before = press(page, "c")
    swapped = press(page, "v")
    assert (swapped["head"], swapped["compare"]["head"]) == (1, 0)
    assert press(page, "v") == before
    page.keyboard.down("v")
    page.wait_for_timeout(200)
    page.keyboard.down("v")  # as a key that repeats
    assert state(page)["head"] == 1
    page.wait_for_timeout(300)
    page.keyboard.up("v")
    assert state(page) == before
    press(page, "c")
    assert press(page, "v")["head"] == 0, "with nothing to compare there is nothing to swap"


@pytest.mark.slow
def test_escape_lets_go_of_the_pins_then_of_the_comparison(page: Page) -> None:
    press(page, "c", ".")
    let_go = press(page, "Escape")
    assert let_go["pinQuery"] is None
    assert let_go["compare"] is not None
    assert press(page, "Escape")["compare"] is None


@pytest.mark.slow
def test_e_opens_what_can_be_saved_and_escape_closes_it(page: Page) -> None:
    press(page, "e")
    until(page, lambda: page.locator("dialog[open]").count() == 1, "the dialog")
    page.keyboard.press("Escape")
    until(page, lambda: page.locator("dialog[open]").count() == 0, "its end")


@pytest.mark.slow
def test_i_opens_the_sentence_view_and_escape_leads_back_to_the_map(browser: Browser, smollm2: Handle) -> None:
    with shown(browser, smollm2.url) as page:
        focus_map(page)
        assert press(page, ".")["pinQuery"] is not None
        assert press(page, "i")["view"] == "sentence"
        assert page.evaluate("document.activeElement.id") == "sentence-text"
        page.keyboard.press("Escape")  # out of the text box
        assert page.evaluate("document.activeElement.id") != "sentence-text"
        assert press(page, "Escape")["pinQuery"] is None
        assert press(page, "Escape")["view"] == "map"
        assert press(page, "i", "Escape", "m")["view"] == "map"


@pytest.mark.slow
def test_i_says_why_there_is_no_sentence_view_without_a_model(page: Page) -> None:
    assert press(page, "i")["view"] == "map"
    assert "no model to run" in page.inner_text(".notice")


@pytest.mark.slow
def test_r_opens_and_closes_the_table_and_the_keyboard_goes_along(page: Page) -> None:
    press(page, "r")
    assert page.is_visible(".strongest-table")
    assert page.evaluate("document.activeElement.className") == "strongest-table"
    press(page, "r")
    assert not page.is_visible(".strongest-table")
    assert page.evaluate("document.activeElement.classList.contains('map')")


def test_slash_finds_and_n_walks_through_what_was_found_around_the_ends(page: Page) -> None:
    places = [place for place, character in enumerate(TEXT.lower()) if character == "o"]
    press(page, "/")
    page.keyboard.type("o")
    page.keyboard.press("Enter")
    until(page, lambda: state(page)["pinQuery"] == places[0], "the first find")
    assert page.inner_text(".ask-status") == f"1 of {len(places)}"
    for place in [*places[1:], places[0]]:
        page.keyboard.press("n")
        until(page, lambda place=place: state(page)["pinQuery"] == place, f"the find at {place}")
    page.keyboard.press("N")
    until(page, lambda: state(page)["pinQuery"] == places[-1], "the last find again")


@pytest.mark.slow
def test_what_is_not_there_is_said_to_be_not_found(page: Page) -> None:
    press(page, "/")
    page.keyboard.type("xyzzy")
    page.keyboard.press("Enter")
    until(page, lambda: page.inner_text(".ask-popup") == "Nothing found.", "words")
    assert state(page)["pinQuery"] is None


def test_g_goes_to_a_position_and_says_which_there_are(page: Page) -> None:
    press(page, "g")
    page.keyboard.type(str(LAST + 1))
    page.keyboard.press("Enter")
    until(page, lambda: page.inner_text(".ask-popup") == f"Positions are 0 to {LAST}.", "the range")
    assert state(page)["pinQuery"] is None
    page.keyboard.press("Control+a")
    page.keyboard.type("33")
    page.keyboard.press("Enter")
    until(page, lambda: state(page)["pinQuery"] == 33, "the position")
    assert page.evaluate("document.activeElement.classList.contains('map')")


def test_x_l_k_and_u_change_what_is_shown_and_the_address_keeps_it(page: Page) -> None:
    assert [press(page, "x")["channel"] for _ in range(3)] == ["max", "mean", "both"]
    assert [press(page, "l")["scale"] for _ in range(4)] == ["log", "linear", "uniform", "auto"]
    assert [press(page, "k")["hideSink"] for _ in range(2)] == [True, False]
    assert [press(page, "u")["unmasked"] for _ in range(2)] == [True, False]
    press(page, "x", "l", "k", "u")
    until(
        page,
        lambda: {"agg=max", "scale=log", "sink=hide", "unmasked=1"} <= set(re.split("[?&]", fragment(page))),
        "the address",
    )


def test_y_copies_the_address_of_what_is_shown(browser: Browser, small: Handle) -> None:
    with shown(browser, small.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        focus_map(page)
        press(page, ".", "l", "y")
        until(page, lambda: page.inner_text(".notice") == "Link copied.", "a word")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.url
        assert "pin=q" in copied
        assert "scale=log" in copied
        assert "token" not in copied.partition("#")[0]


EVERY_KEY = [
    *("ArrowLeft", "a", "ArrowRight", "d", "ArrowUp", "w", "ArrowDown", "s", "Shift+ArrowLeft", "Shift+ArrowDown", "S"),
    *("+", "=", "-", "0", "1", ".", ",", ">", "<", "Enter", "Escape", "f", "b", "]", "[", "}", "{"),
    *("m", "t", "h", "i", "r", "n", "N", "x", "l", "k", "u", "c", "v", "e", "y"),
]


def test_the_question_mark_lists_every_key_that_does_anything(page: Page) -> None:
    press(page, "?")
    assert page.is_visible(HELP)
    listed = set(page.locator(f"{HELP} kbd").all_inner_texts())
    printed = {"ArrowLeft": "←", "ArrowRight": "→", "ArrowUp": "↑", "ArrowDown": "↓", "Escape": "Esc"}
    wanted = {f"Shift {printed[key[6:]]}" if key.startswith("Shift+") else printed.get(key, key) for key in EVERY_KEY}
    assert wanted - {"S"} | {"/", "g", "?", "o", "p", "Ctrl Z", "Ctrl Shift Z", "Shift ↑", "Shift →"} == listed
    assert all(page.locator(f"{HELP} td").all_inner_texts()), "each with words"
    page.keyboard.press("Escape")
    assert not page.is_visible(HELP)
    assert page.evaluate("document.activeElement.classList.contains('map')"), "closing gives the keyboard back"


@pytest.mark.slow
def test_while_the_list_is_open_keys_do_nothing_behind_it(page: Page) -> None:
    before = state(page)
    press(page, "?")
    assert press(page, ".", "]", "l", "x", "k", "+") == before


@pytest.mark.parametrize("field", [".ask-input", *slow_cases(".bits >> nth=0", "select >> nth=0")])
def test_keys_do_nothing_while_something_is_typed(page: Page, field: str) -> None:
    kept = ("pinQuery", "pinKey", "layer", "head", "channel", "scale", "hideSink", "unmasked", "view", "zoom")
    before = state(page)
    page.click("summary:has-text('View')")
    page.focus(field)
    after = press(page, *(key for key in ".,fb[]{}lkuxr?+0" if field != ".bits >> nth=0" or key not in ".,+0"))
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert not page.is_visible(HELP)
    assert not page.is_visible(".strongest-table")


@pytest.mark.slow
def test_keys_with_control_belong_to_the_browser(page: Page) -> None:
    before = state(page)
    for key in ("Control+l", "Alt+x", "Control+."):
        page.keyboard.press(key)
    assert state(page) == before


@pytest.mark.slow
def test_single_keys_can_be_switched_off_and_stay_off_and_the_list_still_opens(browser: Browser, small: Handle) -> None:
    with shown(browser, small.url) as page:
        focus_map(page)
        press(page, "?")
        page.focus("#keys-enabled")
        page.keyboard.press("Space")
        page.keyboard.press("Escape")
        before = state(page)
        assert press(page, *(key for key in EVERY_KEY if key != "Escape")) == before
        page.reload()
        until(page, lambda: page.get_attribute("html", "data-state") == "ready", "the page again")
        focus_map(page)
        assert press(page, ".", "l")["pinQuery"] is None
        press(page, "?")
        assert page.is_visible(HELP)
        assert not page.is_checked("#keys-enabled")


FOCUS = """() => {
  const now = document.activeElement;
  if (!now || now === document.body) return null;
  const style = getComputedStyle(now);
  const box = now.getBoundingClientRect();
  const ring = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none";
  const onPage = box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth;
  const inView = box.width > 0 && box.height > 0 && onPage;
  const label = now.closest("label")?.innerText || now.labels?.[0]?.innerText;
  const named = Boolean((now.getAttribute("aria-label") || now.innerText || now.title || label || "").trim());
  if (!now.dataset.walked) now.dataset.walked = String(performance.now());
  return {id: now.dataset.walked, what: now.tagName + "." + now.className, ring, inView, named};
}"""

# What the keyboard must come to: everything that can be used, and of the grid of heads one button.
REACHABLE = """() => [...document.querySelectorAll("button, input, select, textarea, summary, a[href], [tabindex='0']")]
  .filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility() && !one.closest("dialog:not([open])"))
  .filter((one) => !one.dataset.walked).map((one) => one.outerHTML.slice(0, 120))"""


def walk(page: Page, most: int = 120) -> list[dict[str, Any]]:
    """Tab from wherever the focus is, over the end of the page, until all begins again."""
    seen: list[dict[str, Any]] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        now = page.evaluate(FOCUS)
        if now is None:
            continue  # between the end of the page and its begin
        if any(now["id"] == before["id"] for before in seen):
            return seen
        seen.append(now)
    raise AssertionError(f"the Tab key has not come around after {most} steps")


def pinned_with_table(page: Page) -> None:
    change(page, pinQuery=40, pinKey=11)
    page.click("summary:has-text('View')")
    page.click("text=Strongest links")
    until(page, lambda: page.locator(".strongest-table tbody tr").count() == 20, "the table")
    page.click("text=12 more >> nth=0")


@pytest.mark.parametrize("prepare", [*slow_cases(lambda _: None), pinned_with_table], ids=["map", "pins and table"])
def test_tab_reaches_everything_with_a_visible_focus(page: Page, prepare: Callable[[Page], None]) -> None:
    prepare(page)
    page.wait_for_selector("summary:has-text('Scores')")
    seen = walk(page)
    assert page.evaluate(REACHABLE) == []
    assert [one["what"] for one in seen if not one["ring"]] == []
    assert [one["what"] for one in seen if not one["inView"]] == []
    assert [one["what"] for one in seen if not one["named"]] == []


@pytest.mark.slow
def test_tab_reaches_everything_of_the_sentence_view(browser: Browser, smollm2: Handle) -> None:
    with shown(browser, smollm2.url) as page:
        focus_map(page)
        press(page, "i")
        page.keyboard.insert_text("A dog barks.")  # at once: each text that is read has scores of its own
        until(page, lambda: page.locator(".sentence-maps .map").is_visible(), "the matrix")
        drawn(page)
        page.click("summary:has-text('Generate')")
        page.wait_for_selector("summary:has-text('Scores')")  # or it comes while the walk has passed its place
        seen = walk(page)
        assert page.evaluate(REACHABLE) == []
        assert [one["what"] for one in seen if not (one["ring"] and one["named"])] == []


@pytest.mark.slow
def test_in_the_grid_of_heads_arrows_move_the_focus_and_enter_chooses(page: Page) -> None:
    page.focus(".head-grid [aria-current]")
    press(page, "ArrowDown", "ArrowRight", "ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("layer 1, head 2")
    assert state(page)["head"] == 0, "moving is not choosing"
    chosen = press(page, "Enter")
    assert (chosen["layer"], chosen["head"]) == (1, 2)
    press(page, "End", "Home", "Enter")
    assert state(page)["head"] == 0


@pytest.mark.slow
def test_a_whole_reading_by_keyboard_alone(browser: Browser, smollm2: Handle) -> None:
    """From the address bar to a followed link in another head, with nothing but keys."""
    with shown(browser, smollm2.url) as page:
        while not page.evaluate("document.activeElement.classList.contains('map')"):
            page.keyboard.press("Tab")
        press(page, "}", "}")
        press(page, "/")
        page.keyboard.type("SPEAKER 3")
        page.keyboard.press("Enter")
        found = until(page, lambda: state(page)["pinQuery"], "the speaker")
        until(page, lambda: f"query {found}" in spoken(page), "the query to be spoken of")
        press(page, ">")
        until(page, lambda: re.search(r"key \d+ '.*', (weight|masked)", spoken(page)), "the cell to be spoken of")
        press(page, "f")
        assert state(page)["pinQuery"] != found
        now = press(page, "b")
        assert (now["layer"], now["head"], now["pinQuery"]) == (2, 0, found)
