"""How long a page and its server take, measured in the page and over a connection."""

from __future__ import annotations

import http.client
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from playwright.sync_api import Page

from tests.explorer.serving import Handle

logger = logging.getLogger(__name__)  # pytest --log-level=info -rP shows what was measured

# Runs before the page: counts the script's own time in each frame, handlers of the hand's events included.
COUNT = """
window.busy = 0;
window.counting = (work) => function (...given) {
  const begun = performance.now();
  try { return work.apply(this, given); } finally { window.busy += performance.now() - begun; }
};
window.frame = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (work) => window.frame(window.counting(work));
const listen = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (type, work, options) {
  const timed = typeof work === "function" && /^(pointer|wheel|key)/.test(type) ? window.counting(work) : work;
  return listen.call(this, type, timed, options);
};
window.long_tasks = [];
new PerformanceObserver((list) => list.getEntries().forEach((entry) => window.long_tasks.push(entry.duration)))
  .observe({ type: "longtask" });
"""

FOLLOW = """() => {
  const mine = (window.followed = []);
  window.long_tasks.length = 0;
  let last = null;
  const look = (now) => {
    if (window.followed !== mine) return;
    if (last !== null) mine.push([now - last, window.busy]);
    window.busy = 0;
    last = now;
    window.frame(look);
  };
  window.frame(look);
}"""

# As much to draw as the map has: some forty tiles, moved a little in each frame.
REFERENCE = """() => new Promise((resolve) => {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: 1016, height: 839 });
  Object.assign(canvas.style, { position: "fixed", left: "0", top: "0" });
  document.body.append(canvas);
  const pen = canvas.getContext("2d"), tile = new OffscreenCanvas(256, 256), deltas = [];
  tile.getContext("2d").fillRect(0, 0, 256, 256);
  let last = null;
  const look = (now) => {
    if (last !== null) deltas.push(now - last);
    last = now;
    for (let at = 0; at < 40; at++)
      pen.drawImage(tile, (at % 8) * 128 + (now % 16), Math.floor(at / 8) * 168, 128, 168);
    if (deltas.length < 90) return requestAnimationFrame(look);
    canvas.remove();
    resolve(deltas);
  };
  requestAnimationFrame(look);
})"""

FIRST = 5  # frames that are left out: the first ones after a rest


def p95(values: Sequence[float]) -> float:
    """The value that 95 of 100 do not exceed."""
    return float(np.percentile(values, 95))


def kept(measure: Callable[[], dict[str, tuple[float, float]]], patience: float = 40) -> bool:
    """Whether measures, each (found, bound), keep their bounds together within `patience` seconds.

    A slow spell of the machine passes, and a slow page is not cured.
    """
    end = time.monotonic() + patience
    while True:
        found = measure()
        for name, (value, bound) in found.items():
            logger.info("%s: %.1f of %.1f ms", name, value, bound)
        if all(value <= bound for value, bound in found.values()):
            return True
        if time.monotonic() > end:
            return False


class Frames:
    """What a page did, frame by frame, since this was made."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.evaluate(FOLLOW)

    def end(self) -> tuple[list[float], list[float], list[float]]:
        """Milliseconds between frames, of script in each of them, and of long tasks."""
        seen: list[Any] = self.page.evaluate("[window.followed, (window.followed = null)][0]")
        between, busy = ([float(frame[part]) for frame in seen[FIRST:]] for part in (0, 1))
        return between, busy, self.page.evaluate("window.long_tasks")


def reference(page: Page) -> float:
    """The 95th percentile between frames of an animation that costs next to nothing."""
    return p95(page.evaluate(REFERENCE)[FIRST:])


def answer_times(server: Handle, paths: Sequence[str]) -> list[float]:
    """Milliseconds that each answer took, all of it, over one connection that stays open, as a browser's do."""
    connection, found = http.client.HTTPConnection(server.host, timeout=60), []
    try:
        for path in paths:
            begun = time.perf_counter()
            connection.request("GET", path, headers={"authorization": server.authorization})
            answer = connection.getresponse()
            answer.read()
            found.append((time.perf_counter() - begun) * 1000)
            assert answer.status == 200, path
    finally:
        connection.close()
    return found
