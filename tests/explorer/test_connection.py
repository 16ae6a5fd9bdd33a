"""A client may read as slowly as its line is, but it has to read: real sockets, and timers that the test fires."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from attnscope.explorer.launch import Server
from attnscope.explorer.library.library import Library
from tests.explorer.serving import PAGE

BODY = bytes(range(256)) * 2**15  # 8 MB: more than the buffers of the kernel hold
PIECE = 2**20


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.005)


class Reader:
    """A client that has asked for a large file, and the server's side of its connection."""

    def __init__(self, server: Server, client: socket.socket, *lines: str) -> None:
        assert server._loop is not None
        self.client, self._loop = client, server._loop
        client.sendall(
            "\r\n".join(["GET /explorer.js HTTP/1.1", f"host: 127.0.0.1:{server.port}", *lines, "", ""]).encode()
        )
        connections = server._uvicorn.server_state.connections
        until(lambda: any(one.transport.get_write_buffer_size() for one in list(connections)), "the response")
        (self.connection,) = connections
        self._connections = connections

    @property
    def unread(self) -> int:
        """Bytes that the server has not given to the kernel."""
        return self.connection.transport.get_write_buffer_size()

    @property
    def is_cut(self) -> bool:
        """Whether the server has ended the connection."""
        return self.connection not in self._connections

    def read(self, size: int) -> bytes:
        """Read exactly so many bytes, or fewer at the end."""
        found = bytearray()
        while len(found) < size and (part := self.client.recv(min(2**16, size - len(found)))):
            found += part
        return bytes(found)

    def time_out(self) -> None:
        """Let all timers of the connection run out."""
        done = threading.Event()

        def fire() -> None:
            timers: list[asyncio.TimerHandle | None] = [self.connection._request_timer, self.connection._write_timer]
            for timer in timers:
                if timer is not None and not timer.cancelled():
                    timer._run()  # type: ignore[attr-defined]
            self._loop.call_soon(done.set)

        self._loop.call_soon_threadsafe(fire)
        assert done.wait(20)


@contextmanager
def reading(*lines: str) -> Iterator[Reader]:
    assets: Any = {**PAGE, "explorer.js": BODY}
    with Server(Library(), assets=assets) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        client.settimeout(20)
        client.connect(("127.0.0.1", server.port))
        yield Reader(server, client, *lines)


@pytest.mark.parametrize("lines", [(), ("connection: close",)], ids=["kept open", "closed afterwards"])
def test_who_reads_slowly_gets_everything(lines: tuple[str, ...]) -> None:
    """After each piece, as much time passes as the server waits for the next request, and for progress."""
    with reading(*lines) as reader:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += reader.read(1)
        assert head.startswith(b"HTTP/1.1 200")
        found, pieces = b"", 0
        while reader.unread:
            before = reader.unread
            found += reader.read(PIECE)
            until(lambda before=before: reader.unread < before, "the server to see that something was read")
            if reader.unread:
                reader.time_out()
                pieces += 1
        assert found + reader.read(len(BODY) - len(found)) == BODY
        assert pieces >= 5


def test_who_stops_reading_is_cut_off() -> None:
    with reading() as reader:
        reader.read(PIECE)
        for _ in range(3):
            reader.time_out()
        until(lambda: reader.is_cut, "the end")


def test_who_has_read_and_asks_for_nothing_is_cut_off() -> None:
    with reading() as reader:
        found = b""
        while len(found) < len(BODY):
            found += reader.read(PIECE)
        reader.time_out()
        until(lambda: reader.is_cut, "the end")
