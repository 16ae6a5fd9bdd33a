"""A file with a checksum is read as it was written, or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from attnscope.errors import CheckpointError
from attnscope.models.checked_json import encode_checked_json, read_checked_json

FIELDS = {"name": "a \u00e9 \ud800", "step": 3, "rate": 0.1, "nothing": None, "list": [1.5, {"b": True}], "z": -0.0}


def test_what_was_written_is_read_without_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(encode_checked_json(FIELDS))
    assert read_checked_json(path, advice="") == FIELDS
    assert list(json.loads(path.read_bytes())) == [*FIELDS, "checksum"]
    path.write_bytes(encode_checked_json({"checksum": "old", "loss": math.inf}))
    assert read_checked_json(path, advice="") == {"loss": math.inf}


def test_every_flipped_bit_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path, whole, refused = tmp_path / "run.json", encode_checked_json(FIELDS), 0
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert read_checked_json(path, advice="copy it again") == FIELDS
            except CheckpointError:
                refused += 1
    blanks = whole.count(b" ") + whole.count(b"\n")
    assert refused >= 8 * (len(whole) - blanks)


@pytest.mark.parametrize("content", [b"{}", b'{"step": 3}', b'{"step": 3, "checksum": null}', b"[]", b""])
def test_a_file_without_its_checksum_is_refused_with_the_advice(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"run\.json.*; copy it again"):
        read_checked_json(path, advice="copy it again")


def test_a_file_of_brackets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"a": ' + "[" * 900 + "]" * 900 + ', "checksum": "0"}')
    with pytest.raises(CheckpointError, match=r"run\.json"):
        read_checked_json(path, advice="copy it again")
