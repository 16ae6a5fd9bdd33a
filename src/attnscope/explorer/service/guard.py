"""Access checks, and the headers of every response.

In: requests of anyone who reaches the port: any page in the same browser, any user of the same machine. Out: requests
with the token, whose small body has been read; all others get an error response.
Does not know: routes, traces. Memory: a body of at most 64 KB per request.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from attnscope.errors import SettingError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MAX_TARGET_BYTES = 2**13  # path and query of a request
MAX_BODY_BYTES = 2**16
MAX_DRAIN_BYTES = 2**21  # read from a body that is too large, so that its sender receives the response

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
SECURITY_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every response."""

METHODS = ("GET", "POST")
NAME = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
PLAIN_PATH = re.compile(rb"/[A-Za-z0-9/._-]*")  # no route needs a percent sign


class RequestError(Exception):
    """An error response: a status and a message."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.close = status, message, close


class Settings:
    """The host names of a server, and the secrets of one run.

    Args:
        host: The address that the server binds.
        port: Its port.
        names: More host names, as HOST or HOST:PORT, for use through a tunnel or a proxy.

    Raises:
        SettingError: A name is not HOST or HOST:PORT.
    """

    def __init__(self, host: str, port: int, names: Sequence[str] = ()) -> None:
        hosts = ["127.0.0.1", "localhost", "[::1]", *([] if is_wildcard(host) else [bracket_ipv6(host)])]
        own = {f"{at}:{port}" for at in hosts}
        short = {name.removesuffix(":80") for name in own if port == 80}  # as browsers send it
        for name in names:
            if not NAME.fullmatch(name):
                raise SettingError(
                    f"explore: expected a name as HOST or HOST:PORT, such as localhost:9000, got {name[:80]!r}"
                )
        self.names = frozenset(name.lower() for name in {*own, *short, *names})
        self.origins = frozenset(f"{scheme}://{name}" for scheme in ("http", "https") for name in self.names)
        self.port = port
        self.token, self._cookie = secrets.token_hex(16), secrets.token_hex(16)
        self._one_time_tokens: set[str] = set()

    @property
    def cookie_name(self) -> str:
        """The name of the cookie; it contains the port, because all ports of a host share cookies."""
        return f"attnscope-{self.port}"

    @property
    def cookie(self) -> str:
        """The cookie that a browser gets for the token."""
        return f"{self.cookie_name}={self._cookie}"

    def make_one_time_token(self) -> str:
        """Make a token that works once: all users of a machine can read the command line of a browser."""
        token = secrets.token_hex(16)
        self._one_time_tokens.add(token)
        return token

    def accept_token(self, token: str) -> bool:
        """Whether this is the token, or a one-time token, which is then used up."""
        found = [known for known in self._one_time_tokens if _is_equal(known, token)]
        self._one_time_tokens.difference_update(found)
        return bool(found) or _is_equal(self.token, token)

    def has_cookie(self, cookies: str) -> bool:
        """Whether a Cookie header has the cookie of this run."""
        pairs = [pair.strip().partition("=") for pair in cookies.split(";")]
        return any(name == self.cookie_name and _is_equal(self._cookie, value) for name, _, value in pairs)


class Guard:
    """ASGI middleware that passes on only requests with access."""

    def __init__(self, app: App, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Check the request, cheapest checks first; read its body; pass it on."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
            await send(message)

        headers, has_read = Headers.from_scope(scope), False
        try:
            self._check_sender(headers)
            _check_form(scope, headers)
            if self._is_login(scope):
                await _send_response(send_with_headers, 303, b"", location=b"/", set_cookie=self._set_cookie())
                return
            self._check_cookie(headers)
            has_read = True
            if scope["method"] == "POST":
                receive = _replay(await _read_body(headers, receive), receive)
            await self._app(scope, receive, send_with_headers)
        except RequestError as error:
            if error.close and not has_read:
                await _drain(receive)
            body = json.dumps({"error": error.message}).encode()
            await _send_response(send_with_headers, error.status, body, close=error.close)
        except asyncio.CancelledError:  # the server is closing
            return

    def _check_sender(self, headers: Headers) -> None:
        """Reject requests from another site: an unknown Host (DNS rebinding), or another Origin."""
        if len(headers.hosts) != 1 or headers.hosts[0].lower() not in self._settings.names:
            known = ", ".join(sorted(self._settings.names))
            raise RequestError(
                403, f"Expected the host to be one of {known}. For another name, start with --name HOST:PORT."
            )
        if headers.origin is not None and headers.origin.lower() not in self._settings.origins:
            raise RequestError(403, "Requests from another site are not allowed.")
        if headers.fetch_site not in (None, "same-origin", "none"):
            raise RequestError(
                403, "Requests from another site are not allowed. Paste the address into a new tab instead."
            )

    def _is_login(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether this request has a valid token; raises a 403 for a wrong one."""
        if scope["path"] != "/" or scope["method"] != "GET":
            return False
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if tokens and not (len(tokens) == 1 and self._settings.accept_token(tokens[0])):
            raise RequestError(403, "The token in this address is from another run; use the address printed last.")
        return bool(tokens)

    def _check_cookie(self, headers: Headers) -> None:
        if not self._settings.has_cookie(headers.cookies):
            raise RequestError(
                401, "Open the address that was printed when the explorer started: it contains the token."
            )

    def _set_cookie(self) -> bytes:
        return f"{self._settings.cookie}; Path=/; HttpOnly; SameSite=Strict".encode()


class Headers(NamedTuple):
    """The headers that are checked."""

    hosts: list[str]
    origin: str | None
    fetch_site: str | None
    cookies: str
    content_type: str | None
    marked: bool
    length: int | None
    has_body: bool

    @staticmethod
    def from_scope(scope: MutableMapping[str, Any]) -> Headers:
        """Read the headers; of a repeated header the last counts, but all cookies and hosts are kept."""
        pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        last = dict(pairs)
        length = last.get("content-length", "")
        return Headers(
            hosts=[value for name, value in pairs if name == "host"],
            origin=last.get("origin"),
            fetch_site=last.get("sec-fetch-site"),
            cookies="; ".join(value for name, value in pairs if name == "cookie"),
            content_type=last.get("content-type"),
            marked=last.get("x-attnscope") == "1",
            length=int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None,
            has_body=length not in ("", "0") or "transfer-encoding" in last,
        )


def bracket_ipv6(host: str) -> str:
    """Format a host for use in an address.

    >>> bracket_ipv6("::1"), bracket_ipv6("127.0.0.1")
    ('[::1]', '127.0.0.1')
    """
    return f"[{host}]" if ":" in host else host


def is_wildcard(host: str) -> bool:
    """Whether a host means all addresses of the machine."""
    return host in ("", "0.0.0.0", "::")  # noqa: S104 - it is recognised, not used


def _is_equal(secret: str, given: str) -> bool:
    return secrets.compare_digest(secret.encode(), given.encode("utf-8", "surrogatepass"))


def _check_form(scope: MutableMapping[str, Any], headers: Headers) -> None:
    """Reject requests that the page never sends."""
    method, path = scope["method"], scope["raw_path"]
    if method not in METHODS:
        raise RequestError(405, f"Expected the method GET or POST, got {method[:20]}.", close=True)
    if len(path) + len(scope["query_string"]) > MAX_TARGET_BYTES:
        raise RequestError(414, f"Expected an address of at most {MAX_TARGET_BYTES:,} bytes.", close=True)
    if not PLAIN_PATH.fullmatch(path):
        raise RequestError(404, "Not found.")
    if method == "GET" and headers.has_body:
        raise RequestError(400, "Expected no body in a GET.", close=True)
    if method == "POST":
        kind = (headers.content_type or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(415, "Expected a POST with content-type application/json.", close=True)
        if not headers.marked:
            raise RequestError(403, "Expected a POST with the header x-attnscope: 1.", close=True)


async def _read_body(headers: Headers, receive: Receive) -> bytes:
    """Read the body, and count its bytes instead of trusting content-length."""
    body, size, more = bytearray(), 0, True
    while more and size <= MAX_DRAIN_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        part = message.get("body", b"")
        size, more = size + len(part), message.get("more_body", False)
        if size <= MAX_BODY_BYTES:
            body += part
    if size > MAX_BODY_BYTES or (headers.length or 0) > MAX_BODY_BYTES:
        raise RequestError(413, f"Expected a body of at most {MAX_BODY_BYTES:,} bytes.", close=True)
    return bytes(body)


async def _drain(receive: Receive) -> None:
    """Read some of an unwanted body: a client that is still sending does not receive the response."""
    size, more = 0, True
    while more and size <= MAX_DRAIN_BYTES:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that replays a body, and then passes on later messages such as disconnects."""
    waiting = [body]

    async def replay() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay


async def _send_response(send: Send, status: int, body: bytes, *, close: bool = False, **headers: bytes) -> None:
    """Send a response of the guard; `close` ends the connection if a body is left unread."""
    pairs = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    pairs += [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send(
        {"type": "http.response.start", "status": status, "headers": pairs + close * [(b"connection", b"close")]}
    )
    await send({"type": "http.response.body", "body": body})
