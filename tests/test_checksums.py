"""Every damaged file is found, and names from an untrusted list do not lead out of the folder."""

import hashlib
import os
import zlib
from pathlib import Path

import pytest

from attnscope.checksums import PIECE_BYTES, crc32_file, find_damaged, sha256_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.bin").write_bytes(bytes(range(256)) * 4096)
    (folder / "inner" / ".hidden").write_bytes(b"x")
    (folder / "empty").touch()
    return folder


def sha256_files(folder: Path) -> dict[str, str]:
    return {name: sha256_file(folder / name) for name in ("a.bin", "empty", "inner/.hidden")}


def test_files_that_are_intact_are_not_found(folder: Path) -> None:
    checksums = sha256_files(folder)
    assert checksums["inner/.hidden"] == hashlib.sha256(b"x").hexdigest() == sha256_file(folder / "inner" / ".hidden")
    assert find_damaged(folder, checksums, sha256_file) == []


def test_a_flipped_bit_a_cut_file_and_a_missing_file_are_found(folder: Path) -> None:
    checksums = sha256_files(folder)
    content = bytearray((folder / "a.bin").read_bytes())
    content[500_000] ^= 1
    (folder / "a.bin").write_bytes(content)
    assert find_damaged(folder, checksums, sha256_file) == ["a.bin"]
    (folder / "inner" / ".hidden").write_bytes(b"")
    assert find_damaged(folder, checksums, sha256_file) == ["a.bin", "inner/.hidden"]
    (folder / "empty").unlink()
    assert find_damaged(folder, checksums, sha256_file) == ["a.bin", "empty", "inner/.hidden"]


def test_crc32_is_that_of_the_whole_file(folder: Path) -> None:
    content = bytes(range(251)) * (3 * PIECE_BYTES // 251)
    (folder / "long").write_bytes(content)
    assert crc32_file(folder / "long") == f"{zlib.crc32(content):08x}"
    assert crc32_file(folder / "empty") == "00000000"
    checksums = {"long": crc32_file(folder / "long")}
    assert find_damaged(folder, checksums, crc32_file) == []
    (folder / "long").write_bytes(content[:-1] + b"\0")
    assert find_damaged(folder, checksums, crc32_file) == ["long"]


def test_names_that_lead_out_of_the_folder_are_damaged(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"x")
    (folder / "link").symlink_to(outside)
    os.mkfifo(folder / "pipe")  # reading it would block
    right = hashlib.sha256(b"x").hexdigest()
    names = [str(outside), "../outside", "link", "pipe", "inner", "", "a\0b"]
    assert find_damaged(folder, dict.fromkeys([*names, "inner/.hidden"], right), sha256_file) == names
