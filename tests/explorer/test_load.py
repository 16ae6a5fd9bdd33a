"""Many clients at once, while the coarse levels of a long head are being built: all are answered, within bounds."""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from attnscope.atlas.plan import ZoomPlan
from attnscope.attention.block_sizes import block_sizes
from attnscope.explorer.library.library import TILE_BYTES

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 64
# What a server may hold beside what it started with: tiles up to the limit of their cache, and what is computed: one
# tile at a time, while the building of levels stands still, and both within the budget of a walk.
MAX_BYTES = TILE_BYTES + block_sizes(torch.device("cpu")).step_bytes
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


class Process:
    """A server in a process of its own, and what /proc says of it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.address = process, urlsplit(url)
        self.headers = {"authorization": f"Bearer {self.address.fragment.removeprefix('token=')}"}

    def connected(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.address.hostname or "", self.address.port, timeout=60)

    def bytes_of(self, name: str) -> int:
        """VmRSS is now, VmHWM the most that ever was."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith(f"{name}:")).split()[1])

    def threads(self) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("threads\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def started(tokens: int) -> Iterator[Process]:
    command = [sys.executable, "-m", "tests.explorer.load_server", str(tokens)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            yield Process(process, process.stdout.readline().strip())
        finally:
            process.stdin.close()
            complaints = process.stderr.read()
            process.wait(30)
        assert process.returncode == 0
        assert complaints == ""


class Crowd:
    """Clients that ask for one random tile after the other, each over a connection that it keeps."""

    def __init__(self, server: Process, tokens: int, seconds: float) -> None:
        self.server, self.plan = server, ZoomPlan(tokens, tokens)
        self.statuses: Counter[int] = Counter()
        self.errors: list[str] = []
        self._end, self._lock = time.monotonic() + seconds, threading.Lock()
        session = asked(server, "/api/1/session")
        self.head = f"/api/1/{session['traces'][0]['trace']}/0/0"

    def run(self) -> None:
        threads = [threading.Thread(target=self._ask_on, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def tile(self, draw: random.Random) -> str:
        z = draw.randint(0, self.plan.deepest)
        down, across = self.plan.count_tiles(z)
        return f"{self.head}/{z}/{draw.randrange(down)}/{draw.randrange(across)}?ch={draw.choice(['mean', 'max'])}"

    def _ask_on(self, number: int) -> None:
        draw, connection = random.Random(number), self.server.connected()
        try:
            while time.monotonic() < self._end:
                connection.request("GET", self.tile(draw), headers=self.server.headers)
                answer = connection.getresponse()
                answer.read()
                with self._lock:
                    self.statuses[answer.status] += 1
        except Exception as error:  # of any kind: none is expected
            with self._lock:
                self.errors.append(f"client {number}: {type(error).__name__}: {error}")
        finally:
            connection.close()


def asked(server: Process, path: str) -> Any:
    connection = server.connected()
    try:
        connection.request("GET", path, headers=server.headers)
        answer = connection.getresponse()
        assert answer.status == 200
        return json.loads(answer.read())
    finally:
        connection.close()


def under_load(tokens: int, seconds: float) -> tuple[Crowd, dict[str, Any]]:
    """A crowd that has asked, and what was seen of the server meanwhile and after."""
    with started(tokens) as server:
        crowd = Crowd(server, tokens, seconds)
        before = server.bytes_of("VmRSS")
        seen: dict[str, Any] = {
            "threads before": server.threads(),
            "levels at first": asked(server, crowd.head + "/status"),
        }
        crowd.run()
        seen["levels"] = asked(server, crowd.head + "/status")
        seen["grown"] = server.bytes_of("VmHWM") - before
        waits = []
        for _ in range(20):
            start = time.monotonic()
            asked(server, "/api/1/session")
            waits.append(time.monotonic() - start)
            time.sleep(0.02)
        seen["wait after"] = sorted(waits)[10]
        seen["threads after"] = server.threads()
    return crowd, seen


def assert_stood(crowd: Crowd, seen: dict[str, Any]) -> None:
    assert crowd.errors == []
    assert set(crowd.statuses) <= {200, 204}
    assert sum(crowd.statuses.values()) >= CLIENTS, "each client got an answer, on average"
    assert seen["grown"] < MAX_BYTES
    assert seen["wait after"] < 0.5
    # Lanes make their threads when they are first used: 2 or so for tiles, and one that builds; none for a client.
    assert seen["threads after"] <= seen["threads before"] + 8


def test_a_crowd_is_answered_while_levels_are_built() -> None:
    crowd, seen = under_load(16_384, 5)
    assert seen["levels at first"]["coarse"] == "absent"
    assert seen["levels"]["coarse"] in ("building", "ready")
    assert_stood(crowd, seen)


@pytest.mark.timed
@pytest.mark.slow
def test_a_minute_of_a_crowd_at_65_536_tokens() -> None:
    crowd, seen = under_load(65_536, 60)
    assert seen["levels"]["coarse"] in ("building", "ready")
    assert_stood(crowd, seen)
    assert seen["wait after"] < 0.1
