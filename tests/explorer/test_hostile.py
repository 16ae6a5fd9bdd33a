"""Hostile texts and links: whatever a token, a name or an address holds, it is shown as text, cut, and never run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page

from attnscope.explorer.library.library import Library
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.recording import Trace
from tests.explorer.browser import needs_chromium, opened
from tests.explorer.pages import change, drawn, fragment, ready, spoken, state, until
from tests.explorer.serving import Handle, serving
from tests.models.smollm2 import own_model

pytestmark = needs_chromium

SCRIPT = "</script><script>window.hacked=1</script>"
IMAGE = "<img src=x onerror=window.hacked=1>"
HOSTILE = [
    SCRIPT,
    IMAGE,
    "<svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "\"><b onmouseover='window.hacked=1'>",
    "&lt;b&gt;&amp;",
    "{{constructor.constructor('window.hacked=1')()}}",
    "\u202egnp.exe\u202c",
    "\u2066\u2067\u2068\u2069\u200e\u200f\u061c",
    "a\u200bb\u200cc\u200dd\ufeffe\u00ade",
    "Z" + "\u0301\u0300\u0323" * 200,
    "W" * 2**20,
    "\u0000\u0001\u001b[31mred\u007f\u0085",
    "\u2028\u2029\r\n\t\v",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\ufdfa" * 40,
    "",
    " ",
    "\ue000\uf8ff\ufffe\uffff",
    "__proto__",
]
# What turns, hides or breaks the text around it must not reach the page as it is.
UNSAFE = (
    "\u0000\u0001\u001b\u007f\u0085\u200b\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2028\u2029\ufeff"
)

# Remembers each text that is drawn on a canvas, and the box that it fills there.
WATCH_CANVAS = """
window.drawn = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  const size = this.measureText(text);
  const turn = this.getTransform();
  const [left, right] = [x - size.actualBoundingBoxLeft, x + size.actualBoundingBoxRight];
  const [top, bottom] = [y - size.actualBoundingBoxAscent, y + size.actualBoundingBoxDescent];
  const corners = [[left, top], [right, top], [left, bottom], [right, bottom]]
    .map(([a, b]) => turn.transformPoint(new DOMPoint(a, b)));
  const out = Math.max(...corners.map(({x, y}) => Math.max(-x, -y, x - this.canvas.width, y - this.canvas.height)));
  window.drawn.push({text, out, height: bottom - top});
  return fill.call(this, text, x, y, ...rest);
};
"""


LONGEST_TEXT = """() => {
  const texts = [...document.querySelectorAll("#explorer *")].flatMap((one) =>
    [one.childElementCount ? "" : one.textContent, one.title, one.getAttribute("aria-label") ?? ""]);
  return Math.max(document.title.length, ...texts.map((text) => text.length));
}"""


def weights(count: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.rand(1, 2, count, count).tril().add(1e-9).softmax(-1)


def served(trace: Trace, name: str) -> Any:
    library = Library()
    library.add(trace, name=name)
    return serving(library, page=True)


@pytest.fixture(scope="module")
def hostile() -> Iterator[Handle]:
    """Hostile tokens in a trace of good names."""
    both = {"one": weights(len(HOSTILE)), "two": weights(len(HOSTILE)).flip(1)}
    with served(Trace.from_attentions(both, tokens=HOSTILE), "tokens") as handle:
        yield handle


@pytest.fixture(scope="module")
def misnamed() -> Iterator[Handle]:
    """A trace, a model and layers of hostile names."""
    names = (SCRIPT, f"{IMAGE}\u202e{'N' * 5000}")
    trace = Trace.from_attentions(dict.fromkeys(names, weights(4)), tokens=list("abcd"))
    trace.model = f"{IMAGE}{SCRIPT}\u202e{'M' * 5000}"
    with served(trace, f"{SCRIPT}\u202e{'T' * 5000}") as handle:
        yield handle


def watched(browser: Browser, url: str, **options: Any) -> Any:
    return opened(browser, url, ready=False, **options)


def assert_nothing_ran(page: Page) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("({}).polluted") is None
    assert page.locator("#explorer script, #explorer img, #explorer svg, #explorer iframe").count() == 0


def assert_in_place(page: Page, scene: str) -> None:
    """Nothing pushes the page wider, and no text leaves the panel that it is in."""
    assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0, scene
    outside = page.evaluate("""() =>
      [...document.querySelectorAll(".token, .model, .trace-name, bdi, h3, h4, caption, td, th")]
      .filter((one) => one.checkVisibility() && !one.closest(".visually-hidden"))
      .map((one) => [one, one.closest("aside, nav, header, main, dialog")])
      .filter(([one, panel]) => panel && one.getBoundingClientRect().width > panel.getBoundingClientRect().width + 1)
      .map(([one]) => one.className + ": " + one.textContent.slice(0, 60))""")
    assert outside == [], scene


def unsafe_places(page: Page) -> list[str]:
    """Where the page says something that turns, hides or breaks text: its title, texts, labels and hints."""
    found = page.evaluate(
        """(unsafe) => {
      const bad = (text) => [...(text ?? "")].some((one) => unsafe.includes(one));
      const places = bad(document.title) ? ["the title of the page"] : [];
      for (const one of document.querySelectorAll("#explorer *")) {
        const own = [...one.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
        const name = one.tagName + "." + (one.className || one.parentElement.className);
        if (own.some((node) => bad(node.data))) places.push("text of " + name);
        for (const kind of ["title", "aria-label", "placeholder", "alt"])
          if (bad(one.getAttribute(kind))) places.push(kind + " of " + name);
      }
      return places;
    }""",
        UNSAFE,
    )
    return sorted(set(found))


@pytest.mark.parametrize("size", [(1600, 1000), (600, 800), (360, 640)], ids=str)
def test_hostile_tokens_and_names_are_shown_as_text_in_every_view(
    browser: Browser, hostile: Handle, size: tuple[int, int]
) -> None:
    with watched(browser, hostile.url, width=size[0], height=size[1]) as page:
        ready(page)
        for place in range(len(HOSTILE)):
            change(page, layer=place % 2, pinQuery=len(HOSTILE) - 1, pinKey=place)
            until(page, lambda place=place: f"key {place} " in spoken(page), "the cell to be told")
            assert_in_place(page, f"token {place}")
            assert unsafe_places(page) == [], f"token {place}"
        page.keyboard.press("r")
        until(page, lambda: page.locator(".strongest-table tbody tr").count() == 20, "the table")
        assert_in_place(page, "table")
        assert max(len(text) for text in page.locator(".strongest-table td").all_inner_texts()) < 400
        assert_nothing_ran(page)


@pytest.mark.parametrize("size", [(1600, 1000), (360, 640)], ids=str)
def test_hostile_names_are_shown_as_text_and_cut_to_what_people_read(
    browser: Browser, misnamed: Handle, size: tuple[int, int]
) -> None:
    with watched(browser, misnamed.url, width=size[0], height=size[1]) as page:
        ready(page)
        for layer in (0, 1):
            change(page, layer=layer, pinQuery=1)
            until(page, lambda: page.locator(".side-query li").count(), "the query")
            drawn(page)
            assert_in_place(page, f"layer {layer}")
            assert unsafe_places(page) == [], f"layer {layer}"
            longest = page.evaluate(LONGEST_TEXT)
            assert longest < 400, f"layer {layer}"
        assert_nothing_ran(page)


def test_labels_on_the_map_are_escaped_cut_and_inside_it(browser: Browser, hostile: Handle) -> None:
    with watched(browser, "about:blank") as page:
        page.add_init_script(WATCH_CANVAS)
        page.goto(hostile.url)
        ready(page)
        change(page, zoom=28)
        drawn(page)
        until(page, lambda: page.evaluate("window.drawn.some(({text}) => text.includes('script'))"), "the labels")
        page.evaluate("window.drawn.length = 0")
        change(page, pinQuery=12, pinKey=9)
        drawn(page)
        labels = page.evaluate("window.drawn")
    assert len(labels) > 2 * len(HOSTILE)
    texts = [label["text"] for label in labels]
    # The painter isolates each label by a pair of marks of its own, which go around all of it.
    inner = [text[1:-1] if text.startswith("\u2068") and text.endswith("\u2069") else text for text in texts]
    assert not [text for text in inner if set(UNSAFE + "\u2068\u2069") & set(text)]
    assert max(map(len, inner)) < 32 * 16
    assert max(label["height"] for label in labels) < 40, "no pile of accents covers the labels around it"
    assert [label for label in labels if label["out"] > 2] == []


def test_half_characters_are_written_out(browser: Browser) -> None:
    trace = Trace.from_attentions([weights(3)], tokens=["\ud83d", "\udc68 half", "whole"])
    with served(trace, "half \ud83d") as handle, watched(browser, handle.url) as page:
        ready(page)
        change(page, pinQuery=2, pinKey=0)
        until(page, lambda: "key 0 '\\u{d83d}'" in spoken(page), "the half to be written out")
        assert_nothing_ran(page)


def test_what_is_found_and_what_is_looked_for_stay_text(browser: Browser, hostile: Handle) -> None:
    with watched(browser, hostile.url) as page:
        ready(page)
        page.fill(".ask-input", "<script>")
        page.press(".ask-input", "Enter")
        until(page, lambda: state(page)["pinQuery"] == 0, "the find")
        page.fill(".ask-input", IMAGE + "%\\u{0}&text=x#")
        page.press(".ask-input", "Enter")
        until(page, lambda: page.inner_text(".ask-popup") == "Nothing found.", "words")
        page.fill(".ask-input", "<script> -> <b>1")
        until(page, lambda: page.inner_text(".ask-popup") == "Nothing found.", "words")
        page.fill(".ask-input", str(len(HOSTILE)))
        until(page, lambda: page.inner_text(".ask-popup") == f"Positions are 0 to {len(HOSTILE) - 1}.", "the range")
        assert_nothing_ran(page)


def test_a_hostile_sentence_is_read_shown_and_written_on(browser: Browser) -> None:
    model, tokenizer = own_model()
    session = ModelSession(model, tokenizer, IMAGE + SCRIPT)
    text = f"{SCRIPT} {IMAGE} \u202eabc\u202c \u0000\u200b \U0001f468\u200d\U0001f469\u200d\U0001f467 {'W' * 200}"
    with serving(Library(), session, page=True) as handle, watched(browser, handle.url) as page:
        page.fill("#sentence-text", text)
        until(page, lambda: page.locator(".sentence-maps .map").is_visible(), "the matrix")
        ready(page)
        drawn(page)
        assert_in_place(page, "sentence")
        change(page, pinQuery=10, pinKey=2)
        until(page, lambda: "query 10" in spoken(page), "the cell to be told")
        page.click("summary:has-text('Generate')")
        page.fill(".generation-fields input >> nth=0", "3")
        page.click(".generation-fields button.primary")
        until(page, lambda: "new token" in page.inner_text(".generation-fields"), "the new tokens")
        assert not set(UNSAFE) & set(page.inner_text(".strip"))
        assert_in_place(page, "generated")
        assert_nothing_ran(page)


FRAGMENTS = {
    "huge numbers": "#1/{trace}/L9999999H9999999/map?c=99999999,99999999&z=99999999&pin=q9999999,k9999999&r=-99,99",
    "longer numbers": f"#1/{{trace}}/L{'9' * 400}H{'9' * 400}/map?c={'9' * 400},1&z={'9' * 400}&pin=q{'9' * 400}",
    "no numbers": "#1/{trace}/LNaNHInfinity/map?c=NaN,Infinity&z=Infinity&pin=qNaN,k-1&r=NaN,NaN",
    "exponents": "#1/{trace}/L0H0/map?c=1e308,-1e308&z=1e-308&r=1e9,-1e9",
    "negative": "#1/{trace}/L-1H-1/map?c=-5,-5&z=-1&pin=q-1,k-1&r=5,5",
    "no range": "#1/{trace}/L0H0/map?r=0,0&z=0",
    "a script": f"#1/{{trace}}/L0H0/{SCRIPT}?cm={SCRIPT}&agg=<img>",
    "a script for a trace": "#1/<img src=x onerror=window.hacked=1>/L0H0/map",
    "a script for an address": "#javascript:window.hacked=1",
    "a path": "#1/../../../etc/passwd/L0H0/map",
    "the prototype": "#1/{trace}/L0H0/map?__proto__=polluted&constructor=1&__proto__[polluted]=1",
    "broken escapes": "#1/{trace}/L0H0/map?%E0%A4%A=1&c=%&z=%ZZ&x=%ED%A0%80",
    "100 KB of keys": "#1/{trace}/L0H0/map?" + "&".join(f"k{number}=v{number}" for number in range(9000)),
    "100 KB of one key": "#1/{trace}/L0H0/map?k=" + "v" * 100_000,
    "100 KB of nothing": "#" + "A" * 100_000,
    "another version": "#2/{trace}/L1H1/map?pin=q1",
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_hostile_link_shows_something_that_exists(browser: Browser, hostile: Handle, name: str) -> None:
    trace = hostile.get("/api/1/session").json["traces"][0]["trace"]
    with watched(browser, hostile.url + FRAGMENTS[name].format(trace=trace)) as page:
        ready(page)
        drawn(page)
        now = state(page)
        assert now["trace"] == trace
        assert now["layer"] in (0, 1)
        assert now["head"] in (0, 1)
        assert now["view"] == "map"
        # Pinned, if anything: the link of the head that the page opens on.
        assert all(now[pin] is None or 0 <= now[pin] < len(HOSTILE) for pin in ("pinQuery", "pinKey"))
        assert now["zoom"] is None or 0 < now["zoom"] <= 64
        assert now["centre"] is None or all(0 <= value <= len(HOSTILE) for value in now["centre"].values())
        low, high = now["range"] or (-20, 0)  # none: as the trace has it
        assert -32 <= low < high <= 0
        assert (now["colours"], now["channel"]) == ("cividis", "both")
        until(page, lambda: re.match(rf"#1/{trace}/L[01]H[01]/map", fragment(page)), "an address of what is shown")
        assert len(fragment(page)) < 2**13
        assert_nothing_ran(page)
