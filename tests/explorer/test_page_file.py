"""A page is saved whole or not at all, and who saves it is told which file could not be written, and why."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from attnscope.cli.main import main
from attnscope.errors import SettingError
from attnscope.recording import Trace
from tests.explorer.serving import small_trace

ROOM = 50_000  # bytes: less than any page has


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow above the room that is left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("before", [None, "another page"])
def test_a_page_that_does_not_fit_leaves_the_folder_as_it_was(tmp_path: Path, before: str | None) -> None:
    page = tmp_path / "page.html"
    if before is not None:
        page.write_text(before)
    message = rf"cannot write {re.escape(str(page))} \(0\.\d MB\): File too large; free some space"
    with full_disk(), pytest.raises(SettingError, match=message):
        small_trace().save_page(page)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page.html", before)] * bool(before)


def test_the_command_line_names_the_file_and_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_trace().save(tmp_path / "trace")
    page = tmp_path / "page.html"
    with full_disk():
        assert main(["explore", str(tmp_path / "trace"), "--save", str(page)]) == 2
    errors = capsys.readouterr().err
    assert f"cannot write {page} (0." in errors
    assert "File too large" in errors
    assert "standard output" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


def test_a_page_is_written_through_a_link_but_not_over_something_that_is_no_file(tmp_path: Path) -> None:
    trace, page, link = small_trace(), tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(page)
    trace.save_page(link)
    assert link.is_symlink()
    assert page.stat().st_size > ROOM
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingError, match="expected a file"):
        trace.save_page(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_page_without_a_head_opens_on_the_most_distinctive_one(tmp_path: Path) -> None:
    uniform = torch.ones(24, 24).tril()
    previous = torch.eye(24).roll(1, 0).tril() + 1e-3 * uniform
    layers = [torch.stack([uniform, uniform]), torch.stack([uniform, previous])]
    trace = Trace.from_attentions([(one / one.sum(-1, keepdim=True))[None] for one in layers])
    trace.save_page(tmp_path / "page.html")
    assert re.search(r'data-at="#1/[^/]+/L1H1/map"', (tmp_path / "page.html").read_text())
    trace.save_page(tmp_path / "page.html", layer=1)
    assert "/L1H0/map" in (tmp_path / "page.html").read_text()
