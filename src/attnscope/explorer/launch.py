"""`look` and `explore`: the explorer in a browser, served by this process.

In: traces, their folders, or a model and a text. Out: a `Server` with its address, in a thread of its own; in a script
and on the command line it is waited for until Ctrl-C. Does not know: what is answered. Memory: the library's.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import ipaddress
import os
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

from attnscope.errors import SettingError
from attnscope.explorer.library.library import Library
from attnscope.explorer.library.survey import SurveyView, is_survey
from attnscope.explorer.service.app import make_app
from attnscope.explorer.service.connection import REQUEST_TIMEOUT_SECONDS, make_protocol
from attnscope.explorer.service.guard import NAME, Settings, bracket_ipv6, is_wildcard
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.sessions.lazy_session import LazySession, survey_session
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.extras import import_extra
from attnscope.recording import Trace, open_trace, read
from attnscope.survey.tables.survey import open_survey

LOOPBACK = "127.0.0.1"
MAX_HEADER_BYTES = 2**14  # bytes of a request before its body; the cookies of all local servers come along in it
KEEP_ALIVE_SECONDS = 5

Say = Callable[[str], object]


class Server:
    """An explorer that answers at `url` from `start` until `close`."""

    def __init__(
        self,
        library: Library,
        stage: ModelSession | LazySession | None = None,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        names: Sequence[str] = (),
        assets: Mapping[str, bytes] | None = None,
        request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        """Port 0 is any that is free. `names` are other hosts, with ports, that it is reached by; see `Settings`."""
        uvicorn = import_extra("uvicorn")
        self.library, self.host, self._work = library, host, WorkerPools()
        self._socket = _bound(host, port)
        self.port = int(self._socket.getsockname()[1])
        try:
            self._own = find_own_hosts(host) if is_wildcard(host) else []
            self.settings = Settings(host, self.port, [*names, *(f"{own}:{self.port}" for own in self._own)])
            app = make_app(library, stage, self.settings, self._work, assets=assets)
        except BaseException:
            self._socket.close()
            raise
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                app,
                interface="asgi3",
                http=make_protocol(request_timeout_seconds=request_timeout_seconds),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, name="attnscope-server", daemon=True)
        self._listening, self._ended, self._closing = threading.Event(), threading.Event(), threading.Lock()
        self._closed = False

    @property
    def base(self) -> str:
        """The address without a token."""
        here = LOOPBACK if self._socket.family == socket.AF_INET or socket.has_dualstack_ipv6() else "::1"
        return f"http://{bracket_ipv6(here if is_wildcard(self.host) else self.host)}:{self.port}"

    @property
    def url(self) -> str:
        """The address for a person; whoever has it may look."""
        return f"{self.base}/?token={self.settings.token}"

    @property
    def remote_url(self) -> str | None:
        """The address for a person at another machine, where there is one."""
        return f"http://{self._own[0]}:{self.port}/?token={self.settings.token}" if self._own else None

    def start(self) -> Server:
        """Answer, in a thread of its own."""
        self._thread.start()
        self._listening.wait()
        atexit.register(self.close)
        return self

    def open_browser(self) -> None:
        """Show it, with a token that is good for once: all users of a machine can read what programs are started."""
        if not _has_screen():
            return
        address = f"{self.base}/?token={self.settings.invitation()}"
        # Not waited for: a browser in the terminal returns when it is left.
        threading.Thread(target=webbrowser.open, args=(address,), name="attnscope-browser", daemon=True).start()

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
        return f"Server({'closed' if self._closed else self.base})"  # without the token: notebooks are passed on

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
    *traces: Trace | str | Path,
    name: str | Sequence[str] | None = None,
    model: str | Path | None = None,
    open_browser: bool = True,
    block: bool | None = None,
    say: Say | None = None,
    host: str = LOOPBACK,
    port: int = 0,
    names: Sequence[str] = (),
) -> Server:
    """Show traces, or the folders of some, in the browser; of several, any two can be compared. Or show one survey.

    Without any, it shows an example that AttnScope brings along. `name` is what a trace is called there, or one for
    each of several. In a script this waits until Ctrl-C, at a prompt and in a notebook it returns at once; `block`
    decides otherwise. `model` reads the passages of a survey, in place of the one that the survey names; it is loaded
    when the map of a passage is first asked for. `say` hears the address, in place of standard error. `host`, `port`
    and `names` are as for `Server`.
    """
    library, given = Library(), [name] if isinstance(name, str) else name
    _check_folders(traces)
    surveyed = _only_survey(traces)
    if model is not None and surveyed is None:
        raise SettingError(f"explore: the model {model} was named, which only the passages of a survey are read by")
    if given is not None and len(given) != len(traces):
        raise SettingError(f"explore: {len(given)} names were given for {len(traces)} traces; give one for each")
    called = make_unique([_called(trace) for trace in traces]) if given is None else given

    def fill() -> None:
        for trace, own in zip(traces, called, strict=True) if surveyed is None else ():
            library.add(trace if isinstance(trace, Trace) else open_trace(trace), name=own)
        if not traces:
            library.example()

    call = None
    if surveyed is not None:
        library.survey = SurveyView(open_survey(surveyed), called[0])
        call = survey_session(library.survey.survey, model)
    server = Server(library, call, host=host, port=port, names=names)
    return start_server(server, fill, open_browser=open_browser, block=block, say=say)


def _check_folders(shown: Sequence[Trace | str | Path]) -> None:
    """Refuse a folder that is neither a trace nor a survey."""
    folders = [Path(one) for one in shown if not isinstance(one, Trace)]
    for folder in folders:
        if folder.is_dir() and not is_survey(folder) and not (folder / "trace.json").exists():
            raise SettingError(f"{folder} is not a saved trace or survey (no trace.json or manifest.json)")


def _only_survey(shown: Sequence[Trace | str | Path]) -> str | Path | None:
    """The folder of a survey, if that is what is shown."""
    found = [one for one in shown if not isinstance(one, Trace) and is_survey(one)]
    if found and len(shown) > 1:
        raise SettingError(
            f"explore: a survey is shown alone, and {len(shown)} folders were given; two surveys are compared by: "
            "attnscope survey diff ONE OTHER"
        )
    return found[0] if found else None


def _called(trace: Trace | str | Path) -> str:
    return (trace.model if isinstance(trace, Trace) else Path(trace).resolve().name) or "trace"


def make_unique(names: Sequence[str]) -> list[str]:
    """Names of which each is there once.

    >>> make_unique(["Decoder", "Decoder", "Encoder"])
    ['Decoder', 'Decoder (2)', 'Encoder']
    """
    count = [names[:at].count(name) + 1 for at, name in enumerate(names)]
    return [name if many == 1 else f"{name} ({many})" for name, many in zip(names, count, strict=True)]


def look(
    model: nn.Module,
    tokenizer: Any,
    text: str | Sequence[int] | torch.Tensor | None = None,
    *,
    name: str | None = None,
    open_browser: bool = True,
    block: bool | None = None,
    say: Say | None = None,
    host: str = LOOPBACK,
    port: int = 0,
    names: Sequence[str] = (),
) -> Server:
    """Show what a model attends to in a text, and in the sentences that are typed then; see `explore`."""
    called, library = name or type(model).__name__, Library()

    def fill() -> None:
        if text is not None:
            library.add(read(model, text, tokenizer), name=called)

    server = Server(library, ModelSession(model, tokenizer, called), host=host, port=port, names=names)
    return start_server(server, fill, open_browser=open_browser, block=block, say=say)


def start_server(
    server: Server, fill: Callable[[], None], *, open_browser: bool, block: bool | None, say: Say | None
) -> Server:
    """Fill the library of a server, start it and tell of it; wait for it where that is wanted.

    The server comes first, for to fill a library may take minutes, and to find that its port is taken does not.
    """
    say = say or _on_standard_error
    try:
        fill()
    except BaseException:
        server.close()
        raise
    server.start()
    if not _is_loopback(server.host):
        say(
            f"Warning: {server.host} can be reached from other machines, and what is sent is not encrypted. Whoever "
            "reads the address below may see the texts."
        )
    # A notebook is a site of its own, and what is clicked there comes from it.
    say(f"{'Paste this address into a new tab:' if _is_notebook() else 'The explorer is at'} {server.url}")
    if server.remote_url is not None:
        say(f"From other machines: {server.remote_url}")
    if open_browser:
        server.open_browser()
    if not _is_interactive() if block is None else block:
        say("Ctrl-C ends it.")
        server.wait()
    return server


def _on_standard_error(sentence: str) -> None:
    Console(stderr=True).print(sentence, markup=False, highlight=False, soft_wrap=True)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or _is_notebook()


def _is_notebook() -> bool:
    return hasattr(builtins, "__IPYTHON__")


def _has_screen() -> bool:
    """Whether a browser can be seen: on Linux, not in a plain terminal, unless somebody has said which one to take."""
    return sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))


def _bound(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise SettingError(f"explore: port {port} cannot be used; it is 1 to 65,535, or 0 for any that is free")
    sixth = ":" in host
    both = sixth and is_wildcard(host) and socket.has_dualstack_ipv6()
    try:
        family = socket.AF_INET6 if sixth else socket.AF_INET
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        why = error.strerror or error
        raise SettingError(f"explore: {host} port {port} cannot be used: {why}; choose another") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_own_hosts(host: str) -> list[str]:
    """What other machines call this one, as it stands in an address; numbers first, which need nobody to know them."""
    name, family = socket.gethostname(), socket.AF_UNSPEC if ":" in host else socket.AF_INET
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)}
    except OSError:  # a machine that does not know its own name
        found = set()
    numbers = [ipaddress.ip_address(str(address).partition("%")[0]) for address in found]
    far = [bracket_ipv6(str(one)) for one in numbers if not one.is_loopback and not one.is_link_local]
    named = [one for one in dict.fromkeys((name, socket.getfqdn())) if NAME.fullmatch(one) and not _is_loopback(one)]
    return [*sorted(far), *named]
