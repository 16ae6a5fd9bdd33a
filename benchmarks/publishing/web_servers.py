"""Web servers on a free port of the loopback interface, each a process that ends with its block.

In: a folder of files, or a saved trace for the explorer. Out: an address. nginx, Caddy and the explorer listen on
127.0.0.1 only.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from attnscope.errors import SettingError

LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0
NGINX = """{user}daemon off;
worker_processes {workers};
pid {folder}/nginx.pid;
error_log {folder}/nginx.error;
events {{ worker_connections 1024; }}
http {{
  include /etc/nginx/mime.types;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  log_format counted '$status $bytes_sent $request_uri';
  access_log {log};
  sendfile on;
  gzip on;
  gzip_types application/javascript text/javascript text/css application/json;
  server {{ listen 127.0.0.1:{port}; root {site}; }}
}}
"""
CADDY = """{{
  admin off
  auto_https off
}}
http://127.0.0.1:{port} {{
  bind 127.0.0.1
  root * {site}
  file_server
}}
"""


class Live(NamedTuple):
    """A running explorer."""

    base: str
    token: str


def find_programs(*names: str) -> list[str]:
    """Return the programs of Debian packages that are missing."""
    return [name for name in names if shutil.which(name, path=program_path()) is None]


def program_path() -> str:
    """The search path of programs, with the folders of servers, which users often lack."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


@contextmanager
def nginx(site: Path, folder: Path, *, log: Path | None = None) -> Iterator[str]:
    """Serve a folder by nginx, and log the status and bytes of each response if `log` is a file."""
    port = free_port()
    config = NGINX.format(
        user="user root;\n" if os.geteuid() == 0 else "",  # the folder may be closed to other users
        workers=os.cpu_count() or 1,
        folder=folder,
        log="off" if log is None else f"{log} counted",
        port=port,
        site=site.absolute(),
    )
    (folder / "nginx.conf").write_text(config, encoding="utf-8")
    command = ["nginx", "-e", str(folder / "nginx.error"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with _running(command, folder / "nginx.out"):
        _wait_until_open(port, folder / "nginx.error")
        yield f"http://{LOOPBACK}:{port}/"


@contextmanager
def caddy(site: Path, folder: Path) -> Iterator[str]:
    """Serve a folder by Caddy."""
    port = free_port()
    (folder / "Caddyfile").write_text(CADDY.format(port=port, site=site.absolute()), encoding="utf-8")
    command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    private = {name: str(folder) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    with _running(command, folder / "caddy.out", private):
        _wait_until_open(port, folder / "caddy.out")
        yield f"http://{LOOPBACK}:{port}/"


@contextmanager
def explorer(folder: Path, *arguments: str, seconds: float = START_SECONDS) -> Iterator[Live]:
    """Run `attnscope` with a command that serves the explorer, such as `explore TRACE`, for as long as it is needed.

    Args:
        folder: Where its output is written.
        *arguments: The command and its arguments.
        seconds: How long it may take until it serves.
    """
    output = folder / "explorer.out"
    command = [sys.executable, "-m", "attnscope.cli.main", *arguments, "--no-browser"]
    with _running(command, output):
        end = time.monotonic() + seconds
        while not (found := [word for word in output.read_text().split() if "#token=" in word]):
            if time.monotonic() > end:
                raise SettingError(f"the explorer did not start: {output.read_text()[-500:]}")
            time.sleep(0.1)
        address = urlsplit(found[0])
        yield Live(f"http://{address.netloc}", address.fragment.removeprefix("token="))


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return int(one.getsockname()[1])


@contextmanager
def _running(command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run a process in the background, and end it."""
    variables = {**os.environ, **(environment or {}), "PATH": program_path()}
    program = shutil.which(command[0], path=program_path()) or command[0]
    with output.open("wb") as file:
        process = subprocess.Popen([program, *command[1:]], stdout=file, stderr=subprocess.STDOUT, env=variables)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_open(port: int, messages: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        with socket.socket() as one:
            if one.connect_ex((LOOPBACK, port)) == 0:
                return
        if time.monotonic() > end:
            raise SettingError(f"publish: the web server did not start: {messages.read_text()[-500:]}")
        time.sleep(0.05)
