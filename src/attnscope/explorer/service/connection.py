"""Connections that are slow, silent or too many: the part of the door that stands before any request is complete.

uvicorn closes a connection that is idle between requests; it waits for ever for the rest of a request, for a body, and
for somebody to read an answer. In: uvicorn's protocol for HTTP/1.1. Out: the same with an end to each of these.
Does not know: what requests ask for. Memory: a timer a connection.
"""

from __future__ import annotations

import logging
from asyncio import BaseTransport, TimerHandle
from typing import Any

from attnscope.extras import import_extra, require_names, unknown_version

MAX_CONNECTIONS = 64
REQUEST_TIMEOUT_SECONDS = 10.0  # from connecting, or from the last answer, until all of a request is there
SURPLUS_TIMEOUT_SECONDS = 1.0  # for one connection too many to hear that it is
WRITE_TIMEOUT_SECONDS = 30.0  # in which some of an answer has to be read
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\nretry-after: 1\r\n"
    b'content-length: 40\r\n\r\n{"error":"Too many connections at once"}'
)

OVERRIDDEN = (
    "connection_made",
    "connection_lost",
    "data_received",
    "on_response_complete",
    "pause_writing",
    "resume_writing",
)
ATTRIBUTES = ("connections", "conn", "loop", "logger", "timeout_keep_alive_task", "transport")  # set by its __init__

LOGGER = logging.getLogger("attnscope.explorer.http")
LOGGER.setLevel(logging.ERROR)  # requests that make no sense are answered, and not talked about


def make_protocol(
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS, write_timeout_seconds: float = WRITE_TIMEOUT_SECONDS
) -> type:
    """The class of the protocol with these limits."""
    uvicorn: Any = import_extra("uvicorn.protocols.http.h11_impl")
    _check(uvicorn)
    incomplete = (uvicorn.h11.IDLE, uvicorn.h11.SEND_BODY, uvicorn.h11.ERROR)

    class Patient(uvicorn.H11Protocol):
        """HTTP/1.1 with an end to patience."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.logger, self._surplus = LOGGER, False
            self._asking: TimerHandle | None = None
            self._hearing: TimerHandle | None = None

        def connection_made(self, transport: BaseTransport) -> None:
            super().connection_made(transport)
            self._surplus = len(self.connections) > MAX_CONNECTIONS
            self._await_request(SURPLUS_TIMEOUT_SECONDS if self._surplus else request_timeout_seconds)
            if len(self.connections) > 2 * MAX_CONNECTIONS:
                self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            _cancel(self._asking, self._hearing, self.timeout_keep_alive_task)

        def data_received(self, data: bytes) -> None:
            if self._surplus:
                self.transport.write(FULL)
                self.transport.close()
            if self.transport.is_closing():
                return
            super().data_received(data)
            self._rest_if_complete()

        def on_response_complete(self) -> None:
            self._await_request(request_timeout_seconds)
            super().on_response_complete()  # which may find the next request, already there
            self._rest_if_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            _cancel(self._hearing)
            self._hearing = self.loop.call_later(write_timeout_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            _cancel(self._hearing)

        def _await_request(self, seconds: float) -> None:
            """End the connection, whatever is still to be sent, unless a request is complete in time."""
            _cancel(self._asking)
            self._asking = self.loop.call_later(seconds, self.transport.abort)

        def _rest_if_complete(self) -> None:
            if self.conn.their_state not in incomplete and not self.transport.is_closing():
                _cancel(self._asking)

    return Patient


def _check(uvicorn: Any) -> None:
    """Raise VersionError if uvicorn's protocol lacks something that is overridden or read here."""
    require_names("uvicorn", uvicorn, "h11", "H11Protocol")
    require_names("uvicorn", uvicorn.H11Protocol, *OVERRIDDEN)
    for name in ATTRIBUTES:
        if name not in uvicorn.H11Protocol.__init__.__code__.co_names:
            raise unknown_version("uvicorn", f"H11Protocol.{name}")


def _cancel(*timers: TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
