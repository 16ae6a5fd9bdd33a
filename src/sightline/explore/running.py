"""`look` and `explore`: the explorer in a browser, served by this process.

In: a trace, its folder, or a model and a text. Out: a `Server` with its address, in a thread of its own; in a script
and on the command line it is waited for until Ctrl-C. Does not know: what is answered. Memory: the library's.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import ipaddress
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from sightline.errors import SettingError
from sightline.explore.connection import ASK_SECONDS, make_protocol
from sightline.explore.guard import Settings, bracketed, is_any
from sightline.explore.library import Library
from sightline.explore.live import Stage
from sightline.explore.server import make_app
from sightline.explore.work import Work
from sightline.extras import import_extra
from sightline.record import Trace, read
from sightline.record import open as open_trace

LOOPBACK = "127.0.0.1"
LARGEST_HEAD = 2**14  # bytes of a request before its body; the cookies of all local servers come along in it
IDLE_SECONDS = 5

Say = Callable[[str], object]


class Server:
    """An explorer that answers at `url` from `start` until `close`."""

    def __init__(
        self,
        library: Library,
        stage: Stage | None = None,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        names: Sequence[str] = (),
        assets: Mapping[str, bytes] | None = None,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        """Port 0 is any that is free. `names` are other hosts, with ports, that it is reached by; see `Settings`."""
        uvicorn = import_extra("uvicorn")
        self.library, self.host, self._work = library, host, Work()
        self._socket = _bound(host, port)
        self.port = int(self._socket.getsockname()[1])
        try:
            self.settings = Settings(host, self.port, [*names, *(_own_names(self.port) if is_any(host) else ())])
            app = make_app(library, stage, self.settings, self._work, assets=assets)
        except BaseException:
            self._socket.close()
            raise
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                app,
                interface="asgi3",
                http=make_protocol(ask_seconds=ask_seconds),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=LARGEST_HEAD,
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, name="sightline-server", daemon=True)
        self._listening, self._ended, self._closing = threading.Event(), threading.Event(), threading.Lock()
        self._closed = False

    @property
    def base(self) -> str:
        """The address without a token."""
        return f"http://{bracketed(LOOPBACK if is_any(self.host) else self.host)}:{self.port}"

    @property
    def url(self) -> str:
        """The address for a person; whoever has it may look."""
        return f"{self.base}/?token={self.settings.token}"

    def start(self) -> Server:
        """Answer, in a thread of its own."""
        self._thread.start()
        self._listening.wait()
        atexit.register(self.close)
        return self

    def open_browser(self) -> None:
        """Show it, with a token that is good for once: all users of a machine can read what programs are started."""
        webbrowser.open(f"{self.base}/?token={self.settings.invitation()}")

    def wait(self) -> None:
        """Until Ctrl-C, or until somebody closes it; then it is closed."""
        try:
            while not self._ended.wait(0.2):  # no join: one that Ctrl-C breaks off takes the thread for ended
                pass
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop answering and computing; when this returns, the port is free and the threads have ended."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self.library.close()
            if self._loop is not None and not self._ended.is_set():
                self._loop.call_soon_threadsafe(self._hang_up)
                self._thread.join()
            self._socket.close()
            self._work.close()
            atexit.unregister(self.close)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({'closed' if self._closed else self.url})"

    def _hang_up(self) -> None:
        """End all connections first, and then what worked for them: nobody is left to hear of it."""
        state = self._uvicorn.server_state
        for connection in list(state.connections):
            connection.transport.abort()
        for task in list(state.tasks):
            task.get_loop().call_soon(task.cancel)  # after the connections know that they are lost
        self._uvicorn.should_exit = True

    def _serve(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._listening.set)
            await self._uvicorn.serve(sockets=[self._socket])

        try:
            asyncio.run(serve())
        finally:
            self._ended.set()
            self._listening.set()


def explore(
    trace: Trace | str | Path,
    *,
    name: str | None = None,
    open_browser: bool = True,
    block: bool | None = None,
    say: Say | None = None,
    **where: Any,
) -> Server:
    """Show a trace, or the folder of one, in the browser.

    In a script this waits until Ctrl-C, at a prompt and in a notebook it returns at once; `block` decides otherwise.
    `say` hears the address, in place of standard error. `where` is host, port and names, as for `Server`.
    """
    library = Library()
    if isinstance(trace, Trace):
        library.add(trace, name=name or trace.model or "trace")
    else:
        library.add(open_trace(trace), name=name or Path(trace).name)
    return shown(library, None, open_browser=open_browser, block=block, say=say, **where)


def look(
    model: nn.Module,
    tokenizer: Any,
    text: str | Sequence[int] | torch.Tensor | None = None,
    *,
    name: str | None = None,
    open_browser: bool = True,
    block: bool | None = None,
    say: Say | None = None,
    **where: Any,
) -> Server:
    """Show what a model attends to in a text, and in the sentences that are typed then; see `explore`."""
    called = name or type(model).__name__
    stage, library = Stage(model, tokenizer, called), Library()
    if text is not None:
        library.add(read(model, text, tokenizer), name=called)
    return shown(library, stage, open_browser=open_browser, block=block, say=say, **where)


def shown(
    library: Library, stage: Stage | None, *, open_browser: bool, block: bool | None, say: Say | None, **where: Any
) -> Server:
    """A server that has been started and told of, and waited for where that is wanted."""
    say = say or _on_standard_error
    server = Server(library, stage, **where).start()
    if not _is_loopback(server.host):
        say(
            f"Warning: {server.host} can be reached from other machines, and what is sent is not encrypted. Whoever "
            "reads the address below may see the texts."
        )
    say(f"The explorer is at {server.url}")
    if open_browser:
        server.open_browser()
    if not _is_interactive() if block is None else block:
        say("Ctrl-C ends it.")
        server.wait()
    return server


def _on_standard_error(sentence: str) -> None:
    Console(stderr=True).print(sentence, markup=False, highlight=False, soft_wrap=True)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or hasattr(builtins, "__IPYTHON__")


def _bound(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise SettingError(f"explore: port {port} cannot be used; it is 1 to 65,535, or 0 for any that is free")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = error.strerror or error
        raise SettingError(f"explore: {host} port {port} cannot be used: {why}; choose another") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _own_names(port: int) -> list[str]:
    """What other machines call this one."""
    return [f"{name}:{port}" for name in {socket.gethostname(), socket.getfqdn()}]
