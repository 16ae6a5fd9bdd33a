"""A log is read as it was written; a damaged line is named, and an incomplete last one is left out."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.errors import CheckpointError
from attnscope.models.checked_log import encode_line, read_log, split_lines

LINES: list[dict] = [{"step": 1, "loss": 0.5}, {"step": 2, "sample": 'a "crc32": "00000000"}\n'}, {"step": 3}]
VALUES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=9)


@given(st.lists(st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=4), max_size=5))
def test_lines_come_back_as_they_were_written(lines: list[dict]) -> None:
    content = b"".join(map(encode_line, lines))
    assert content.count(b"\n") == len(lines)
    assert [line.fields for line in split_lines(content)] == lines
    assert [content[line.stop : line.stop + 1] for line in split_lines(content)] == [b"\n"] * len(lines)


def test_a_line_is_json_that_others_read() -> None:
    assert json.loads(encode_line({"step": 1, "loss": 0.5})) == {"step": 1, "loss": 0.5, "crc32": "8b97f1ca"}
    assert math.isnan(json.loads(encode_line({"loss": math.nan}))["loss"])


def test_every_flipped_bit_is_found_in_its_line(tmp_path: Path) -> None:
    whole, path = b"".join(map(encode_line, LINES)), tmp_path / "log.jsonl"
    for place in range(len(whole) - 1):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            number = 1 + whole[:place].count(b"\n")
            with pytest.raises(CheckpointError, match=rf"log\.jsonl, line {number}: damaged, .*; copy it again"):
                list(read_log(path, advice="copy it again"))


def test_an_incomplete_last_line_is_left_out_with_a_warning(tmp_path: Path) -> None:
    whole, path = b"".join(map(encode_line, LINES)), tmp_path / "log.jsonl"
    start = whole.index(b'{"step": 3')
    for length in range(start + 1, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.warns(UserWarning, match=r"log\.jsonl: left out line 3, which is not complete"):
            assert list(read_log(path, advice="")) == [(1, LINES[0]), (2, LINES[1])]
    path.write_bytes(whole[:-1])
    assert list(read_log(path, advice="")) == list(enumerate(LINES, 1))


@pytest.mark.parametrize("line", [b"", b"\0\0", b"{}", b'{"step": 1}', b'["crc32"]', b"\xff", b"[" * 100_000])
def test_a_line_without_its_checksum_is_damaged(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_line({"step": 1}) + line + b"\n")
    with pytest.raises(CheckpointError, match=r"log\.jsonl, line 2: damaged"):
        list(read_log(path, advice=""))
