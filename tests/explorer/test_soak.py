"""Moving about a long map for minutes leaves nothing behind.

A minute is enough to see a leak that grows; five take `ATTNSCOPE_SOAK=300 pytest -rP --log-level=info` on this
file. The clock starts when the caches of tiles and pictures, which have limits, are full.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, CDPSession, Page

from tests.explorer.browser import needs_chromium
from tests.explorer.gallery import Gallery, opened_gallery
from tests.explorer.pages import focus_map
from tests.explorer.picture import settled
from tests.explorer.synthetic import random_head, trace_of

pytestmark = [pytest.mark.slow, needs_chromium]

logger = logging.getLogger(__name__)
SECONDS = float(os.environ.get("ATTNSCOPE_SOAK", "60"))
LENGTH = 16_384
FULL = 0.95 * (64 * 2**20 + 160 * 2**18)  # bytes: tiles, and 160 pictures of 256 x 256 points
MAX_GROWTH = 1.10
MAX_OBJECTS = 5e5  # bytes that small caches, as that of single weights, may still take


@pytest.fixture(scope="module")
def gallery(browser: Browser) -> Iterator[Gallery]:
    """Two heads of 16,384 tokens."""
    with opened_gallery(browser) as found:
        first, second = (random_head(LENGTH, dim=16, seed=seed) for seed in (1, 2))
        found.hang("long", first, trace_of([[first, second]]))
        found.build("long")
        yield found


def test_the_memory_of_a_page_does_not_grow_while_one_moves_about(gallery: Gallery) -> None:
    with gallery.show("long", "c=15000,1000&z=1", width=1600, height=1000, fresh=True) as page:
        focus_map(page)
        session, wander = page.context.new_cdp_session(page), random.Random(7)
        fill_caches(page, session)
        before = held(page, session)
        move_about(page, wander, SECONDS)
        after = held(page, session)
    for part, size in before.items():
        logger.info("%s: %.2f MB, and after %.0f s %.2f MB", part, size / 1e6, SECONDS, after[part] / 1e6)
    assert sum(after.values()) <= MAX_GROWTH * sum(before.values())
    assert after["objects"] - before["objects"] <= MAX_OBJECTS


def fill_caches(page: Page, session: CDPSession) -> None:
    """Go over the map screen by screen, below the diagonal, until the page holds as many tiles as it ever does."""
    end = time.monotonic() + 600
    ways = itertools.cycle(3 * ("D" * 8 + "W", "A" * 8 + "W") + ("]",) + 3 * ("D" * 8 + "S", "A" * 8 + "S") + ("[",))
    while (numbers := numbers_held(session)) < FULL:
        assert time.monotonic() < end, f"ten minutes have not filled the caches: {numbers / 1e6:.0f} MB"
        for key in next(ways):
            page.keyboard.press(key)
            page.wait_for_timeout(150)


def move_about(page: Page, wander: random.Random, seconds: float) -> None:
    """By screens and by hand, in and out, and to the other head and back."""
    box = page.locator("canvas.map-heat").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for key in wander.choices("ADWS", k=6):
            page.keyboard.press(key)
            page.wait_for_timeout(40)
        page.mouse.move(x, y)
        page.mouse.down()
        for _ in range(20):
            page.mouse.move(x + wander.uniform(-300, 300), y + wander.uniform(-300, 300))
        page.mouse.up()
        page.mouse.wheel(0, wander.choice((-120, 120)))
        if wander.random() < 0.1:
            page.keyboard.press(wander.choice("[]"))


def held(page: Page, session: CDPSession) -> dict[str, float]:
    """Bytes of the script's objects, and of the numbers that they hold, once the rubbish is gone."""
    settled(page)
    return {"numbers": numbers_held(session), "objects": objects_held(session)}


def numbers_held(session: CDPSession) -> float:
    """What lies outside of the heap: tiles, cells and pictures."""
    session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["backingStorageSize"]


def objects_held(session: CDPSession) -> float:
    """Objects, functions and lists of the heap.

    Strings and what belongs to the browser are left out: whoever drives a browser has it note every request, for ever.
    A string that the page itself would keep needs an object or a list to be kept in.
    """
    parts: list[str] = []
    session.on("HeapProfiler.addHeapSnapshotChunk", lambda event: parts.append(event["chunk"]))
    session.send("HeapProfiler.takeHeapSnapshot", {"reportProgress": False})
    snapshot = json.loads("".join(parts))
    fields, kinds = snapshot["snapshot"]["meta"]["node_fields"], snapshot["snapshot"]["meta"]["node_types"][0]
    nodes = np.array(snapshot["nodes"]).reshape(-1, len(fields))
    counted = [kinds.index(kind) for kind in ("object", "closure", "array")]
    ours = np.isin(nodes[:, fields.index("type")], counted)
    return float(nodes[ours, fields.index("self_size")].sum())
