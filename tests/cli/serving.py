"""Commands that serve a page: in a process that Ctrl-C ends, or in this one, whose server is asked and closed."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
from pathlib import Path

from attnscope.explorer.launch import Server


def started(*arguments: str | Path) -> tuple[subprocess.Popen[str], str]:
    """A process that waits for Ctrl-C, and the address that it has printed."""
    program = [sys.executable, "-m", "attnscope.cli.main", *map(str, arguments)]
    process = subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    address, last = process.stdout.readline(), process.stdout.readline()
    assert last == "Press Ctrl-C to stop.\n"
    return process, address


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def asked(address: str, path: str = "/api/1/session") -> tuple[int, str]:
    """What a browser that was given the address is told."""
    found = re.search(r"http://(127\.0\.0\.1:\d+)/#token=(\S+)$", address.strip())
    assert found is not None
    connection = http.client.HTTPConnection(found[1], timeout=60)
    connection.request("GET", path, headers={"authorization": f"Bearer {found[2]}"})
    answer = connection.getresponse()
    told = answer.status, answer.read().decode()
    connection.close()
    return told


class Visitor:
    """Instead of `Server.wait`: ask the server for some paths, and close it."""

    def __init__(self) -> None:
        self.paths: list[str] = ["/api/1/session"]
        self.answers: list[tuple[int, str]] = []

    def visit(self, server: Server) -> None:
        self.answers = [asked(server.url, path) for path in self.paths]
        server.close()
