"""Other servers of this host, in the same browser: they get nothing that opens the explorer, and cannot lock it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from playwright.sync_api import Browser, Page

from attnscope.explorer.launch import Server
from tests.explorer.browser import needs_chromium
from tests.explorer.pages import in_trouble, ready, shown, until
from tests.explorer.serving import Handle, serving, small_trace

pytestmark = needs_chromium
SESSION = "/api/1/session"

# Whatever a page of another port can read, of its own and of the explorer.
PRY = """async (explorer) => {
  const found = [document.cookie, JSON.stringify({...localStorage}), JSON.stringify({...sessionStorage})];
  for (const path of ["/api/1/session", "/explorer.js", "/"])
    for (const options of [{}, {credentials: "include"}, {mode: "no-cors", credentials: "include"}])
      found.push(await fetch(explorer + path, options).then((answer) => answer.text()).catch(String));
  return found;
}"""
# As many cookies as a browser keeps for a host, of the longest kind, among them every name that a server may use.
FLOOD = """(names) => {
  for (const name of names) document.cookie = `${name}=stolen; path=/; max-age=600`;
  for (let number = 0; number < 170; number++)
    document.cookie = `flood${number}=${"x".repeat(4000)}; path=/; max-age=600`;
  return document.cookie.length;
}"""


class OtherServer(BaseHTTPRequestHandler):
    """A server that writes down all that it is sent."""

    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Note the request, and go on to another page of this server: the browser then sends cookies of this site."""
        type(self).requests.append(f"{self.requestline}\n{self.headers}")
        body = b"<!doctype html><script>location.replace('/b')</script>" if self.path == "/a" else b"<!doctype html>b"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Say nothing."""


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """The address of another server on this host."""
    with ThreadingHTTPServer(("127.0.0.1", 0), OtherServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextmanager
def visited(page: Page, address: str) -> Iterator[Page]:
    """Another tab of the same browser, in which somebody follows a link."""
    tab = page.context.new_page()
    tab.goto("about:blank")
    tab.goto(address)
    tab.wait_for_url("**/b")
    yield tab
    tab.close()


def test_another_server_gets_nothing_that_opens_the_explorer(browser: Browser, small: Handle, other: str) -> None:
    token = small.server.settings.token
    OtherServer.requests.clear()
    with shown(browser, small.url) as page, visited(page, f"{other}/a") as tab:
        found = tab.evaluate(PRY, small.base)
        assert page.context.cookies() == []
    assert len(OtherServer.requests) >= 2
    everything = "\n".join([*OtherServer.requests, *found])
    assert token not in everything
    assert "cookie:" not in everything.lower()
    assert "Failed to fetch" in everything, "what is on another port cannot be read"
    for request in OtherServer.requests:  # what a thief would send on
        headers = dict(line.split(": ", 1) for line in request.splitlines()[1:] if line)
        connection = http.client.HTTPConnection(small.host, timeout=60)
        connection.request("GET", SESSION, headers={**headers, "Host": small.host, "Sec-Fetch-Site": "none"})
        assert connection.getresponse().status == 401
        connection.close()


def test_another_server_cannot_lock_the_owner_out(browser: Browser, small: Handle, other: str) -> None:
    names = ["token", "attnscope.token", "authorization", f"attnscope-{small.server.port}"]
    with shown(browser, small.url) as page, visited(page, f"{other}/a") as tab:
        assert tab.evaluate(FLOOD, names) > 2**19, "cookies that the browser will send to every port"
        page.reload()
        ready(page)
        second = page.context.new_page()
        second.goto(small.base)
        ready(second)
        second.close()


def test_the_token_leaves_the_address_and_a_reload_or_a_second_tab_needs_none(browser: Browser, small: Handle) -> None:
    once = f"{small.base}/#token={small.server.settings.make_one_time_token()}"
    with shown(browser, once) as page:
        until(page, lambda: "#1/" in page.url, "the address of what is shown")
        assert "token" not in page.url
        link = page.url
        for _ in range(2):
            page.reload()
            ready(page)
        second = page.context.new_page()
        second.goto(link)
        ready(second)
        assert second.url == link
        second.close()
    with in_trouble(browser, once) as page:
        page.wait_for_selector("html[data-state=error]", state="attached")
        assert "use the address printed last" in page.inner_text(".explorer")
    with in_trouble(browser, small.base) as page:
        page.wait_for_selector("html[data-state=error]", state="attached")
        assert "Open the address that was printed" in page.inner_text(".explorer")


def test_the_address_of_a_new_run_works_in_the_tab_of_the_old_one(browser: Browser) -> None:
    with serving(small_trace(), page=True) as first:
        port = first.server.port
        with in_trouble(browser, first.url) as page:
            ready(page)
            first.server.close()
            with serving(small_trace(), page=True, port=port) as handle:
                page.reload()
                page.wait_for_selector("html[data-state=error]", state="attached")
                assert "Open the address that was printed" in page.inner_text(".explorer")
                with page.expect_event("load"):
                    page.goto(handle.url)
                ready(page)
                stored: Any = page.evaluate("localStorage.getItem('attnscope.token')")
                assert stored == handle.server.settings.token


def test_no_response_sets_a_cookie_and_none_counts(small: Handle) -> None:
    """The same without a browser: all that a cookie can hold is sent, and nothing is opened."""
    server: Server = small.server
    for path in ("/", "/survey", "/explorer.js", SESSION):
        assert "set-cookie" not in small.get(path).headers
    given = json.dumps({"token": server.settings.token})
    cookie = f"token={server.settings.token}; attnscope-{server.port}={server.settings.token}; given={given}"
    assert small.get(SESSION, authorization="", cookie=cookie).status == 401
    assert small.get(SESSION, cookie=cookie).status == 200
