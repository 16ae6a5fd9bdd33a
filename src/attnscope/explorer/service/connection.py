"""Timeouts and a limit for connections.

uvicorn closes a connection that is idle between requests, but it waits forever for the rest of a request, for a body,
and for a client to read a response. In: uvicorn's HTTP/1.1 protocol. Out: the same with a timeout for each of these.
At the limit, a connection that has not shown the token is dropped for a new one, so nobody without it can use them up.
Does not know: routes, what the token is. Memory: two timers and a small send buffer per connection.
"""

from __future__ import annotations

import logging
import socket
from asyncio import BaseTransport, TimerHandle
from typing import TYPE_CHECKING, Any

from attnscope.explorer.service.guard import AUTHORIZED
from attnscope.extras import import_extra, require_names, unknown_version

MAX_CONNECTIONS = 64
REQUEST_TIMEOUT_SECONDS = 10.0  # from connecting, or from the last response, until a request is complete
SURPLUS_TIMEOUT_SECONDS = 1.0  # for a connection above the limit to send a request, which gets an error
WRITE_TIMEOUT_SECONDS = 30.0  # for the client to read some of a response
SEND_BUFFER_BYTES = 2**17  # in the kernel, where progress is not seen: it takes more only after a third has been read
TOO_MANY_RESPONSE = (
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
# Set by its __init__.
ATTRIBUTES = ("connections", "conn", "loop", "logger", "scope", "timeout_keep_alive_task", "transport")

Base: Any = Any if TYPE_CHECKING else object

LOGGER = logging.getLogger("attnscope.explorer.http")
LOGGER.setLevel(logging.ERROR)  # invalid requests get a response, and are not logged


class ConnectionLimits(Base):
    """Timeouts and a limit on connections, to be mixed into uvicorn's protocol."""

    request_timeout_seconds: float
    write_timeout_seconds: float
    incomplete_states: tuple[Any, ...]
    """States of h11 in which more of a request is to come."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger, self._start_time = LOGGER, 0.0
        self._surplus = self._dropped = self._was_authorized = False
        self._request_timer = self._write_timer = None

    @property
    def is_authorized(self) -> bool:
        """Whether a request of this connection has shown the token."""
        return self._was_authorized or (self.scope is not None and AUTHORIZED in self.scope)

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._start_time = self.loop.time()
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._surplus = not self._make_room()
        self._start_request_timer(SURPLUS_TIMEOUT_SECONDS if self._surplus else self.request_timeout_seconds)
        if sum(one._surplus for one in self.connections) > MAX_CONNECTIONS:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._request_timer, self._write_timer, self.timeout_keep_alive_task)

    def data_received(self, data: bytes) -> None:
        if self._surplus:
            self.transport.write(TOO_MANY_RESPONSE)
            self.transport.close()
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._stop_timer_if_complete()

    def on_response_complete(self) -> None:
        self._was_authorized = self.is_authorized  # the next request has another scope
        self._start_request_timer(self.request_timeout_seconds)
        super().on_response_complete()  # may start the next request, which has already arrived
        self._stop_timer_if_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def _make_room(self) -> bool:
        """Drop the oldest connection without the token if there are too many; False if all have shown it."""
        others = [one for one in self.connections if one is not self and not (one._surplus or one._dropped)]
        if len(others) < MAX_CONNECTIONS:
            return True
        strangers = [one for one in others if not one.is_authorized]
        if strangers:
            oldest = min(strangers, key=lambda one: one._start_time)
            oldest._dropped = True
            oldest.transport.abort()
        return bool(strangers)

    def _watch_reading(self, before: int | None = None) -> None:
        """Abort the connection unless the client has read some of a response since there were `before` bytes."""
        self._stop_watching()
        unread = self.transport.get_write_buffer_size()
        if before is not None and unread >= before:
            self.transport.abort()
        elif unread:
            self._write_timer = self.loop.call_later(self.write_timeout_seconds, self._watch_reading, unread)

    def _start_request_timer(self, seconds: float) -> None:
        """Abort the connection unless a request is complete in time."""
        _cancel(self._request_timer)
        self._request_timer = self.loop.call_later(seconds, self._end_request_wait)

    def _end_request_wait(self) -> None:
        if not self.transport.get_write_buffer_size():
            return self.transport.abort()
        self._start_request_timer(self.request_timeout_seconds)  # the client is still reading the response before
        if self._write_timer is None:
            self._watch_reading()
        return None

    def _stop_watching(self) -> None:
        _cancel(self._write_timer)
        self._write_timer = None

    def _stop_timer_if_complete(self) -> None:
        if self.conn.their_state not in self.incomplete_states and not self.transport.is_closing():
            _cancel(self._request_timer)


def make_protocol(
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS, write_timeout_seconds: float = WRITE_TIMEOUT_SECONDS
) -> type:
    """Make the protocol class with these timeouts; raises VersionError if uvicorn has changed."""
    uvicorn: Any = import_extra("uvicorn.protocols.http.h11_impl")
    _check(uvicorn)
    attributes = {
        "request_timeout_seconds": request_timeout_seconds,
        "write_timeout_seconds": write_timeout_seconds,
        "incomplete_states": (uvicorn.h11.IDLE, uvicorn.h11.SEND_BODY, uvicorn.h11.ERROR),
    }
    return type("LimitedProtocol", (ConnectionLimits, uvicorn.H11Protocol), attributes)


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
