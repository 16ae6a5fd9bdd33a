"""Access checks, and the headers of every response.

In: requests of anyone who reaches the port: any page in the same browser, any user of the same machine. Out: requests
with the token, whose small body has been read, and those for the files of the page; all others get an error response.
The token is in a header that only the page itself sets. A cookie would be sent to every port of the host.
Does not know: routes, traces. Memory: a body of at most 64 KB per request.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from typing import Any, NamedTuple

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
ACCESS_PATH = "/api/1/access"
"""Returns the token for the token of an address, which may be a one-time token."""

AUTHORIZED = "attnscope.authorized"
"""The key of a scope that is set once its request has shown the token."""

NAME = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
PLAIN_PATH = re.compile(rb"/[A-Za-z0-9/._-]*")  # no route needs a percent sign


class RequestError(Exception):
    """An error response: a status and a message."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.close = status, message, close


class Settings:
    """The host names of a server, and the token of one run.

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
        self.token = secrets.token_hex(16)
        self._one_time_tokens: set[str] = set()

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

    def is_authorized(self, authorization: str | None) -> bool:
        """Whether an Authorization header has the token; a one-time token does not count."""
        return authorization is not None and _is_equal(f"Bearer {self.token}", authorization)


class Guard:
    """ASGI middleware that passes on only requests with access.

    Args:
        app: The app behind it.
        settings: Whom to let in.
        public: Paths that are served without the token: the files of the page, which contain no data.
    """

    def __init__(self, app: App, settings: Settings, public: Collection[str] = ()) -> None:
        self._app, self._settings, self._public = app, settings, frozenset(public)

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
            is_exchange = (scope["method"], scope["path"]) == ("POST", ACCESS_PATH)
            if not is_exchange and not self._is_public(scope):
                self._check_token(headers)
                scope[AUTHORIZED] = True
            has_read = True
            body = await _read_body(headers, receive) if scope["method"] == "POST" else b""
            if is_exchange:
                response = self._exchange(body)
                scope[AUTHORIZED] = True
                await _send_response(send_with_headers, 200, response)
                return
            if scope["method"] == "POST":
                receive = _replay(body, receive)
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
                403,
                f"Expected the host to be one of {known}. For another name, start with --name HOST:PORT.",
                close=True,
            )
        if headers.origin is not None and headers.origin.lower() not in self._settings.origins:
            raise RequestError(403, "Requests from another site are not allowed.", close=True)
        if headers.fetch_site not in (None, "same-origin", "none"):
            raise RequestError(
                403,
                "Requests from another site are not allowed. Paste the address into a new tab instead.",
                close=True,
            )

    def _is_public(self, scope: MutableMapping[str, Any]) -> bool:
        return scope["method"] == "GET" and scope["path"] in self._public

    def _check_token(self, headers: Headers) -> None:
        if not self._settings.is_authorized(headers.authorization):
            raise RequestError(
                401, "Open the address that was printed when the explorer started: it contains the token.", close=True
            )

    def _exchange(self, body: bytes) -> bytes:
        """Return the token for the one of an address, as JSON; raises a 403 for a wrong one."""
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            given = None
        token = given.get("token") if isinstance(given, dict) else None
        if not isinstance(token, str) or not self._settings.accept_token(token):
            raise RequestError(
                403, "The token in this address is from another run; use the address printed last.", close=True
            )
        return json.dumps({"token": self._settings.token}).encode()


class Headers(NamedTuple):
    """The headers that are checked."""

    hosts: list[str]
    origin: str | None
    fetch_site: str | None
    authorization: str | None
    content_type: str | None
    length: int | None
    has_body: bool
    has_two_framings: bool

    @staticmethod
    def from_scope(scope: MutableMapping[str, Any]) -> Headers:
        """Read the headers; of a repeated header the last counts, but all hosts are kept."""
        pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        last = dict(pairs)
        length = last.get("content-length", "")
        return Headers(
            hosts=[value for name, value in pairs if name == "host"],
            origin=last.get("origin"),
            fetch_site=last.get("sec-fetch-site"),
            authorization=last.get("authorization"),
            content_type=last.get("content-type"),
            length=int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None,
            has_body=length not in ("", "0") or "transfer-encoding" in last,
            has_two_framings="content-length" in last and "transfer-encoding" in last,
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
    if headers.has_two_framings:  # servers disagree on where such a request ends
        raise RequestError(400, "Expected content-length or transfer-encoding, got both.", close=True)
    if method == "GET" and headers.has_body:
        raise RequestError(400, "Expected no body in a GET.", close=True)
    if method == "POST":
        kind = (headers.content_type or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(415, "Expected a POST with content-type application/json.", close=True)


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


async def _send_response(send: Send, status: int, body: bytes, *, close: bool = False) -> None:
    """Send a response of the guard; `close` ends the connection."""
    pairs = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send(
        {"type": "http.response.start", "status": status, "headers": pairs + close * [(b"connection", b"close")]}
    )
    await send({"type": "http.response.body", "body": body})
