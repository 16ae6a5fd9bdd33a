"""The text view in a page: what is painted in it, where it is, and what the server says of it."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page

from tests.explorer.pages import change, until
from tests.explorer.serving import Handle

STEPS = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3]
# What is highlighted under a name, as far as it is in the pages and not in the legend: [text, place in the page].
PAINTED = """(name) => {
  const found = [];
  for (const range of CSS.highlights.get(`attnscope-${name}`) ?? []) {
    const paragraph = range.startContainer.parentElement.closest(".column > p");
    if (!paragraph) continue;
    const live = new Range();
    live.setStart(range.startContainer, range.startOffset);
    live.setEnd(range.endContainer, range.endOffset);
    const before = [...paragraph.parentElement.children].slice(0, [...paragraph.parentElement.children]
      .indexOf(paragraph)).reduce((sum, one) => sum + one.textContent.length, 0);
    found.push([live.toString(), before + range.startOffset, paragraph.closest(".text-page").ariaLabel]);
  }
  return found.sort((one, other) => one[1] - other[1]);
}"""


def painted(page: Page, direction: str) -> dict[int, tuple[str, int]]:
    """By its place in the page: the text that is painted, and how strongly."""
    return {
        place: (text, step) for step in range(1, 9) for text, place, _ in page.evaluate(PAINTED, f"{direction}-{step}")
    }


def own(page: Page, side: str = "query") -> list[str]:
    return [text for text, *_ in page.evaluate(PAINTED, f"own-{side}")]


def step_of(weight: float) -> int:
    return sum(weight >= step for step in STEPS)


def number(told: str) -> float:
    """A number as people read it."""
    value, _, power = told.partition("×10")
    return float(value) * 10.0 ** int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)


def as_shown(token: str) -> str:
    """Plain text as it stands in paragraphs, with a sign for each run of line ends."""
    return re.sub(r"\n+", "⏎", token)


def flat(text: str) -> str:
    """Text of the page: line ends are a space that does not break, and a line end unless the paragraph ends."""
    return re.sub("(\u00a0\n*)+", "⏎", text)


def identity(handle: Handle) -> str:
    return handle.get("/api/1/session").json["traces"][0]["trace"]


def reading(page: Page) -> None:
    """Wait for the text."""
    page.wait_for_selector(".text-view[data-state=ready]", timeout=20_000)


def linked(page: Page, *sides: str) -> None:
    """Wait for the links of what is pinned."""
    for side in sides or ("query", "key"):
        page.wait_for_selector(f".text-links .side-{side} li", timeout=20_000)
    page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")


def pinned(page: Page, position: int, **more: Any) -> None:
    change(page, pinQuery=position, pinKey=position, **more)
    linked(page)
    until(page, lambda: own(page), "the pinned token")


def get_json(handle: Handle, path: str) -> Any:
    return handle.get(f"/api/1/{identity(handle)}/{path}").json


def tokens(handle: Handle) -> list[str]:
    return get_json(handle, "0/text?side=key&from=0&to=100000")


def box_of(page: Page, text: str, nth: int = 0) -> tuple[float, float]:
    """The middle of a text on the page."""
    found = page.evaluate(
        """([text, nth]) => {
          for (const paragraph of document.querySelectorAll(".column > p")) {
            let at = paragraph.textContent.indexOf(text);
            for (; at >= 0; at = paragraph.textContent.indexOf(text, at + 1)) {
              if (nth-- > 0) continue;
              const range = new Range();
              range.setStart(paragraph.firstChild, at);
              range.setEnd(paragraph.firstChild, at + text.length);
              const box = range.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }
          }
        }""",
        [text, nth],
    )
    return found[0], found[1]
