"""Nobody speaks to the explorer but the person who started it: real requests over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from attnscope.errors import SettingError
from attnscope.explorer.service.app import PAGE_PATHS
from attnscope.explorer.service.connection import MAX_CONNECTIONS
from attnscope.explorer.service.guard import (
    ACCESS_PATH,
    CONTENT_SECURITY_POLICY,
    MAX_BODY_BYTES,
    Guard,
    Message,
    Settings,
)
from tests.explorer.serving import Answer, Handle, serving, small_trace

SESSION = "/api/1/session"
JSON = {"content-type": "application/json"}
PROMISED = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
OTHER_HOSTS = [
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1",
    "127.0.0.1:1",
    "127.0.0.1:{port}.evil.example",
    "0.0.0.0:{port}",
    "localhost:{port}@evil.example",
]
FILES = [
    r"/..%2f..%2fetc%2fpasswd",
    r"/%00",
    r"/api%2f1/session",
    r"/explorer.js%00.css",
    r"/../../etc/passwd",
    r"//etc/passwd",
    r"/\windows",
    r"/static/explorer.js",
    r"/api/1/..%2f/meta",
    r"/explorer.js/",
    r"/index.html",
    r"/api/1/session/",
]


@pytest.fixture(scope="module")
def handle() -> Iterator[Handle]:
    with serving(small_trace(), request_timeout_seconds=1.0) as handle:
        yield handle


def raw(handle: Handle, request: bytes, *, seconds: float = 5.0) -> bytes:
    """Whatever comes back until the server hangs up."""
    with socket.create_connection(("127.0.0.1", handle.server.port), timeout=seconds) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def head(handle: Handle, path: str = SESSION, *lines: str, method: str = "GET") -> bytes:
    """A request up to its body, that asks to hang up after the answer."""
    first = [f"{method} {path} HTTP/1.1", f"host: {handle.host}", f"authorization: {handle.authorization}"]
    first.append("connection: close")
    return "\r\n".join([*first, *lines, "", ""]).encode("latin-1")


def sent_until_refused(handle: Handle, begin: bytes, piece: bytes, *, most: int, pause: float = 0.0) -> int:
    """How many bytes of an endless request are taken before the server hangs up."""
    sent = 0
    with socket.create_connection(("127.0.0.1", handle.server.port), timeout=5) as connection:
        connection.sendall(begin)
        try:
            while sent < most:
                sent += connection.send(piece)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            return sent
    raise AssertionError(f"{sent:,} bytes were taken")


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_refused(answer: Answer, status: int) -> None:
    assert answer.status == status
    assert isinstance(answer.json["error"], str)
    assert answer.headers["cache-control"] == "no-store"
    assert PROMISED.items() <= answer.headers.items()
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_the_policy_is_the_one_that_was_decided() -> None:
    assert CONTENT_SECURITY_POLICY == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )


@pytest.mark.parametrize("path", ["/", "/explorer.js", "/explorer.css", SESSION, "/nothing"])
def test_every_answer_carries_the_promised_headers(handle: Handle, path: str) -> None:
    answer = handle.get(path)
    assert PROMISED.items() <= answer.headers.items()
    assert "server" not in answer.headers
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "LocalHost"])
def test_each_of_our_names_is_answered(handle: Handle, name: str) -> None:
    assert handle.get(SESSION, host=f"{name}:{handle.server.port}").status == 200


@pytest.mark.parametrize("name", [*OTHER_HOSTS, ""])
def test_any_other_host_is_refused_before_anything_else(handle: Handle, name: str) -> None:
    host, given = name.format(port=handle.server.port), {"token": handle.server.settings.token}
    for path in (SESSION, "/nothing", "/"):
        is_refused(handle.get(path, host=host), 403)
    is_refused(handle.request("POST", ACCESS_PATH, {"host": host, **JSON}, json.dumps(given).encode()), 403)


def test_two_hosts_or_none_are_refused(handle: Handle) -> None:
    assert raw(handle, head(handle, SESSION, "host: evil.example")).startswith(b"HTTP/1.1 4")
    assert raw(handle, b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(handle, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", "file://"]
)
def test_a_foreign_origin_is_refused(handle: Handle, origin: str) -> None:
    is_refused(handle.get(SESSION, origin=origin), 403)
    is_refused(handle.post("/api/1/run", {"text": "a"}, origin=origin), 403)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_a_request_that_another_site_has_caused_is_refused(handle: Handle, site: str) -> None:
    is_refused(handle.get(SESSION, sec_fetch_site=site), 403)
    is_refused(handle.get("/", sec_fetch_site=site), 403)
    given = {"token": handle.server.settings.token}
    is_refused(handle.post(ACCESS_PATH, given, sec_fetch_site=site), 403)


def test_our_own_page_is_answered(handle: Handle) -> None:
    assert handle.get(SESSION, origin=handle.base, sec_fetch_site="same-origin").status == 200
    assert handle.get("/", sec_fetch_site="none").status == 200


def test_without_the_token_there_is_the_empty_page_and_nothing_else(handle: Handle) -> None:
    token = handle.server.settings.token
    wrong = ["", token, f"Bearer {token[:-1]}", f"Bearer {token}0", f"Basic {token}", f"bearer {token}", "Bearer \xe9"]
    for path in (SESSION, f"/api/1/{'0' * 32}/meta", "/nothing", "/api/1/run", ACCESS_PATH):
        for authorization in wrong:
            is_refused(handle.get(path, authorization=authorization), 401)
    assert {path for path in PAGE_PATHS if path.startswith("/api")} == set()
    for path in ("/", "/explorer.js", "/explorer.css"):
        answer = handle.get(path, authorization="")
        assert (answer.status, "set-cookie" in answer.headers) == (200, False)
        assert token.encode() not in answer.body


def test_every_route_but_those_of_the_page_needs_the_token(handle: Handle) -> None:
    guard = handle.server._uvicorn.config.app
    for route in guard._app.routes:
        path = re.sub("{[a-z]+}", "0", route.path)
        for method in route.methods - {"HEAD"}:
            answer = handle.request(method, path, {"authorization": "", **JSON}, b"{}" if method == "POST" else None)
            assert (answer.status == 401) == (route.path not in PAGE_PATHS), route.path


def test_no_cookie_opens_anything_and_none_is_set(handle: Handle) -> None:
    token = handle.server.settings.token
    for cookie in (f"token={token}", f"attnscope-{handle.server.port}={token}", f"authorization=Bearer {token}"):
        is_refused(handle.get(SESSION, authorization="", cookie=cookie), 401)
    for answer in (handle.get("/"), handle.get(SESSION), handle.post(ACCESS_PATH, {"token": token})):
        assert "set-cookie" not in answer.headers


def test_cookies_of_other_servers_do_not_lock_the_owner_out(handle: Handle) -> None:
    """As many as a browser keeps for a host and sends along, each as long as it may be."""
    cookies = "; ".join(f"{number:03}={'x' * 4000}" for number in range(180))
    assert handle.get("/", cookie=cookies).status == 200
    assert handle.get(SESSION, cookie=cookies).status == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"null", b'"x"', b'{"token":null}', b'{"token":7}', b'{"token":""}', b"[" * 60_000]
    + [b'{"token":"%s"}' % wrong for wrong in (b"0" * 32, b"\\u0000", b"\\ud800", b"TOKEN0", b"TOKEN ")],
)
def test_a_wrong_token_is_refused(handle: Handle, body: bytes) -> None:
    body = body.replace(b"TOKEN", handle.server.settings.token.encode())
    is_refused(handle.post(ACCESS_PATH, body, authorization=""), 403)


def test_a_token_has_128_bits_and_is_another_in_each_run() -> None:
    tokens = {Settings("127.0.0.1", 1).token for _ in range(100)}
    assert len(tokens) == 100
    assert {len(bytes.fromhex(token)) for token in tokens} == {16}


def test_what_the_browser_is_started_with_is_good_for_once(handle: Handle) -> None:
    settings = handle.server.settings
    once = settings.make_one_time_token()
    is_refused(handle.get(SESSION, authorization=f"Bearer {once}"), 401)
    assert handle.post(ACCESS_PATH, {"token": once}, authorization="").json == {"token": settings.token}
    is_refused(handle.post(ACCESS_PATH, {"token": once}, authorization=""), 403)
    for _ in range(2):
        assert handle.post(ACCESS_PATH, {"token": settings.token}, authorization="").status == 200


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
@pytest.mark.parametrize("path", ["/", SESSION, "/api/1/run"])
def test_there_are_only_get_and_post(handle: Handle, method: str, path: str) -> None:
    answer = handle.request(method, path)
    assert answer.status == 405
    assert PROMISED.items() <= answer.headers.items()


@pytest.mark.parametrize("path", ["/api/1/run", "/api/1/generate"])
def test_what_writes_is_no_get_and_what_reads_is_no_post(handle: Handle, path: str) -> None:
    is_refused(handle.get(path), 405)
    is_refused(handle.post(SESSION, {}), 405)


@pytest.mark.parametrize("path", FILES)
def test_no_address_leads_to_a_file(handle: Handle, path: str) -> None:
    is_refused(handle.get(path), 404)


def test_an_address_that_is_no_path_is_refused(handle: Handle) -> None:
    for target in ("*", "http://evil.example/", "evil.example:80", "/é"):
        assert raw(handle, head(handle, target)).startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))


def test_a_long_request_line_is_refused(handle: Handle) -> None:
    is_refused(handle.get(f"{SESSION}?x={'x' * 8200}"), 414)
    assert handle.get(f"{SESSION}?x={'x' * 8000}").status == 200


def test_endless_headers_are_refused(handle: Handle) -> None:
    line = b"x-more: " + b"y" * 10_000 + b"\r\n"
    assert sent_until_refused(handle, head(handle)[:-2], line, most=2**24, pause=0.0001) < 2**22


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"])
def test_a_post_of_another_kind_is_refused(handle: Handle, kind: str) -> None:
    is_refused(handle.post("/api/1/run", {"text": "a"}, content_type=kind), 415)


def test_a_large_body_is_refused_however_it_comes(handle: Handle) -> None:
    for body in (b"x" * 2**20, b"x" * (MAX_BODY_BYTES + 1)):
        is_refused(handle.request("POST", "/api/1/run", JSON, body), 413)
        is_refused(handle.request("POST", ACCESS_PATH, JSON, body), 413)
        pieces = (body[start : start + 1000] for start in range(0, len(body), 1000))
        is_refused(handle.request("POST", "/api/1/run", JSON, pieces), 413)
    assert handle.request("POST", "/api/1/run", JSON, b"x" * MAX_BODY_BYTES).status == 409
    assert handle.request("POST", "/api/1/run", JSON, iter([b"{}"])).status == 409


def test_a_body_that_never_ends_is_not_read_for_ever(handle: Handle) -> None:
    lines = ("content-type: application/json", "transfer-encoding: chunked")
    begin = head(handle, "/api/1/run", *lines, method="POST")
    assert sent_until_refused(handle, begin, b"10000\r\n" + b"x" * 65536 + b"\r\n", most=2**27) < 2**24


def test_a_get_with_a_body_is_refused(handle: Handle) -> None:
    is_refused(handle.request("GET", SESSION, body=b"x"), 400)
    is_refused(handle.request("GET", SESSION, body=iter([b"x"])), 400)


def test_two_lengths_that_differ_are_refused(handle: Handle) -> None:
    lines = ("content-type: application/json", "content-length: 2", "content-length: 3")
    assert raw(handle, head(handle, "/api/1/run", *lines, method="POST") + b"{}").startswith(b"HTTP/1.1 400")


def test_a_request_whose_end_is_given_in_two_ways_is_refused(handle: Handle) -> None:
    lines = ("content-type: application/json", "content-length: 2", "transfer-encoding: chunked")
    body = b"2\r\n{}\r\n0\r\n\r\n"
    assert raw(handle, head(handle, "/api/1/run", *lines, method="POST") + body).startswith(b"HTTP/1.1 400")
    assert raw(handle, head(handle, "/api/1/run", lines[0], lines[2], method="POST") + body).startswith(b"HTTP/1.1 409")


@pytest.mark.parametrize("started", ["", "GET / HTTP/1.1\r\nhost: ", "POST"])
def test_who_sends_no_complete_request_is_hung_up_on(handle: Handle, started: str) -> None:
    lines = ("content-type: application/json", "content-length: 5")
    request = head(handle, "/api/1/run", *lines, method="POST") + b"{" if started == "POST" else started.encode()
    before = time.monotonic()
    assert raw(handle, request) == b""
    assert 0.9 < time.monotonic() - before < 2.5


def test_a_byte_now_and_then_does_not_keep_a_connection_open(handle: Handle) -> None:
    before = time.monotonic()
    sent_until_refused(handle, b"GET /", b"x", most=50, pause=0.1)
    assert time.monotonic() - before < 2.5


def test_the_second_request_of_a_connection_has_to_come_in_time_too(handle: Handle) -> None:
    connection = http.client.HTTPConnection(handle.host, timeout=5)
    for _ in range(2):
        connection.request("GET", SESSION, headers={"authorization": handle.authorization})
        answer = connection.getresponse()
        assert (answer.status, len(answer.read()) > 0) == (200, True)
    line = connection.sock
    before = time.monotonic()
    line.sendall(b"GET / HTTP/1.1\r\n")
    assert line.recv(65536) == b""
    assert time.monotonic() - before < 2.5
    connection.close()


def test_requests_that_come_at_once_are_answered_in_turn(handle: Handle) -> None:
    request = head(handle).replace(b"connection: close\r\n", b"")
    assert raw(handle, request + request + head(handle)).count(b"HTTP/1.1 200") == 3


def connect(handle: Handle, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", handle.server.port), timeout=20))


def status(connection: socket.socket, handle: Handle, path: str = SESSION, authorization: str | None = None) -> int:
    """Ask for something over a connection that stays open; 0 if the server has hung up."""
    authorization = handle.authorization if authorization is None else authorization
    lines = [f"GET {path} HTTP/1.1", f"host: {handle.host}", f"authorization: {authorization}", "", ""]
    try:
        connection.sendall("\r\n".join(lines).encode())
        with http.client.HTTPResponse(connection) as answer:
            answer.begin()
            answer.read()
            return answer.status
    except (ConnectionError, http.client.HTTPException):
        return 0


def is_hung_up(connection: socket.socket) -> bool:
    """Whether the server has hung up, without waiting."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        connection.settimeout(20)


@pytest.fixture
def patient() -> Iterator[Handle]:
    """A server that waits long for a request, as a real one does."""
    with serving(small_trace(depth=1), request_timeout_seconds=60) as handle:
        handle.server._uvicorn.config.timeout_keep_alive = 60
        yield handle


def test_sixty_four_clients_with_the_token_are_served_and_more_are_told(patient: Handle) -> None:
    with ExitStack() as stack:
        owners = [connect(patient, stack) for _ in range(MAX_CONNECTIONS)]
        assert [status(one, patient) for one in owners] == [200] * MAX_CONNECTIONS
        assert [status(connect(patient, stack), patient) for _ in range(6)] == [503] * 6
        assert [status(one, patient) for one in owners] == [200] * MAX_CONNECTIONS
    until(lambda: not patient.server._uvicorn.server_state.connections)
    assert patient.get(SESSION).status == 200


@pytest.mark.parametrize("asks", ["nothing", "half a request", "the page", "the page, unread", "data"])
def test_who_has_no_token_cannot_keep_the_owner_out(patient: Handle, asks: str) -> None:
    requests = {"nothing": b"", "half a request": b"GET / HT", "data": head(patient).replace(b"Bearer", b"Basic")}
    page = f"GET / HTTP/1.1\r\nhost: {patient.host}\r\n\r\n".encode()
    with ExitStack() as stack:
        owner = connect(patient, stack)
        assert status(owner, patient) == 200
        strangers = [connect(patient, stack) for _ in range(2 * MAX_CONNECTIONS)]
        for stranger in strangers:
            if asks == "the page":
                status(stranger, patient, "/", authorization="")
            else:
                with suppress(ConnectionError):
                    stranger.sendall(requests.get(asks, page))
        assert status(owner, patient) == 200, "the connection of the owner is not dropped"
        assert [status(connect(patient, stack), patient) for _ in range(10)] == [200] * 10
        assert status(owner, patient) == 200


def test_the_oldest_connection_without_the_token_is_dropped_first(patient: Handle) -> None:
    with ExitStack() as stack:
        strangers = [connect(patient, stack) for _ in range(MAX_CONNECTIONS)]
        until(lambda: len(patient.server._uvicorn.server_state.connections) == MAX_CONNECTIONS)
        newest = [connect(patient, stack) for _ in range(3)]
        assert [status(one, patient) for one in newest] == [200] * 3
        until(lambda: sum(map(is_hung_up, strangers)) == 3)
        assert [is_hung_up(one) for one in strangers] == [True] * 3 + [False] * (MAX_CONNECTIONS - 3)


def test_a_refused_client_is_hung_up_on(handle: Handle) -> None:
    for answer in (handle.get(SESSION, authorization=""), handle.get(SESSION, host="evil.example")):
        assert answer.headers["connection"] == "close"
    assert "connection" not in handle.get(SESSION).headers


def test_a_name_of_a_tunnel_is_answered_when_it_is_told() -> None:
    with serving(small_trace(depth=1), names=["localhost:9"]) as handle:
        assert handle.get(SESSION, host="localhost:9", origin="http://localhost:9").status == 200
        assert handle.get(SESSION, host="localhost:10").status == 403


@pytest.mark.parametrize("name", ["http://host:80", "host:", "host:port", "a b", "", "host:80/", "::1", "host:123456"])
def test_a_name_that_is_no_host_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match="HOST or HOST:PORT"):
        Settings("127.0.0.1", 80, [name])


@pytest.mark.parametrize("name", ["host", "my-host.example:8080", "[::1]:9000", "10.0.0.1:1"])
def test_a_name_that_is_a_host_is_answered(name: str) -> None:
    assert name in Settings("127.0.0.1", 80, [name]).names


def test_two_hosts_are_refused_also_by_the_guard_itself() -> None:
    """The HTTP parser refuses them first; another server in front of the app may not."""
    settings, sent = Settings("127.0.0.1", 8000), list[Message]()

    async def app(*_: object) -> None:
        raise AssertionError

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    token = f"Bearer {settings.token}".encode()
    headers = [(b"host", b"127.0.0.1:8000"), (b"host", b"example.com"), (b"authorization", token)]
    scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": headers}
    asyncio.run(Guard(app, settings)(scope, receive, send))
    assert sent[0]["status"] == 403
