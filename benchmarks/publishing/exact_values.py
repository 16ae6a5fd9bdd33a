"""The deepest zoom of a site, which the browser computes, compared with the weights of the running explorer.

In: a page of the site, and a running explorer of the same trace. Out: how many weights were compared, and how far they
differ.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from playwright.sync_api import Page

from attnscope.atlas import ZoomPlan
from attnscope.errors import SettingError
from benchmarks.publishing.viewer import HeadId
from benchmarks.publishing.web_servers import Live

BODIES = """(paths) => Promise.all(paths.map(async (path) => {
  const body = await document.getElementById("explorer").attnscope.transport.bytes(path);
  return body && btoa(Array.from(new Uint8Array(body), (one) => String.fromCharCode(one)).join(""));
}))"""
SIDE = 64
HEADER = 32
TOGETHER = 8  # requests of the page at once


class Comparison(NamedTuple):
    """Weights of blocks of single cells, and codes of colours in tiles of the deepest level."""

    weights: int
    """Visible weights that were compared."""
    largest_difference: float
    largest_relative: float
    masks_differ: int
    """Cells that only one of both masks."""
    codes: int
    different_codes: int
    """Codes that differ; a colour code at the edge of its step may differ by one."""
    largest_code_difference: int


def compare(page: Page, live: Live, heads: Sequence[HeadId], length: int, blocks: int) -> Comparison:
    """Compare some blocks and tiles of each head, below the diagonal and on it; the same ones in each run."""
    trace = json.loads(get(live, "/api/1/session"))["traces"][0]["trace"]
    here, there = [], []
    paths = [f"{trace}/{layer}/{head}/{part}" for layer, head in heads for part in parts(length, blocks, layer, head)]
    for start in range(0, len(paths), TOGETHER):
        some = paths[start : start + TOGETHER]
        here += [base64.b64decode(body or "") for body in page.evaluate(BODIES, some)]
        there += [get(live, f"/api/1/{path}") for path in some]
    return compare_bodies(here, there)


def compare_bodies(here: Sequence[bytes], there: Sequence[bytes]) -> Comparison:
    """Compare responses one by one."""
    weights = masks = codes = different = furthest = 0
    largest = relative = 0.0
    for one, other in zip(here, there, strict=True):
        if (len(one), one[:24]) != (len(other), other[:24]):
            raise SettingError("publish: the site and the server answered with other shapes")
        if not other:  # masked as a whole
            continue
        if other[4] == 1:
            mine, theirs = (np.frombuffer(body, np.uint8, offset=HEADER).astype(int) for body in (one, other))
            codes += mine.size
            different += int((mine != theirs).sum())
            furthest = max(furthest, int(np.abs(mine - theirs).max()))
            continue
        mine, theirs = (np.frombuffer(body, np.float32, offset=HEADER).astype(float) for body in (one, other))
        masks += int((np.isnan(mine) != np.isnan(theirs)).sum())
        seen = ~(np.isnan(mine) | np.isnan(theirs))
        weights += int(seen.sum())
        gap = np.abs(mine[seen] - theirs[seen])
        largest = max(largest, float(gap.max(initial=0)))
        relative = max(relative, float((gap / np.maximum(theirs[seen], np.finfo(np.float32).tiny)).max(initial=0)))
    return Comparison(weights, largest, relative, masks, codes, different, furthest)


def parts(length: int, blocks: int, layer: int, head: int) -> Iterator[str]:
    """The requests of one head: blocks of single weights, and two tiles of the deepest level."""
    chance, side = random.Random(f"{layer} {head}"), min(SIDE, length)
    for number in range(blocks):
        query = chance.randint(0, length - side)
        key = query if number % 2 == 0 else chance.randint(0, query)
        yield f"cells?i0={query}&i1={query + side}&j0={key}&j1={key + side}"
    plan = ZoomPlan(length, length)
    last = plan.count_tiles(plan.deepest)[0] - 1
    for x in (last, last // 2):
        yield f"{plan.deepest}/{last}/{x}?ch=max"


def get(live: Live, path: str) -> bytes:
    """A response of the explorer."""
    connection = http.client.HTTPConnection(urlsplit(live.base).netloc, timeout=120)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {live.token}"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status not in (200, 204):
            raise SettingError(f"publish: the explorer answered {answer.status} for {path}")
        return body
    finally:
        connection.close()


def wait_for_levels(live: Live, head: HeadId, plan: ZoomPlan, seconds: float = 300.0) -> str:
    """Ask for the coarse levels of a head until they are built; return the path of its tiles."""
    trace = json.loads(get(live, "/api/1/session"))["traces"][0]["trace"]
    path, end = f"/api/1/{trace}/{head[0]}/{head[1]}", time.monotonic() + seconds
    while time.monotonic() < end:
        get(live, f"{path}/0/0/0?ch=mean")
        found: Any = json.loads(get(live, f"{path}/status"))
        if found["coarse"] == "ready" or not plan.coarse_levels:
            return path
        time.sleep(0.2)
    raise SettingError("publish: the explorer did not build the levels of a head in time")
