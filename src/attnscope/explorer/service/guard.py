"""The door of the explorer: who may speak to it, and what every answer carries.

In: requests of whoever reaches the port: any page in the same browser, any user of the same machine. Out: those of the
person who has the token, with a body that was read and is small; all others are answered with a sentence.
Does not know: routes, traces. Memory: a body of at most 64 KB a request.
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

MAX_TARGET_BYTES = 2**13  # bytes of the address of a request
MAX_BODY_BYTES = 2**16
MAX_DRAIN_BYTES = 2**21  # bytes of a body that is too large which are read, so that its sender gets to read the answer

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
ALWAYS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every answer."""

METHODS = ("GET", "POST")
NAME = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
PLAIN_PATH = re.compile(rb"/[A-Za-z0-9/._-]*")  # no address of ours needs a percent sign


class RequestError(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, sentence: str, *, close: bool = False) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.close = status, sentence, close


class Settings:
    """The names that a server answers to, and the secrets of one run.

    `names` are further hosts with their ports, as they stand in an address behind a tunnel or a proxy.
    """

    def __init__(self, host: str, port: int, names: Sequence[str] = ()) -> None:
        hosts = ["127.0.0.1", "localhost", "[::1]", *([] if is_wildcard(host) else [bracket_ipv6(host)])]
        own = {f"{at}:{port}" for at in hosts}
        short = {name.removesuffix(":80") for name in own if port == 80}  # as browsers write it
        for name in names:
            if not NAME.fullmatch(name):
                raise SettingError(
                    f"explore: the name {name[:80]!r} was given; a name is HOST or HOST:PORT, as localhost:9000"
                )
        self.names = frozenset(name.lower() for name in {*own, *short, *names})
        self.origins = frozenset(f"{scheme}://{name}" for scheme in ("http", "https") for name in self.names)
        self.port = port
        self.token, self._cookie = secrets.token_hex(16), secrets.token_hex(16)
        self._once: set[str] = set()

    @property
    def cookie_name(self) -> str:
        """Cookies of one host are shared by all its ports, so that each server has a name of its own."""
        return f"attnscope-{self.port}"

    @property
    def cookie(self) -> str:
        """What a browser says once it has shown the token."""
        return f"{self.cookie_name}={self._cookie}"

    def invitation(self) -> str:
        """A token that is good for once: what starts a browser can be read by all users of a machine."""
        token = secrets.token_hex(16)
        self._once.add(token)
        return token

    def admits(self, token: str) -> bool:
        """Whether this is the token, or an invitation, which is used up then."""
        found = [known for known in self._once if _same(known, token)]
        self._once.difference_update(found)
        return bool(found) or _same(self.token, token)

    def knows(self, cookies: str) -> bool:
        """Whether a Cookie header has our cookie."""
        pairs = [pair.strip().partition("=") for pair in cookies.split(";")]
        return any(name == self.cookie_name and _same(self._cookie, value) for name, _, value in pairs)


class Guard:
    """An ASGI app around another that lets through what it may answer."""

    def __init__(self, app: App, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Check, in the order in which it is cheapest to say no; only then read."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *ALWAYS]
            await send(message)

        headers, heard = Headers.of(scope), False
        try:
            self._check_sender(headers)
            _check_form(scope, headers)
            if self._entering(scope):
                await _answer(send_with_headers, 303, b"", location=b"/", set_cookie=self._set_cookie())
                return
            self._check_cookie(headers)
            heard = True
            if scope["method"] == "POST":
                receive = _replayed(await _read(headers, receive), receive)
            await self._app(scope, receive, send_with_headers)
        except RequestError as refused:
            if refused.close and not heard:
                await _read_out(receive)
            body = json.dumps({"error": refused.sentence}).encode()
            await _answer(send_with_headers, refused.status, body, close=refused.close)
        except asyncio.CancelledError:  # the server closes, and nobody listens any more
            return

    def _check_sender(self, headers: Headers) -> None:
        """Refuse requests that another site has caused: a name of its own for our address, or its Origin."""
        if len(headers.hosts) != 1 or headers.hosts[0].lower() not in self._settings.names:
            known = ", ".join(sorted(self._settings.names))
            raise RequestError(
                403, f"This server answers to {known}. For another name, start it with --name HOST:PORT."
            )
        if headers.origin is not None and headers.origin.lower() not in self._settings.origins:
            raise RequestError(403, "This request comes from another site, and is refused.")
        if headers.fetch_site not in (None, "same-origin", "none"):
            raise RequestError(
                403, "This request comes from another site, and is refused. Paste the address into a new tab instead."
            )

    def _entering(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether this is the first request of a browser, with the right token."""
        if scope["path"] != "/" or scope["method"] != "GET":
            return False
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if tokens and not (len(tokens) == 1 and self._settings.admits(tokens[0])):
            raise RequestError(
                403, "The token in this address is not the one of this run; take the address printed last."
            )
        return bool(tokens)

    def _check_cookie(self, headers: Headers) -> None:
        if not self._settings.knows(headers.cookies):
            raise RequestError(401, "Open the address that was printed when the explorer started: it carries a token.")

    def _set_cookie(self) -> bytes:
        return f"{self._settings.cookie}; Path=/; HttpOnly; SameSite=Strict".encode()


class Headers(NamedTuple):
    """What the door reads of a request."""

    hosts: list[str]
    origin: str | None
    fetch_site: str | None
    cookies: str
    content_type: str | None
    marked: bool
    length: int | None
    has_body: bool

    @staticmethod
    def of(scope: MutableMapping[str, Any]) -> Headers:
        """Those of a request; of a header that comes twice, the last, but all cookies and hosts."""
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
    """A host as it stands in an address.

    >>> bracket_ipv6("::1"), bracket_ipv6("127.0.0.1")
    ('[::1]', '127.0.0.1')
    """
    return f"[{host}]" if ":" in host else host


def is_wildcard(host: str) -> bool:
    """Whether a host stands for all addresses of a machine."""
    return host in ("", "0.0.0.0", "::")  # noqa: S104 - it is recognised, not used


def _same(secret: str, given: str) -> bool:
    return secrets.compare_digest(secret.encode(), given.encode("utf-8", "surrogatepass"))


def _check_form(scope: MutableMapping[str, Any], headers: Headers) -> None:
    """Refuse what no page of ours would send."""
    method, path = scope["method"], scope["raw_path"]
    if method not in METHODS:
        raise RequestError(405, f"{method[:20]} is not understood here; there are GET and POST.", close=True)
    if len(path) + len(scope["query_string"]) > MAX_TARGET_BYTES:
        raise RequestError(414, f"The address is longer than {MAX_TARGET_BYTES:,} bytes.", close=True)
    if not PLAIN_PATH.fullmatch(path):
        raise RequestError(404, "There is nothing at this address.")
    if method == "GET" and headers.has_body:
        raise RequestError(400, "A GET has no body.", close=True)
    if method == "POST":
        kind = (headers.content_type or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(415, "A POST carries application/json.", close=True)
        if not headers.marked:
            raise RequestError(403, "A POST carries the header x-attnscope: 1.", close=True)


async def _read(headers: Headers, receive: Receive) -> bytes:
    """The body, counted while it comes, however long it says it is."""
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
        raise RequestError(413, f"A body has at most {MAX_BODY_BYTES:,} bytes.", close=True)
    return bytes(body)


async def _read_out(receive: Receive) -> None:
    """Hear some of a body that nobody wants: who is hung up on while speaking does not hear the answer."""
    size, more = 0, True
    while more and size <= MAX_DRAIN_BYTES:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Hears a body that was read already, and then what is still to come: that somebody has gone."""
    waiting = [body]

    async def hear() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return hear


async def _answer(send: Send, status: int, body: bytes, *, close: bool = False, **headers: bytes) -> None:
    """Send an answer of the door's own; where a body is left unread, the connection ends with it."""
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
