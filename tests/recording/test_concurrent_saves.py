"""Two saves to one folder: the second is refused while the first is at work, and takes over what a kill left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from attnscope.errors import TraceError
from attnscope.recording import Trace, open_trace
from attnscope.recording.files import saving

TRACE = Trace.from_attentions([torch.eye(3)[None, None]], tokens=["so", "it", "is"])


def test_a_second_save_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    with saving._scratch(folder) as scratch:
        with pytest.raises(TraceError, match="another process is saving a trace"):
            TRACE.save(folder)
        assert scratch.exists()
        assert (folder / saving.MANIFEST).exists()  # the mark of the first
    TRACE.save(folder)
    assert open_trace(folder, verify=True).tokens() == ["so", "it", "is"]
    assert sorted(path.name for path in folder.iterdir()) == ["layers", "texts.safetensors", "trace.json"]


def test_an_older_trace_survives_a_refused_save(tmp_path: Path) -> None:
    TRACE.save(tmp_path)
    with saving._scratch(tmp_path), pytest.raises(TraceError, match="another process"):
        TRACE.save(tmp_path)
    assert open_trace(tmp_path, verify=True).tokens() == ["so", "it", "is"]


def test_a_save_that_was_killed_before_its_first_file_is_taken_over(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    folder.mkdir()
    tempfile.mkdtemp(dir=folder, prefix=saving.SCRATCH)
    TRACE.save(folder)
    assert open_trace(folder, verify=True).tokens() == ["so", "it", "is"]
    assert not list(folder.glob(f"{saving.SCRATCH}*"))
