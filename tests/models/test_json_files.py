import os
import sys

import pytest

from attnscope.errors import CheckpointError
from attnscope.models.json_files import read_json, read_optional_json, read_text, write_json


def test_an_object_comes_back_as_it_was_written(tmp_path):
    found = {"text": "é🦜\ud800\n", "numbers": [1, 2.5, None, True]}
    write_json(tmp_path / "a.json", found)
    assert read_json(tmp_path / "a.json") == found


def test_an_object_that_may_be_missing_is_then_empty(tmp_path):
    assert read_optional_json(tmp_path / "a.json") == {}
    (tmp_path / "a.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"a\.json is not valid JSON"):
        read_optional_json(tmp_path / "a.json")


def test_the_last_allowed_byte_is_read_and_one_more_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("12345")
    assert read_text(tmp_path / "a.txt", 5) == "12345"
    with pytest.raises(CheckpointError, match=r"a\.txt has more than 4 bytes"):
        read_text(tmp_path / "a.txt", 4)


def test_what_is_no_file_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match=r"missing\.json does not exist"):
        read_json(tmp_path / "missing.json")
    with pytest.raises(CheckpointError, match="is not a file"):
        read_text(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes in folders")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(CheckpointError, match=r"pipe\.json is not a file"):
        read_json(tmp_path / "pipe.json")


@pytest.mark.parametrize("content", ["", "{", "nul", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_damaged_json_is_refused_by_name(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"a\.json is not valid JSON .*"):
        read_json(tmp_path / "a.json")
