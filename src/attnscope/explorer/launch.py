"""`look` and `explore`: the explorer in a browser, served by this process.

In: traces, their folders, or a model and a text. Out: a `Server` that runs in its own thread; scripts and the command
line wait for Ctrl-C. Does not know: responses. Memory: that of the library.
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
from attnscope.explorer.library.opening_view import prepare_opening
from attnscope.explorer.library.survey import SurveyView, is_survey
from attnscope.explorer.library.watched_run import WatchedRunView
from attnscope.explorer.service.app import make_app
from attnscope.explorer.service.connection import REQUEST_TIMEOUT_SECONDS, make_protocol
from attnscope.explorer.service.guard import NAME, Settings, bracket_ipv6, is_wildcard
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.sessions.lazy_session import LazySession, survey_session
from attnscope.explorer.sessions.letter_session import LetterSession
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.extras import import_extra
from attnscope.recording import Trace, open_trace
from attnscope.survey.tables.survey import open_survey
from attnscope.telemetry.run_log import STEPS
from attnscope.telemetry.run_reader import is_watched_run

LOOPBACK = "127.0.0.1"
# Includes the cookies of all servers on this host: a browser keeps and sends at most 180 of 4 KB.
MAX_HEADER_BYTES = 2**20
KEEP_ALIVE_SECONDS = 5

Print = Callable[[str], object]


class Server:
    """An explorer that is served at `url` from `start` until `close`; also a context manager.

    Args:
        library: The traces to show.
        session: The model that runs typed texts, if any.
        host: The address to bind.
        port: The port; 0 is any free port.
        names: More host names, as HOST or HOST:PORT, for use through a tunnel or a proxy.
        assets: Replaces the files of the page.
        request_timeout_seconds: The time for a client to send a request.

    Raises:
        SettingError: The host or port cannot be used, or a name is invalid.
    """

    def __init__(
        self,
        library: Library,
        session: ModelSession | LazySession | None = None,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        names: Sequence[str] = (),
        assets: Mapping[str, bytes] | None = None,
        request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        uvicorn = import_extra("uvicorn")
        self.library, self.host, self._workers = library, host, WorkerPools()
        self._socket = _bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        try:
            self._own_hosts = find_own_hosts(host) if is_wildcard(host) else []
            self.settings = Settings(host, self.port, [*names, *(f"{own}:{self.port}" for own in self._own_hosts)])
            app = make_app(library, session, self.settings, self._workers, assets=assets)
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
        """The address with the token, which grants access; browsers do not send a fragment, so no log has it."""
        return f"{self.base}/#token={self.settings.token}"

    @property
    def remote_url(self) -> str | None:
        """The address for other machines, or None if the server binds only this one."""
        return f"http://{self._own_hosts[0]}:{self.port}/#token={self.settings.token}" if self._own_hosts else None

    def start(self) -> Server:
        """Serve, in a separate thread."""
        self._thread.start()
        self._listening.wait()
        atexit.register(self.close)
        return self

    def open_browser(self) -> None:
        """Open the page with a one-time token, because other users of the machine can read the command line."""
        if not _has_screen():
            return
        address = f"{self.base}/#token={self.settings.make_one_time_token()}"
        # In a thread: a text browser returns only when it is closed.
        threading.Thread(target=webbrowser.open, args=(address,), name="attnscope-browser", daemon=True).start()

    def wait(self) -> None:
        """Wait until Ctrl-C or `close`, and close the server."""
        try:
            while not self._ended.wait(0.2):  # not join, which Ctrl-C would leave in a wrong state
                pass
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop serving and computing; afterwards the port is free and the threads have ended."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self.library.close()
            if self._loop is not None and not self._ended.is_set():
                self._loop.call_soon_threadsafe(self._abort_connections)
                self._thread.join()
            self._socket.close()
            self._workers.close()
            atexit.unregister(self.close)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({'closed' if self._closed else self.base})"  # without the token, because notebooks are shared

    def _abort_connections(self) -> None:
        """Abort all connections, and then cancel their tasks."""
        state = self._uvicorn.server_state
        for connection in list(state.connections):
            connection.transport.abort()
        for task in list(state.tasks):
            task.get_loop().call_soon(task.cancel)  # after the connections are marked as lost
        self._uvicorn.should_exit = True

    def _serve(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._listening.set)
            await self._uvicorn.serve(sockets=[self._socket])
            # uvicorn leaves connections open that came after `close`, or whose clients do not read their responses.
            self._abort_connections()
            while self._uvicorn.server_state.connections:
                await asyncio.sleep(0)

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
    say: Print | None = None,
    host: str = LOOPBACK,
    port: int = 0,
    names: Sequence[str] = (),
) -> Server:
    """Show traces, a survey or a watched training run in the browser.

    Args:
        *traces: Traces, or folders of saved traces; any two can be compared. Or one folder of a survey, or of a run
            that `watch` writes. Without any, an example is shown, and typed sentences are shown without a trained
            model.
        name: The name to display, or one for each trace.
        model: The model that runs passages of a survey, instead of the one that the survey names. It is loaded on
            first use.
        open_browser: Whether to open a browser.
        block: Whether to wait until Ctrl-C; by default True in a script, False at a prompt and in a notebook.
        say: Called with the address instead of printing it to standard error.
        host: The address to bind.
        port: The port; 0 is any free port.
        names: More host names, as HOST or HOST:PORT, for use through a tunnel or a proxy.

    Returns:
        The running server.

    Raises:
        SettingError: A folder is not a trace, survey or watched run, or the arguments do not fit together.
        UnsupportedError: A trace has no weights, because it was recorded with `keep="statistics"`.

    >>> from attnscope.recording import read
    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> model = Decoder(config).eval()
    >>> server = explore(read(model, list(range(20)), progress=False), open_browser=False, block=False, say=print)
    The explorer is at http://127.0.0.1:...
    >>> server.close()
    """
    library, display_names = Library(), [name] if isinstance(name, str) else name
    _check_folders(traces)
    survey_folder = _find_only(traces, is_survey, "survey", "attnscope survey diff ONE OTHER")
    run_folder = _find_only(traces, is_watched_run, "watched run", "attnscope watch ONE OTHER")
    if model is not None and survey_folder is None:
        raise SettingError(f"explore: model={str(model)!r} is only used with a survey")
    if display_names is not None and len(display_names) != len(traces):
        raise SettingError(f"explore: expected {len(traces)} names, one for each trace, got {len(display_names)}")
    if display_names is None:
        display_names = make_unique([_get_name(trace) for trace in traces])

    def fill() -> None:
        are_traces = survey_folder is None and run_folder is None
        for trace, own in zip(traces, display_names, strict=True) if are_traces else ():
            library.add(trace if isinstance(trace, Trace) else open_trace(trace), name=own)
        if not traces:
            library.example()

    session = None if traces else LetterSession()
    if survey_folder is not None:
        library.survey = SurveyView(open_survey(survey_folder), display_names[0])
        session = survey_session(library.survey.survey, model)
    if run_folder is not None:
        library.watched = WatchedRunView(run_folder, display_names[0])
    server = Server(library, session, host=host, port=port, names=names)
    return start_server(server, fill, open_browser=open_browser, block=block, say=say)


def _check_folders(shown: Sequence[Trace | str | Path]) -> None:
    """Raise SettingError for a folder that is not a trace, a survey or a watched run."""
    folders = [Path(one) for one in shown if not isinstance(one, Trace)]
    for folder in folders:
        if folder.is_dir() and not (is_survey(folder) or is_watched_run(folder) or (folder / "trace.json").exists()):
            raise SettingError(
                f"{folder} is not a saved trace, survey or watched run (no trace.json, manifest.json or {STEPS})"
            )


def _find_only(
    shown: Sequence[Trace | str | Path], is_kind: Callable[[str | Path], bool], kind: str, compare: str
) -> str | Path | None:
    """Return the folder of a kind that is shown alone, if there is one."""
    found = [one for one in shown if not isinstance(one, Trace) and is_kind(one)]
    if found and len(shown) > 1:
        raise SettingError(
            f"explore: expected one {kind} and nothing else, got {len(shown)} folders; to compare two {kind}s: "
            f"{compare}"
        )
    return found[0] if found else None


def _get_name(trace: Trace | str | Path) -> str:
    return (trace.model if isinstance(trace, Trace) else Path(trace).resolve().name) or "trace"


def make_unique(names: Sequence[str]) -> list[str]:
    """Number repeated names.

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
    say: Print | None = None,
    host: str = LOOPBACK,
    port: int = 0,
    names: Sequence[str] = (),
) -> Server:
    """Show the attention of a model in the browser, where you can type more texts.

    Args:
        model: A model that `attnscope.read` supports.
        tokenizer: Its tokenizer.
        text: A first text, or token ids.
        name: The name of the model to display.
        open_browser: Whether to open a browser.
        block: Whether to wait until Ctrl-C; by default True in a script, False at a prompt and in a notebook.
        say: Called with the address instead of printing it to standard error.
        host: The address to bind.
        port: The port; 0 is any free port.
        names: More host names, as HOST or HOST:PORT, for use through a tunnel or a proxy.

    Returns:
        The running server.
    """
    display_name, library = name or type(model).__name__, Library()
    session = ModelSession(model, tokenizer, display_name)

    def fill() -> None:
        if text is not None:
            library.add(session.read(text), name=display_name)

    server = Server(library, session, host=host, port=port, names=names)
    return start_server(server, fill, open_browser=open_browser, block=block, say=say)


def start_server(
    server: Server, fill: Callable[[], None], *, open_browser: bool, block: bool | None, say: Print | None
) -> Server:
    """Fill the library of a server, start it, print its address, and wait if `block`.

    The server is created before, so that a port in use is found before minutes of work.
    """
    say = say or _print_to_stderr
    is_blocking = not _is_interactive() if block is None else block
    try:
        fill()
        if is_blocking:
            prepare_opening(server.library)
    except BaseException:
        server.close()
        raise
    server.start()
    if not _is_loopback(server.host):
        say(
            f"Warning: {server.host} can be reached from other machines, and the connection is not encrypted. Anyone "
            "with the address below can read the texts."
        )
    # A link in a notebook would be a request from another site.
    say(f"{'Paste this address into a new tab:' if _is_notebook() else 'The explorer is at'} {server.url}")
    if server.remote_url is not None:
        say(f"From other machines: {server.remote_url}")
    if open_browser:
        server.open_browser()
    if is_blocking:
        say("Press Ctrl-C to stop.")
        server.wait()
    return server


def _print_to_stderr(message: str) -> None:
    Console(stderr=True).print(message, markup=False, highlight=False, soft_wrap=True)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or _is_notebook()


def _is_notebook() -> bool:
    return hasattr(builtins, "__IPYTHON__")


def _has_screen() -> bool:
    """Whether a browser can be shown; on Linux, that needs a display or the variable BROWSER."""
    return sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise SettingError(f"explore: expected a port from 0 (any free port) to 65,535, got {port}")
    is_ipv6 = ":" in host
    both = is_ipv6 and is_wildcard(host) and socket.has_dualstack_ipv6()
    try:
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        why = error.strerror or error
        raise SettingError(f"explore: cannot bind {host} port {port}: {why}; choose another") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_own_hosts(host: str) -> list[str]:
    """List the hosts by which other machines reach this one: IP addresses, which need no name service, then names."""
    name, family = socket.gethostname(), socket.AF_UNSPEC if ":" in host else socket.AF_INET
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)}
    except OSError:  # the host name does not resolve
        found = set()
    numbers = [ipaddress.ip_address(str(address).partition("%")[0]) for address in found]
    far = [bracket_ipv6(str(one)) for one in numbers if not one.is_loopback and not one.is_link_local]
    named = [one for one in dict.fromkeys((name, socket.getfqdn())) if NAME.fullmatch(one) and not _is_loopback(one)]
    return [*sorted(far), *named]
