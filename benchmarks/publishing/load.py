"""Load on a web server by wrk: many connections that request one target after the other for a bounded time.

In: an address, and targets (a path and headers). Out: counts of responses and errors, and latencies.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attnscope.errors import SettingError
from benchmarks.publishing.web_servers import LOOPBACK

THREADS = 2
SCRIPT = """
local requests, at = {}, 0
init = function(args)
  for line in io.lines(args[1]) do
    local path, name, value = line:match("^(%S+)\\t(%S+)\\t(.*)$")
    requests[#requests + 1] = wrk.format("GET", path, { Host = wrk.headers["Host"], [name] = value })
  end
  math.randomseed(tonumber(args[2]))
end
request = function() return requests[math.random(#requests)] end
done = function(summary, latency, _)
  local e = summary.errors
  local socket = e.connect + e.read + e.write + e.timeout
  io.write(string.format(
    '{"requests": %d, "microseconds": %d, "num_bytes": %d, "error_responses": %d, "socket_errors": %d, ',
    summary.requests, summary.duration, summary.bytes, e.status, socket))
  local median, last = latency:percentile(50) / 1e3, latency:percentile(99) / 1e3
  io.write(string.format('"p50_ms": %.3f, "p99_ms": %.3f}\\n', median, last))
end
"""


class Target(NamedTuple):
    """One request: a path with its query, and a header."""

    path: str
    header: str
    value: str


class Load(NamedTuple):
    """What wrk counted. Latencies are those of all responses, errors included."""

    requests: int
    """Responses, those with an error status included."""
    microseconds: int
    num_bytes: int
    error_responses: int
    """Responses with a status of 400 or above."""
    socket_errors: int
    """Connections that failed, and responses that took over 2 seconds."""
    p50_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        """Successful responses per second."""
        return (self.requests - self.error_responses) / (self.microseconds / 1e6)


def generate_load(base: str, targets: Sequence[Target], folder: Path, *, connections: int, seconds: int) -> Load:
    """Request random targets over many connections; wrk stops by itself."""
    if not base.startswith(f"http://{LOOPBACK}:"):
        raise SettingError(f"publish: load is for {LOOPBACK} only, got {base}")
    (folder / "load.lua").write_text(SCRIPT, encoding="ascii")
    (folder / "targets").write_text("".join("\t".join(one) + "\n" for one in targets), encoding="ascii")
    command = ["wrk", "-c", str(connections), "-t", str(THREADS), "-d", f"{seconds}s", "-s", str(folder / "load.lua")]
    command += [base, "--", str(folder / "targets"), "0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if found.returncode != 0:
        raise SettingError(f"publish: wrk failed: {(found.stderr or found.stdout).strip()[-300:]}")
    return parse_load(found.stdout)


def parse_load(output: str) -> Load:
    """Read the line that the script prints after the summary of wrk."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise SettingError(f"publish: expected counts from wrk, got {output[-300:]!r}")
    return Load(**json.loads(lines[-1]))
