"""The explorer starts, is found, and ends, in a process of its own as in this one."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import torch

import attnscope
from attnscope.attention import Causal
from attnscope.errors import SettingError, VocabularyError
from attnscope.explorer import launch
from attnscope.explorer.launch import LOOPBACK, Server
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.guard import ACCESS_PATH
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from tests.explorer.serving import PAGE, Handle, serving, small_model, small_trace

SCRIPT = """
import sys, torch
from attnscope.explorer import launch
from attnscope.explorer.library.library import Library
from attnscope.recording import Trace, open_trace
library = Library()
server = launch.Server(library, assets={"index.html": b"", "explorer.js": b"", "explorer.css": b""})
launch.start_server(
    server, lambda: library.add(open_trace(sys.argv[1]), name="shown"),
    open_browser=False, block=True, say=lambda sentence: print(sentence, flush=True),
)
print("ended")
"""


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def long_trace(tokens: int = 40_000) -> Trace:
    """A head whose normalisers alone take seconds."""
    query, key = torch.randn(2, 1, 1, tokens, 32).unbind()
    trace = Trace("long")
    trace.layers = {"a": Layer("a", Call(query=query, key=key, value=None, mask=Causal(), scale=None), cross=False)}
    return trace


def ours() -> list[threading.Thread]:
    """Threads of servers."""
    return [
        one for one in threading.enumerate() if re.match(r"attnscope-(server|quick|slow|model|background)", one.name)
    ]


class Process:
    """An explorer that somebody has started in a terminal."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/#token=([0-9a-f]{32})$", self._process.stdout.readline().strip())
        assert found is not None
        self.port, self.token = int(found[1]), found[2]
        assert "Ctrl-C" in self._process.stdout.readline()

    def interrupted(self) -> tuple[int, str, str, float]:
        """Exit code, output, errors, and the seconds that it took to end after Ctrl-C."""
        before = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        output, errors = self._process.communicate(timeout=120)
        return self._process.returncode, output, errors, time.monotonic() - before


@pytest.fixture
def started(tmp_path: Path):
    """`started(trace)`: a process that shows it."""
    processes: list[Process] = []

    def start(trace: Trace) -> Process:
        trace.save(tmp_path / "trace")
        processes.append(Process(tmp_path / "trace"))
        return processes[-1]

    yield start
    for process in processes:
        process._process.kill()
        process._process.communicate()


def connected(port: int, stack: ExitStack) -> http.client.HTTPConnection:
    return stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", port)))


@pytest.mark.alone
def test_ctrl_c_ends_it_cleanly(started: Callable[[Trace], Process]) -> None:
    process = started(small_trace())
    with ExitStack() as stack:
        connection = connected(process.port, stack)
        connection.request("GET", "/api/1/session", headers={"authorization": f"Bearer {process.token}"})
        assert connection.getresponse().status == 200  # and the connection stays open
        code, output, errors, _ = process.interrupted()
    assert (code, output, errors) == (0, "ended\n", "")
    assert is_free(process.port)


@pytest.mark.timed
def test_ctrl_c_ends_it_while_it_computes(started: Callable[[Trace], Process]) -> None:
    process = started(long_trace())
    with ExitStack() as stack:
        connection = connected(process.port, stack)
        headers = {"authorization": f"Bearer {process.token}"}
        connection.request("GET", "/api/1/session", headers=headers)
        name = re.search(rb'"trace":"([0-9a-f]+)"', connection.getresponse().read())
        assert name is not None
        for what in ("col/3", "key/3", "profile", "scores", "0/0/0?ch=mean"):
            connected(process.port, stack).request("GET", f"/api/1/{name[1].decode()}/0/0/{what}", headers=headers)
        time.sleep(0.5)
        code, output, errors, seconds = process.interrupted()
    assert (code, output, errors) == (0, "ended\n", "")
    assert seconds < 2


def test_closing_frees_the_port_and_ends_the_threads() -> None:
    before = set(ours())
    with serving(small_trace()) as handle:
        name, port = handle.server.library.summaries()[0]["trace"], handle.server.port
        assert handle.get(f"/api/1/{name}/0/0/row/3").status == 200
        assert not is_free(port)
        assert set(ours()) > before
    assert is_free(port)
    assert set(ours()) == before
    handle.server.close()  # again, which does nothing
    assert "closed" in repr(handle.server)


def test_a_connection_that_comes_while_the_server_closes_is_closed() -> None:
    with serving(small_trace(depth=1)) as handle, ExitStack() as stack:
        server = handle.server
        shut_down = server._uvicorn.shutdown

        async def shut_down_late(**options: Any) -> None:
            connections = set(server._uvicorn.server_state.connections)
            server._uvicorn.server_state.connections.clear()  # uvicorn asks those to close that it knows by now
            asyncio.get_running_loop().call_soon(server._uvicorn.server_state.connections.update, connections)
            await shut_down(**options)

        server._uvicorn.shutdown = shut_down_late
        stack.enter_context(socket.create_connection((LOOPBACK, server.port)))
        until(lambda: server._uvicorn.server_state.connections)
        server._uvicorn.should_exit = True  # what `close` sets after it aborted the connections of that moment
        assert server._ended.wait(20)
        assert not server._uvicorn.server_state.connections


def test_a_server_that_was_never_started_can_be_closed() -> None:
    server = Server(Library(), assets=PAGE)
    server.close()
    assert is_free(server.port)


def test_what_still_waits_when_its_client_goes_is_never_begun() -> None:
    with serving(small_trace()) as handle:
        library, work = handle.server.library, handle.server._workers
        name, free = library.summaries()[0]["trace"], threading.Event()
        held = [work.quick.submit(free.wait, 30) for _ in range(work.quick._max_workers)]
        connection = http.client.HTTPConnection(handle.host)
        connection.request("GET", f"/api/1/{name}/0/0/row/3", headers={"authorization": handle.authorization})
        until(lambda: work.quick._work_queue.qsize() == 1)
        connection.close()
        until(lambda: not handle.server._uvicorn.server_state.tasks)
        free.set()
        assert all(one.result() for one in held)
        assert handle.get(f"/api/1/{name}/1/1/row/3").status == 200
        assert [key[1:] for key in library._heads] == [(1, 1)]


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_slow_answer_keeps_no_tile_waiting() -> None:
    with serving(long_trace()) as handle:
        name, work, free = handle.server.library.summaries()[0]["trace"], handle.server._workers, threading.Event()
        held = [work.slow.submit(free.wait, 60) for _ in range(work.slow._max_workers)]
        slow = [threading.Thread(target=handle.get, args=(f"/api/1/{name}/0/0/{what}",)) for what in ("col/3", "key/3")]
        for thread in slow:
            thread.start()
        until(lambda: work.slow._work_queue.qsize() == len(slow))
        assert handle.get(f"/api/1/{name}/0/0/row/5").status == 200
        assert all(thread.is_alive() for thread in slow)
        free.set()
        for thread in slow:
            thread.join()
        assert all(one.result() for one in held)


def test_explore_returns_a_server_where_it_does_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr(launch.webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    said: list[str] = []
    server = small_trace().explore(block=False, say=said.append)
    assert said == [f"The explorer is at {server.url}"]
    until(lambda: bool(opened))
    assert server.settings.token not in opened[0]
    given = {"token": opened[0].removeprefix(f"{server.base}/#token=")}
    answers = [Handle(server).post(ACCESS_PATH, given, authorization="") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 403]
    assert answers[0].json == {"token": server.settings.token}
    server.close()

    small_trace().save(tmp_path / "folder")
    server = attnscope.explore(tmp_path / "folder", open_browser=False, block=False, say=said.append)
    assert [summary["name"] for summary in server.library.summaries()] == ["folder"]
    assert len(opened) == 1
    server.close()


def test_several_traces_are_shown_together_and_none_is_the_example(tmp_path: Path) -> None:
    quiet = {"open_browser": False, "block": False, "say": lambda _: None}
    small_trace("so young").save(tmp_path / "folder")
    traces = small_trace(), small_trace("the day"), tmp_path / "folder"
    with closing(attnscope.explore(*traces, **quiet)) as server:
        assert [one["name"] for one in server.library.summaries()] == ["Decoder", "Decoder (2)", "folder"]
        assert [one["tokens"] for one in server.library.summaries()] == [72, 7, 8]
    with closing(attnscope.explore(*traces, name=["a", "a", "b"], **quiet)) as server:
        assert [one["name"] for one in server.library.summaries()] == ["a", "a", "b"]
    with closing(attnscope.explore(small_trace(), name="mine", **quiet)) as server:
        assert [one["name"] for one in server.library.summaries()] == ["mine"]
    with closing(attnscope.explore(**quiet)) as server:
        session = Handle(server).get("/api/1/session").json
        assert session["traces"] == []
        assert Handle(server).get(f"/api/1/{session['example']}/meta").json["model"] == "SmolLM2-135M"
    with pytest.raises(SettingError, match=r"expected 3 names.*got 1"):
        attnscope.explore(*traces, name="a", **quiet)


def test_look_reads_the_text_and_takes_others() -> None:
    model, tokenizer = small_model()
    server = attnscope.look(model, tokenizer, "the day", open_browser=False, block=False, say=lambda _: None)
    handle = Handle(server)
    assert handle.get("/api/1/session").json["traces"][0]["tokens"] == 7
    assert handle.post("/api/1/run", {"text": "so young"}).status == 200
    server.close()
    server = attnscope.look(model, tokenizer, open_browser=False, block=False, say=lambda _: None)
    session = Handle(server).get("/api/1/session").json
    assert (session["traces"], session["has_model"]) == ([], True)
    server.close()


def test_a_host_that_others_can_reach_is_warned_of_and_asks_for_the_token() -> None:
    said: list[str] = []
    server = small_trace().explore(host="0.0.0.0", open_browser=False, block=False, say=said.append)
    assert "other machines" in said[0]
    assert said[1:] == [f"The explorer is at {server.url}", f"From other machines: {server.remote_url}"]
    assert server.url.startswith("http://127.0.0.1:")
    handle = Handle(server)
    assert handle.get("/api/1/session", authorization="").status == 401
    assert handle.get("/api/1/session", host=f"{socket.gethostname()}:{server.port}").status == 200
    assert handle.get("/api/1/session", host=f"0.0.0.0:{server.port}").status == 403
    server.close()


def test_all_addresses_of_both_versions_of_the_protocol_are_answered() -> None:
    with serving(small_trace(), host="::") as handle:
        port = handle.server.port
        assert handle.base == f"http://127.0.0.1:{port}"
        assert handle.get("/api/1/session").status == 200
        with closing(http.client.HTTPConnection("::1", port)) as connection:
            connection.request("GET", "/api/1/session", headers={"authorization": handle.authorization})
            assert connection.getresponse().status == 200


def test_other_machines_may_use_the_numbers_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ["127.0.0.1", "::1", "fe80::1%eth0", "192.0.2.7", "2001:db8::7"]
    found = [(socket.AF_INET6 if ":" in one else socket.AF_INET, one) for one in numbers]

    def resolved(_: str, __: None, family: int, ___: int) -> list[tuple]:
        return [(kind, 1, 6, "", (one, 0)) for kind, one in found if family in (socket.AF_UNSPEC, kind)]

    monkeypatch.setattr(launch.socket, "getaddrinfo", resolved)  # a machine in a network
    assert [one for one in launch.find_own_hosts("::") if one[0] in "[0123456789"] == ["192.0.2.7", "[2001:db8::7]"]
    assert [one for one in launch.find_own_hosts("0.0.0.0") if one[0] in "[0123456789"] == ["192.0.2.7"]
    server = Server(Library(), host="0.0.0.0", assets=PAGE)
    monkeypatch.undo()
    with server:
        handle = Handle(server)
        assert server.remote_url == f"http://192.0.2.7:{server.port}/#token={server.settings.token}"
        assert handle.get("/api/1/session", host=f"192.0.2.7:{server.port}").status == 200
        assert handle.get("/api/1/session", host=f"192.0.2.8:{server.port}").status == 403


def test_without_a_screen_no_browser_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(launch.webbrowser, "open", opened.append)
    monkeypatch.setattr(launch.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    with serving(small_trace()) as handle:
        handle.server.open_browser()
        monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
        handle.server.open_browser()
        until(lambda: bool(opened))
        assert len(opened) == 1


def test_a_browser_in_the_terminal_does_not_keep_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    left = threading.Event()
    monkeypatch.setattr(launch.webbrowser, "open", lambda _: left.wait(30))
    monkeypatch.setenv("DISPLAY", ":0")
    with serving(small_trace()) as handle:
        handle.server.open_browser()
        browsers = [one for one in threading.enumerate() if one.name == "attnscope-browser"]
        assert [one.daemon for one in browsers] == [True]
        left.set()
        browsers[0].join()


def test_in_a_notebook_the_address_is_to_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.__IPYTHON__", True, raising=False)
    said: list[str] = []
    server = small_trace().explore(open_browser=False, say=said.append)
    assert said == [f"Paste this address into a new tab: {server.url}"]
    server.close()


def test_a_server_that_is_shown_does_not_tell_its_token() -> None:
    with serving(small_trace()) as handle:
        assert repr(handle.server) == f"Server({handle.base})"


def test_a_folder_is_called_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_trace().save(tmp_path / "folder")
    monkeypatch.chdir(tmp_path / "folder")
    server = attnscope.explore(".", open_browser=False, block=False, say=lambda _: None)
    assert [summary["name"] for summary in server.library.summaries()] == ["folder"]
    server.close()


def test_an_option_that_is_none_names_what_was_called() -> None:
    with pytest.raises(TypeError, match=r"^explore\(\).*'hots'"):
        small_trace().explore(hots="::1")
    with pytest.raises(TypeError, match=r"^look\(\).*'hots'"):
        attnscope.look(*small_model(), hots="::1")  # type: ignore[call-arg]


def test_a_port_that_is_taken_is_found_before_anything_is_read(tmp_path: Path) -> None:
    model, tokenizer = small_model()
    reads: list[object] = []
    model.embedding.register_forward_hook(lambda *given: reads.append(given))
    with serving(small_trace()) as handle:
        with pytest.raises(SettingError, match="port"):
            attnscope.look(model, tokenizer, "the day", port=handle.server.port, block=False, open_browser=False)
        with pytest.raises(SettingError, match="port"):
            attnscope.explore(tmp_path / "nowhere", port=handle.server.port, block=False, open_browser=False)
    assert not reads


def test_a_text_that_cannot_be_read_leaves_nothing_behind() -> None:
    model, tokenizer = small_model()
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(VocabularyError):
        attnscope.look(model, tokenizer, "中", port=port, block=False, open_browser=False)
    assert is_free(port)


def test_the_sixth_version_of_the_protocol_is_spoken_too() -> None:
    with serving(small_trace(), host="::1") as handle:
        assert handle.base.startswith("http://[::1]:")
        assert handle.get("/api/1/session").status == 200


@pytest.mark.parametrize(("host", "port"), [("nowhere.invalid", 0), ("127.0.0.1", 70_000), ("127.0.0.1", -1)])
def test_a_place_that_cannot_be_used_is_refused(host: str, port: int) -> None:
    with pytest.raises(SettingError, match="port"):
        Server(Library(), host=host, port=port, assets=PAGE)


def test_a_port_that_is_taken_is_refused() -> None:
    with serving(small_trace()) as handle, pytest.raises(SettingError, match="port"):
        Server(Library(), port=handle.server.port, assets=PAGE)
