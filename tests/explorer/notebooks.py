"""A real JupyterLab on this machine, and a notebook of it in a real browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator, Page, WebSocket

from tests.explorer.picture import READ, Picture

ROOT = Path(__file__).resolve().parents[2]
# The kernel imports the tests, and the package that they import.
PYTHONPATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
FOLDERS = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR", "LAB_SETTINGS_DIR", "LAB_WORKSPACES_DIR")
OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--port=0",
    "--IdentityProvider.token=",
    "--ServerApp.disable_check_xsrf=True",
    "--LabApp.extension_manager=readonly",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--expose-app-in-browser",
)
MAX_SECONDS = 40

PANEL = "jupyterapp.shell.currentWidget"
KERNEL = f"{PANEL}?.context?.sessionContext?.session?.kernel"
RUN = f"""(at) => {{
  const notebook = {PANEL}.content;
  notebook.deselectAll();
  notebook.activeCellIndex = at;
  void jupyterapp.commands.execute("notebook:run-cell");
}}"""
RUNS = f"(at) => ['running', 'scheduled'].includes({PANEL}.content.widgets[at].model.executionState)"
CLEAR = f"""async (at) => {{
  {PANEL}.content.activeCellIndex = at;
  await jupyterapp.commands.execute("notebook:clear-cell-output");
}}"""
ASK = f"""async (code) => {{
  let said = "";
  const asked = {KERNEL}.requestExecute({{ code, store_history: false }});
  asked.onIOPub = ({{ header, content }}) => {{
    if (header.msg_type === "stream" && content.name === "stdout") said += content.text;
    if (header.msg_type === "error") said += content.traceback.join("\\n");
  }};
  await asked.done;
  return said;
}}"""


class Lab(NamedTuple):
    """A server of notebooks, and the folder that it serves."""

    base: str
    folder: Path


@contextmanager
def jupyter_lab(folder: Path) -> Iterator[Lab]:
    """A JupyterLab that knows nothing but this environment, and asks nobody for anything."""
    places = {f"JUPYTER{'' if name.startswith('LAB') else '_'}{name}": folder / name.lower() for name in FOLDERS}
    settings = places["JUPYTERLAB_SETTINGS_DIR"] / "@jupyterlab" / "apputils-extension"
    for place in (*places.values(), settings, folder / "work"):
        place.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    surroundings = {**os.environ, **{name: str(place) for name, place in places.items()}}
    surroundings |= {"IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "jupyterlab", *OPTIONS, f"--ServerApp.root_dir={folder / 'work'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=surroundings, cwd=folder / "work", stdout=log, stderr=log)
        try:
            yield Lab(_address(places["JUPYTER_RUNTIME_DIR"], process, folder / "log"), folder / "work")
        finally:
            process.terminate()
            process.wait(MAX_SECONDS)


def _address(runtime: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens: it writes that down, and answers a moment later."""
    end = time.monotonic() + MAX_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            url = json.loads((runtime / f"jpserver-{process.pid}.json").read_text())["url"].rstrip("/")
            with urllib.request.urlopen(f"{url}/api/status", timeout=1):
                return url
        except (OSError, ValueError):
            time.sleep(0.1)
    raise AssertionError(f"JupyterLab does not answer:\n{log.read_text()}")


class Notebook:
    """A notebook in a browser; whatever it asked for, got and complained of is written down."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.frames: list[bytes] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", self._follow)
        page.on("pageerror", lambda error: self._hear(str(error.stack or error)))
        page.on("console", lambda said: self._hear(f"{said.text} {said.location}") if said.type == "error" else None)

    def _hear(self, complaint: str) -> None:
        if "/static/lab/" not in complaint:  # JupyterLab has its own, as about models that have just been closed
            self.complaints.append(complaint)

    def _follow(self, socket: WebSocket) -> None:
        socket.on("framereceived", lambda part: self.frames.append(part if isinstance(part, bytes) else part.encode()))

    @property
    def explorer(self) -> Locator:
        """The explorer in the cell; of several, the first."""
        return self.page.locator(".explorer").first

    def run(self, cell: int, *, wait: bool = True) -> None:
        """Run a cell, and wait until it has been run."""
        self.page.evaluate(RUN, cell)
        if wait:
            self.page.wait_for_function(f"(at) => !({RUNS})(at)", arg=cell, timeout=1000 * MAX_SECONDS)

    def show(self, cell: int) -> None:
        """Run a cell, and wait for the map in it."""
        self.run(cell)
        self.page.locator(".explorer[data-state=ready] .map[data-state=ready]").first.wait_for(
            timeout=1000 * MAX_SECONDS
        )

    def clear(self, cell: int) -> None:
        """Take away what a cell shows."""
        self.page.evaluate(CLEAR, cell)

    def request(self, code: str) -> str:
        """What Python prints in the kernel, beside all cells."""
        return self.page.evaluate(ASK, code).strip()

    def state(self) -> dict[str, Any]:
        """What the explorer says that it shows."""
        return self.explorer.evaluate("(root) => root.attnscope.store.get()")

    def picture(self, queries: int, keys: int) -> Picture:
        """The heatmap as it is drawn."""
        inside = (
            f"(root) => {{ const document = {{ getElementById: () => root }}; return ({READ})(['heat', null, '']); }}"
        )
        return Picture(self.explorer.evaluate(inside), queries, keys)

    def elsewhere(self, lab: Lab) -> list[str]:
        """What was asked of anybody but the server of the notebook."""
        return [url for url in self.requests if urlsplit(url).scheme != "blob" and not url.startswith(lab.base)]


@contextmanager
def notebook(browser: Browser, lab: Lab, *cells: str) -> Iterator[Notebook]:
    """A new notebook of some cells, with a kernel that waits for the first."""
    code = [
        {
            "cell_type": "code",
            "id": f"cell-{at}",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": cell,
        }
        for at, cell in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {"cells": code, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (lab.folder / "tested.ipynb").write_text(json.dumps(content))
    with browser.new_context(viewport={"width": 1400, "height": 1000}) as context:
        page = context.new_page()
        found = Notebook(page)
        page.goto(f"{lab.base}/doc/tree/tested.ipynb")
        page.wait_for_function(f"window.jupyterapp && {KERNEL}?.status === 'idle'", timeout=1000 * MAX_SECONDS)
        yield found
