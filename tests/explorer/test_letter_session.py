"""Sentences can be typed without a trained model, and the session says that there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser

from attnscope.errors import SettingError
from attnscope.explorer.launch import explore
from attnscope.explorer.sessions.letter_session import MAX_WORDS, NOTE, LetterSession, embed_letters
from tests.explorer.browser import needs_chromium
from tests.explorer.pages import change, drawn, shown, state, until
from tests.explorer.serving import Handle

TEXT = "the cat saw cats, dogs and a catalogue"


@pytest.fixture(scope="module")
def handle() -> Iterator[Handle]:
    server = explore(open_browser=False, block=False, say=lambda _: None)
    yield Handle(server)
    server.close()


def test_words_attend_to_words_with_similar_letters() -> None:
    trace = LetterSession().run(TEXT)
    assert trace.tokens() == ["the", " cat", " saw", " cats", ",", " dogs", " and", " a", " catalogue"]
    weights = trace[0].to_dense()[0]
    assert torch.allclose(weights.sum(-1), torch.ones(4, 9))
    others = weights[0, 1].clone()
    others[1] = 0
    assert int(others.argmax()) == 3  # cat, cats
    assert weights[0, 1, 8] > 2 * weights[0, 1, 5]  # catalogue, dogs
    assert weights[1].argmax(-1).tolist()[1:] == list(range(8))  # the word before
    assert torch.equal(LetterSession().run(TEXT)[0].to_dense()[0], weights)


def test_similar_spelling_is_near_and_another_word_is_not() -> None:
    near, far = (float(embed_letters("letter") @ embed_letters(other)) for other in ("letters", "pony"))
    assert near > 0.7
    assert abs(far) < 0.4
    assert float(embed_letters(" Letter") @ embed_letters("letter")) == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["", "  ", "a " * (MAX_WORDS + 1)])
def test_texts_that_are_empty_or_too_long_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="256 words"):
        LetterSession().run(text)


def test_the_example_takes_sentences_and_says_how(handle: Handle) -> None:
    session = handle.get("/api/1/session").json
    assert (session["has_model"], session["model_free"], session["model_note"]) == (True, True, NOTE)
    assert not any(session[name] for name in ("has_baseline", "can_generate", "can_ablate"))
    trace = ""
    for preset in session["presets"]:
        trace = handle.post("/api/1/run", {"text": preset["text"]}).json["trace"]
        assert handle.get(f"/api/1/{trace}/{preset['layer']}/{preset['head']}/0/0/0?ch=mean").status == 200
    assert "No model is loaded" in handle.get(f"/api/1/{trace}/predictions?from=0&to=5").json["problem"]
    assert handle.get(f"/api/1/{trace}/0/0/why?query=3&key=1").json["frequencies"] is None
    assert handle.get(f"/api/1/{trace}/meta").json["model"] == "No trained model"
    for path, body in (
        ("ablate", {"trace": trace, "heads": [[0, 0]]}),
        ("ablate_each", {"trace": trace}),
        ("generate", {"text": "a"}),
        ("run", {"text": ""}),
        ("run", {"text": "a", "baseline": True}),
    ):
        assert handle.post(f"/api/1/{path}", body).status in (400, 409), path


@needs_chromium
def test_a_head_of_the_example_is_not_shown_as_if_letters_had_made_it(browser: Browser, handle: Handle) -> None:
    example = handle.get("/api/1/session").json["example"]  # other tests have typed sentences, which are listed before
    with shown(browser, f"{handle.url}#1/{example}/L3H0/map") as page:
        until(page, lambda: page.inner_text(".head-title-label") == "induction", "the label of the head")
        sentence = "Attends to the token after another occurrence of the current token."
        assert page.inner_text(".head-sentence") == sentence
        page.click("button:has-text('Type a sentence')")
        assert NOTE in page.inner_text("main")
        assert "At most 256 tokens." in page.inner_text("main")
        assert not page.locator(".sentence-maps .map").is_visible()
        assert not page.locator(".head-title").is_visible()
        assert page.input_value("#sentence-text") == ""
        page.fill("#sentence-text", TEXT)
        page.click("button:text-is('Run')")
        until(page, lambda: state(page)["trace"] != example, "the run")
        until(page, lambda: page.locator(".sentence-maps .map").is_visible(), "the heatmap")
        drawn(page)
        assert (state(page)["layer"], page.input_value("#sentence-text")) == (0, TEXT)
        change(page, trace=example, layer=3, head=0)  # as the Back button does
        until(page, lambda: not page.locator(".sentence-maps .map").is_visible(), "the text box alone")
