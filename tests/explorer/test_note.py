"""A note in a link is shown beside its pins as plain text, until something else is pinned."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from attnscope.explorer.static_export.exporter import make_fragment
from tests.explorer.browser import needs_chromium, opened
from tests.explorer.pages import change, state
from tests.explorer.serving import Handle

NOTE = "the earlier name: <img src=x onerror=alert(1)>"
AT = f"#1/-/L1H2/map?pin=q9,k3&note={quote(NOTE)}"


@needs_chromium
@pytest.mark.parametrize("view", ["map", "text"])
def test_a_note_is_text_and_leaves_with_its_pins(view: str, browser: Browser, small: Handle) -> None:
    with opened(browser, small.url + AT.replace("map", view), fresh=True) as page:
        note = page.get_by_role("region", name="Note in the link")
        assert note.locator("p").inner_text() == NOTE
        assert note.locator("img").count() == 0
        assert state(page)["note"] == NOTE
        change(page, pinQuery=12)
        note.wait_for(state="detached")
        assert state(page)["note"] == ""


def test_a_saved_page_keeps_the_note() -> None:
    assert make_fragment(AT, "f" * 16, (0, 0)) == f"#1/{'f' * 16}/L0H0/map?pin=q9,k3&note={quote(NOTE, safe=',')}"


def test_a_saved_page_keeps_the_longest_note() -> None:
    at = f"#1/-/L1H2/map?pin=q9&note={quote('🔑' * 280)}"
    assert make_fragment(at, "f" * 16, (1, 2)) == at.replace("/-/", f"/{'f' * 16}/")
