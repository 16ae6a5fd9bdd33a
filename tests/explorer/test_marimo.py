"""A trace shows itself in a cell of a real marimo notebook."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.explorer.browser import needs_chromium

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = """
import marimo

app = marimo.App()


@app.cell
def _():
    from tests.explorer.serving import small_trace

    trace = small_trace()
    {shown}
    return


if __name__ == "__main__":
    app.run()
"""
MAX_SECONDS = 60
HEADING = re.compile(r"L\d+H\d+")


@contextmanager
def marimo(folder: Path, shown: str) -> Iterator[str]:
    """Serve a notebook whose only cell ends with an expression; yield its address."""
    (folder / "notebook.py").write_text(NOTEBOOK.format(shown=shown))
    command = [sys.executable, "-m", "marimo", "run", "notebook.py", "--headless", "--no-token", "--port", "0"]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=folder, env=surroundings, stdout=file, stderr=file)
    try:
        yield wait_for_address(process, log)
    finally:
        process.terminate()
        process.wait(MAX_SECONDS)


def wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + MAX_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if found := re.search(r"http://\S+?:(\d+)", log.read_text()):
            return f"http://127.0.0.1:{found[1]}"
        time.sleep(0.1)
    raise AssertionError(f"marimo does not answer:\n{log.read_text()}")


@needs_chromium
@pytest.mark.parametrize("shown", ["trace", "trace.widget(layer=1, head=1)"])
def test_a_cell_shows_the_explorer(browser: Browser, tmp_path: Path, shown: str) -> None:
    with marimo(tmp_path, shown) as address, browser.new_page() as page:
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        heading = page.get_by_role("heading", name=HEADING).first
        heading.wait_for(timeout=1000 * MAX_SECONDS)
        if "head=1" in shown:
            assert "L1H1" in heading.inner_text()
        page.locator("canvas").first.wait_for(timeout=1000 * MAX_SECONDS)
        assert complaints == []
