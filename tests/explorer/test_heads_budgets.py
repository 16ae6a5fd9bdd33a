"""What all heads at once may cost: milliseconds to colour and draw them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.explorer.browser import needs_chromium
from tests.explorer.heads_page import heads_shown, pixels
from tests.explorer.pages import STORE
from tests.explorer.serving import Handle, serving
from tests.explorer.synthetic import random_head, trace_of
from tests.explorer.timing import kept

pytestmark = [pytest.mark.timed, needs_chromium]

LAYERS, HEADS, LENGTH = 30, 9, 256
TALL: dict[str, Any] = {"width": 1600, "height": 1400}  # CSS pixels: all small pictures are in view

# New colours, the next frame, and one pixel read back, for which all must have been drawn.
RECOLOURED = f"""(scale) => new Promise((resolve) => {{
  const begun = performance.now();
  {STORE}.set({{ scale }});
  requestAnimationFrame(() => {{
    const canvas = document.querySelector(".heads-frame canvas");
    canvas.getContext("2d").getImageData(0, 0, 1, 1);
    resolve(performance.now() - begun);
  }});
}})"""


@pytest.fixture(scope="module")
def model() -> Iterator[Handle]:
    """As many heads as SmolLM2-135M has."""
    heads = [[random_head(LENGTH, seed=HEADS * layer + head) for head in range(HEADS)] for layer in range(LAYERS)]
    with serving(trace_of(heads), page=True) as handle:
        yield handle


@pytest.mark.parametrize("scale", [1, 2])
def test_270_pictures_are_coloured_and_drawn_in_60_milliseconds(browser: Browser, model: Handle, scale: int) -> None:
    with heads_shown(browser, model, device_scale_factor=scale, fresh=True, **TALL) as page:
        page.click("text=small")
        seen = page.evaluate("(({scrollHeight, clientHeight}) => [scrollHeight, clientHeight])"
                             "(document.querySelector('.heads-frame'))")  # fmt: skip
        assert seen[0] <= seen[1], "all of them are in view"
        before = pixels(page)

        def measure() -> dict[str, tuple[float, float]]:
            found = [page.evaluate(RECOLOURED, ["linear", "log"][turn % 2]) for turn in range(8)]
            return {f"270 pictures, {scale}x": (median(found), 60)}

        assert kept(measure)
        page.evaluate(RECOLOURED, "linear")
        assert (pixels(page) != before).mean() > 0.1, "they were coloured anew"
