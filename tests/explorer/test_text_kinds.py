"""Other kinds of text in the text view: hostile ones, unknown ones, two at once, and very long ones; and its shades."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser

from attnscope.attention import Causal, Full
from attnscope.explorer.library.library import Library
from attnscope.models import CharacterTokenizer
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.token_texts import Texts
from tests.explorer.browser import needs_chromium
from tests.explorer.pages import change, shown, state, until
from tests.explorer.reading import (
    PAINTED,
    box_of,
    identity,
    linked,
    own,
    painted,
    pinned,
    reading,
    step_of,
)
from tests.explorer.serving import Handle, serving
from tests.explorer.synthetic import random_head
from tests.explorer.test_access import SIGHTS, WEB, rgb, seen_by

pytestmark = needs_chromium

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "\u202egnp.exe\u202c",
    "\u2066\u2067\u200e\u061c",
    "a\u200bb\ufeffe\u00ad",
    "Z" + "\u0301\u0300\u0323" * 66,
    *["\u0301"] * 30,
    "W" * 2**16,
    "\u0000\u0001\u001b[31mred\u007f\u0085",
    "\u2028\u2029\r\n\t\v",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u0627\u0644\u0639",
    "",
    " ",
    "\n",
    "\ud83d",
    "\\xf0",
    "\\x9f",
    "\ue000\uffff",
    "__proto__",
]
UNSAFE = "\u0000\u0001\u001b\u007f\u0085\u200b\u200e\u061c\u202c\u202e\u2066\u2067\u2028\u2029\ufeff\u00ad\r\v\ud83d"


@pytest.fixture(scope="module")
def hostile() -> Iterator[Handle]:
    torch.manual_seed(0)
    count = len(HOSTILE)
    weights = torch.rand(1, 2, count, count).tril().add(1e-9).softmax(-1)
    library = Library()
    library.add(Trace.from_attentions({"one": weights}, tokens=HOSTILE), name="hostile")
    with serving(library, page=True) as handle:
        yield handle


@pytest.mark.parametrize("words", [False, True])
def test_hostile_tokens_are_text_and_stay_in_their_place(browser: Browser, hostile: Handle, words: bool) -> None:
    with shown(browser, f"{hostile.url}#1/{identity(hostile)}/L0H0/text", width=800) as page:
        reading(page)
        change(page, words=words)
        for position in range(len(HOSTILE)):
            if HOSTILE[position - 1 : position + 2] == 3 * ["\u0301"]:
                continue  # inside a row of accents: its ends are enough
            pinned(page, position)
            until(page, lambda: len(own(page)) == 1, f"token {position}")
        everything = page.inner_text("#explorer") + page.evaluate("document.querySelector('#explorer').textContent")
        assert not set(everything) & set(UNSAFE)
        assert not re.search("\u0301{9}", everything)
        assert page.evaluate("window.hacked") is None
        assert page.locator("#explorer script, #explorer img").count() == 0
        assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0
        wide = page.evaluate("""() => [...document.querySelectorAll(".text-page:not([hidden]), .text-links")]
          .map((one) => one.scrollWidth - one.clientWidth)""")
        assert max(wide) <= 0


def test_texts_that_are_not_known_are_said_to_be_so(browser: Browser) -> None:
    library = Library()
    library.add(random_head(40).trace(), name="numbers")
    with serving(library, page=True) as handle, shown(browser, f"{handle.url}") as page:
        page.keyboard.press("t")
        until(page, lambda: "not known" in page.inner_text(".text-note"), "words")
        assert page.locator(".text-view .segments button >> nth=1").is_disabled()
        change(page, pinQuery=20)
        linked(page)
        assert page.inner_text(".side-query h3") == "#20 attends to"


def reads(letters: str, *texts: tuple[str, str]) -> Trace:
    """A trace without layers whose parts have read these texts, a token for each character."""
    tokenizer = CharacterTokenizer(letters)
    trace = Trace("made", tokenizer)
    trace.texts = [Texts(part, torch.tensor([tokenizer.encode(text)])) for part, text in texts]
    return trace


def test_two_texts_stand_side_by_side(browser: Browser) -> None:
    source, target = "ein hund", "a dog barks"
    head = random_head(len(target), len(source), causal=False)
    trace = reads("abcdefghijklmnopqrstu ", ("encoder", source), ("decoder", target))
    call = Call(query=head.query[None, None], key=head.key[None, None], value=None, mask=Full(), scale=None)
    trace.layers["decoder.cross"] = Layer("decoder.cross", call, cross=True)
    library = Library()
    library.add(trace, name="two texts")
    with serving(library, page=True) as handle, shown(browser, handle.url) as page:
        page.keyboard.press("t")
        reading(page)
        change(page, pinQuery=None, pinKey=None)
        left, right = page.locator(".text-page").all()
        assert (left.inner_text(), right.inner_text()) == (target, source)
        assert (left.get_attribute("aria-label"), right.get_attribute("aria-label")) == ("Queries", "Keys")
        page.mouse.click(*box_of(page, "b"))
        linked(page, "query")
        query = target.index("b")
        assert (state(page)["pinQuery"], state(page)["pinKey"]) == (query, None)
        row = head.rows([query])[0]
        found = painted(page, "out")
        assert {place: step for place, (_, step) in found.items()} == {
            place: step_of(weight) for place, weight in enumerate(row) if step_of(weight)
        }
        assert {label for step in range(1, 9) for *_, label in page.evaluate(PAINTED, f"out-{step}")} == {"Keys"}
        page.mouse.click(*box_of(page, "h"))
        linked(page, "key")
        key = source.index("h")
        assert (state(page)["pinQuery"], state(page)["pinKey"]) == (query, key)
        column = head.rows(range(len(target)))[:, key]
        assert {place: step for place, (_, step) in painted(page, "in").items()} == {
            place: step_of(weight) for place, weight in enumerate(column) if step_of(weight)
        }
        assert (own(page), own(page, "key")) == (["b"], ["h"])


@pytest.mark.slow
def test_of_a_very_long_text_the_part_around_a_place_is_shown(browser: Browser) -> None:
    length = 300_000
    trace = reads("abc ", ("", "ab c" * (length // 4)))
    head = random_head(length, dim=2)
    call = Call(query=head.query[None, None], key=head.key[None, None], value=None, mask=Causal(), scale=None)
    trace.layers["a"] = Layer("a", call, cross=False)
    library = Library()
    library.add(trace, name="long")
    with serving(library, page=True) as handle:
        address = f"{handle.url}#1/{identity(handle)}/L0H0/text"
        with shown(browser, address) as page:
            reading(page)
            assert page.inner_text(".text-note").startswith("Tokens 0 to 262,143 of 300,000;")
            page.fill(".ask-input", "290000")
            page.keyboard.press("Enter")
            until(page, lambda: "37,856 to 299,999" in page.inner_text(".text-note"), "the other part")
            reading(page)
            linked(page, "query")
            assert own(page) == ["a"]
            visible = page.evaluate("""() => {
              const [range] = CSS.highlights.get("attnscope-own-query");
              const live = new Range();
              live.setStart(range.startContainer, range.startOffset);
              live.setEnd(range.endContainer, range.endOffset);
              const box = live.getBoundingClientRect();
              const frame = document.querySelector(".text-page:not([hidden])").getBoundingClientRect();
              return box.top >= frame.top && box.bottom <= frame.bottom;
            }""")
            assert visible


def over(paper: np.ndarray, colour: list[int], share: float) -> np.ndarray:
    return paper + share * (np.array(colour) - paper)


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    share = np.stack([one, other]) / 255
    light = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
    return float((light.max() + 0.05) / (light.min() + 0.05))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stays_readable_on_every_shade_and_each_shade_is_told_from_the_next(theme: str) -> None:
    base, style = ((WEB / "src" / "style" / f"{name}.css").read_text() for name in ("base", "text"))
    values = re.findall(r"--(paper|ink): (#\w{6})", base)
    paper, ink = (rgb(dict(values[2 * (theme == "dark") :][:2])[name]) for name in ("paper", "ink"))
    rule = r"::highlight\(attnscope-out-(\d)\) \{\s*background-color: rgb\((\d+) (\d+) (\d+) / (\d+)%\)"
    found = [[int(part) for part in parts] for parts in re.findall(rule, style)]
    assert [number for number, *_ in found] == list(range(1, 9))
    shades = [over(paper, colour, share / 100) for _, *colour, share in found]
    assert min(contrast(ink, shade) for shade in shades) > 4.5
    for sight in SIGHTS:
        seen = seen_by(sight, np.stack([paper, *shades]))
        assert (np.linalg.norm(np.diff(seen, axis=0), axis=1) > 2.3).all(), "2.3 is what an eye can just tell apart"
