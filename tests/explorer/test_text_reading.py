"""The text view of code, of chats and of long texts: how they are set, what is out of view, what is unexpected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page

from attnscope.explorer.library.library import Library
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.recording import read
from tests.explorer.browser import needs_chromium
from tests.explorer.pages import change, long_trace, shown, state, until
from tests.explorer.reading import PAINTED, box_of, flat, own, painted, pinned, reading
from tests.explorer.serving import Handle, serving
from tests.models.smollm2 import own_model

pytestmark = needs_chromium

CHAT = (
    "<|im_start|>user\nWhat is the capital of France?\n\nBe brief.<|im_end|>\n"
    "<|im_start|>assistant\nParis<|im_end|>\n<|im_start|>user\nAnd of Italy?"
)
CODE = "def area(width, height):\n    if width < 0:\n        raise ValueError(width)\n    return width * height\n"
FACES = "() => getComputedStyle(document.querySelector('.column')).fontFamily"


@pytest.fixture(scope="module")
def served() -> Iterator[Handle]:
    model, tokenizer = own_model()
    library = Library()
    for name, text in (("chat", CHAT), ("code", CODE)):
        library.add(read(model, text, tokenizer, layers=[3], progress=False), name=name)
    library.add(long_trace(), name="play")
    with serving(library, ModelSession(model, tokenizer, "SmolLM2-135M"), page=True) as handle:
        yield handle


@pytest.fixture(scope="module")
def tab(browser: Browser, served: Handle) -> Iterator[Page]:
    with shown(browser, served.url, width=1200, height=620) as page:
        yield page


def opened(page: Page, handle: Handle, name: str, more: str = "L0H0/text") -> list[str]:
    """Open a text, and return its tokens."""
    traces = {one["name"]: one["trace"] for one in handle.get("/api/1/session").json["traces"]}
    page.goto("about:blank")
    page.goto(f"{handle.base}/#1/{traces[name]}/{more}")
    reading(page)
    return handle.get(f"/api/1/{traces[name]}/0/text?side=key&from=0&to=100000").json


def test_turns_of_a_chat_have_their_roles_and_their_tokens_stay(tab: Page, served: Handle) -> None:
    texts = opened(tab, served, "chat")
    turns = tab.evaluate(
        "[...document.querySelectorAll('.column > p')].map((one) => [one.dataset.role, one.dataset.turn])"
    )
    assert turns == [["user", "user"], [None, "user"], ["assistant", "assistant"], ["user", "user"]]
    label = "getComputedStyle(document.querySelector('.column > p'), '::before').content"
    assert "user" in tab.evaluate(label)
    whole = tab.evaluate("[...document.querySelectorAll('.column > p')].map((one) => one.textContent).join('')")
    assert flat(whole) == CHAT.replace("\n\n", "⏎").replace("\n", "⏎"), "nothing of the text is left out"
    soft = [text for text, *_ in tab.evaluate(PAINTED, "control")]
    assert {"<|im_start|>user", "<|im_end|>"} <= set(soft)
    tab.mouse.click(*box_of(tab, "<|im_end|>"))
    until(tab, lambda: state(tab)["pinQuery"] is not None, "the pin")
    assert texts[state(tab)["pinQuery"]] == "<|im_end|>"


# Of passages with a space before the token: the distance to the word before it.
SPACES = """() => [...document.querySelectorAll(".text-links .strongest .kwic")].flatMap((line) => {
  const text = document.createTreeWalker(line.firstElementChild, NodeFilter.SHOW_TEXT).nextNode();
  const end = text?.data.trimEnd().length;
  if (!end || end === text.data.length) return [];
  const range = document.createRange();
  range.setStart(text, end - 1);
  range.setEnd(text, end);
  return [line.querySelector(".kwic-token").getBoundingClientRect().left - range.getBoundingClientRect().right];
})"""


def test_passages_of_the_lists_keep_the_space_before_their_token(tab: Page, served: Handle) -> None:
    opened(tab, served, "chat", "L0H0/text?pin=q20")
    until(tab, lambda: tab.locator(".text-links .strongest .kwic").count() > 4, "the links")
    spaces = tab.evaluate(SPACES)
    assert len(spaces) >= 3
    assert min(spaces) >= 2


# Room that is left beside the role of each turn; its first line is a number, its second the role.
ROOM = """() => [...document.querySelectorAll(".column p[data-role]")].map((turn) => {
  const style = getComputedStyle(turn, "::before"), pen = document.createElement("canvas").getContext("2d");
  pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  return parseFloat(style.width) - pen.measureText(turn.dataset.role).width;
})"""


def test_roles_have_room_beside_the_text(tab: Page, served: Handle) -> None:
    opened(tab, served, "chat")
    room = tab.evaluate(ROOM)
    assert len(room) == 3
    assert min(room) > 4


def test_code_is_monospaced_and_prose_is_when_it_is_wanted(tab: Page, served: Handle) -> None:
    opened(tab, served, "code")
    switch = tab.get_by_role("button", name="Monospaced")
    assert switch.get_attribute("aria-pressed") == "true"
    assert "mono" in tab.evaluate(FACES)
    switch.click()
    assert "mono" not in tab.evaluate(FACES)
    opened(tab, served, "chat")
    assert "mono" not in tab.evaluate(FACES)
    switch.click()
    assert "mono" in tab.evaluate(FACES)


def test_what_is_out_of_view_is_shown_with_its_passage(tab: Page, served: Handle) -> None:
    weights = {(at, head): long_trace()[at].batch(0).head(head)[:] for at in (17, 18, 20) for head in range(9)}
    layer, head, query, key = next(
        (*place, query, int(row[1:].argmax()) + 1)
        for place, rows in weights.items()
        for query, row in enumerate(rows)
        if query > 280 and row[1:].max() > 0.2 and row[1:].argmax() < query - 200
    )
    texts = opened(tab, served, "play", f"L{layer}H{head}/text?pin=q{query},k{query}")
    passage = tab.locator(".far-passages .passage").first
    until(tab, passage.is_visible, "the passage")
    assert passage.locator(".kwic-token").inner_text() == (
        texts[key].strip() or texts[key].replace("\n", "⏎").replace(" ", "·")
    )
    around = "".join(texts[key - 6 : key]).split()[-2:]
    assert all(word in passage.inner_text() for word in around)
    passage.click()
    until(tab, lambda: state(tab)["pinQuery"] == key, "the far token")
    until(tab, lambda: own(tab), "its mark")


def test_surprising_tokens_are_underlined_by_how_much_they_are(tab: Page, served: Handle) -> None:
    texts = opened(tab, served, "chat")
    model, tokenizer = own_model()
    ids = torch.tensor([tokenizer.encode(CHAT)])
    with torch.no_grad():
        losses = -model(ids)[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    tab.get_by_role("button", name="Surprise").click()
    until(tab, lambda: painted(tab, "surprise"), "the lines")
    expected = sorted(
        (texts[at + 1].replace("\n\n", "⏎").replace("\n", "⏎"), sum(float(loss) >= limit for limit in (2, 4, 6, 8)))
        for at, loss in enumerate(losses)
        if float(loss) >= 2
    )
    assert sorted((flat(text), step) for text, step in painted(tab, "surprise").values()) == expected
    assert "nats" in tab.inner_text(".text-view .bar")
    tab.get_by_role("button", name="Surprise").click()
    until(tab, lambda: not painted(tab, "surprise"), "no lines")


def test_the_place_in_the_text_is_kept_while_another_view_is_shown(tab: Page, served: Handle) -> None:
    opened(tab, served, "play")
    top = "document.querySelector('.text-page:not([hidden])').scrollTop"
    tab.focus(".text-page >> visible=true")
    tab.keyboard.press("PageDown")
    here = until(tab, lambda: tab.evaluate(top) > 100 and tab.evaluate(top), "the page to scroll")
    tab.wait_for_timeout(600)  # a page may glide
    here = tab.evaluate(top)
    for key, view in (("m", "map"), ("t", "text")):
        tab.keyboard.press(key)
        until(tab, lambda view=view: state(tab)["view"] == view, view)
    assert tab.evaluate(top) == pytest.approx(here, abs=31)
    pinned(tab, 290)
    change(tab, view="map")
    change(tab, view="text")
    until(tab, lambda: own(tab), "the pinned token")
