"""Inputs of the fuzzers, which are folders packed as ZIP files, and structure-aware mutations of the files in them.

JSON files get other values, safetensors files and partial results of surveys other headers; checksums are computed
again, so that the code behind them is reached. Every file is also mutated as plain bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnscope.heads.over_training import METRICS
from attnscope.models.checked_json import encode_checked_json
from attnscope.models.checked_log import encode_line
from attnscope.models.checkpoint.folder_checksums import FILE as FOLDER_CHECKSUMS
from attnscope.models.json_files import dump_json
from attnscope.recording.files.manifest import content_hash
from attnscope.survey.partials.partial_files import DIGEST_BYTES, LENGTH_BYTES, MAGIC
from attnscope.telemetry.run_log import ALERTS, STEPS
from attnscope.train.checkpoint_files import MANIFEST as CHECKPOINT

Bytes = Callable[[bytes], bytes]
"""Mutates bytes; libFuzzer's own mutations, or `mutate_bytes`."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 2**31, 2**32, 2**53 + 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308,
    float("inf"), float("nan"), "", "x", "0", "../x", "\0", "\ud800", "x" * 5000, [], {}, [[]], [None], [0] * 100,
    {"": None},
)  # fmt: skip
MAX_DEPTH = 3000


def pack(files: Mapping[str, bytes]) -> bytes:
    """A ZIP file of some files, the same bytes for the same content."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def unpack(blob: bytes) -> dict[str, bytes] | None:
    """The files of a ZIP file; None if it is not one."""
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, EOFError, RuntimeError):
        return None


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def write_folder(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files to a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def mutate_files(files: Mapping[str, bytes], dice: random.Random, mutate: Bytes) -> dict[str, bytes]:
    """Mutate one file, or remove it, and mostly compute checksums again."""
    changed = dict(files)
    name = dice.choice(sorted(changed))
    if dice.random() < 0.01:
        del changed[name]
        return changed
    changed[name] = mutate_file(name, changed[name], dice, mutate)
    if dice.random() < 0.9:
        update_checksums(changed)
    return changed


def mutate_file(name: str, content: bytes, dice: random.Random, mutate: Bytes) -> bytes:
    """Mutate a file by its structure, or as bytes."""
    if dice.random() < 0.3:
        return mutate(content)
    suffix = Path(name).suffix
    if suffix == ".json":
        return mutate_json(content, dice, mutate)
    if suffix == ".jsonl":
        lines = content.splitlines()
        number = dice.randrange(max(len(lines), 1))
        lines[number : number + 1] = [mutate_json(line, dice, mutate) for line in lines[number : number + 1]]
        return b"\n".join([*lines, b""])
    if suffix == ".safetensors":
        return _with_header(content, dice, mutate)
    if suffix == ".partial" and content.startswith(MAGIC):
        try:
            inner = zlib.decompress(content[len(MAGIC) + DIGEST_BYTES :])
        except zlib.error:
            return mutate(content)
        outer = zlib.compress(_with_header(inner, dice, mutate), 1)
        return MAGIC + hashlib.sha256(outer).digest() + outer
    return mutate(content)


def mutate_json(content: bytes, dice: random.Random, mutate: Bytes) -> bytes:
    """Change, remove or repeat one value of a JSON file."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return mutate(content)
    places = list(_places(found))
    if not places:
        return mutate(content)
    parent, key = dice.choice(places)
    action = dice.random()
    if action < 0.1:
        del parent[key]
    elif action < 0.15:
        parent[key] = _nested(dice.randrange(MAX_DEPTH))
    elif action < 0.3:
        other, place = dice.choice(places)
        parent[key] = json.loads(json.dumps(other[place])) if place in _keys(other) else None
    elif action < 0.5 and isinstance(parent[key], int):
        parent[key] += dice.choice((-1, 1, 7, 100))
    elif action < 0.6 and isinstance(parent[key], str):
        parent[key] = mutate(parent[key].encode("utf-8", "replace")).decode("utf-8", "replace")
    elif action < 0.7 and isinstance(parent, dict):
        parent[dice.choice(("x", "", "name", "type", "a" * 300))] = dice.choice(VALUES)
    else:
        parent[key] = dice.choice(VALUES)
    try:
        return json.dumps(found).encode("utf-8")
    except (ValueError, RecursionError):
        return mutate(content)


def mutate_bytes(content: bytes, dice: random.Random) -> bytes:
    """Flip, remove, repeat or replace some bytes; for runs without libFuzzer."""
    changed = bytearray(content) or bytearray(1)
    for _ in range(dice.choice((1, 1, 2, 8))):
        place, length = dice.randrange(len(changed)), dice.choice((1, 2, 4, 8, 64))
        action = dice.randrange(4)
        if action == 0:
            changed[place] ^= 1 << dice.randrange(8)
        elif action == 1:
            del changed[place : place + length]
        elif action == 2:
            changed[place:place] = changed[place : place + length]
        else:
            changed[place : place + length] = dice.choice((b"\0", b"\xff", b"\x7f", b"1")) * length
        changed = changed or bytearray(1)
    return bytes(changed)


def update_checksums(files: dict[str, bytes]) -> None:
    """Let files with checksums agree with the other files, and with themselves."""
    updates = {"trace.json": _update_trace, "manifest.json": _update_survey, CHECKPOINT: _update_checkpoint}
    updates |= {FOLDER_CHECKSUMS: _update_folder, "run.json": _update_alone}
    for path in list(files):
        folder, _, name = path.rpartition("/")
        beside = {other.removeprefix(f"{folder}/"): content for other, content in files.items()}
        with suppress(Exception):  # what is left of it may be anything
            if name in updates:
                files[path] = updates[name](json.loads(files[path]), beside)
            elif name in (METRICS, STEPS, ALERTS):
                files[path] = b"".join(map(_update_line, files[path].split(b"\n")))


def _update_trace(manifest: dict[str, Any], files: Mapping[str, bytes]) -> bytes:
    for entry in _file_entries(manifest):
        content = files.get(entry["name"], b"")
        entry |= {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return json.dumps({**manifest, "content": content_hash(manifest)}).encode("utf-8")


def _update_survey(manifest: dict[str, Any], files: Mapping[str, bytes]) -> bytes:
    for name, entry in manifest["tables"].items():
        if name in files and isinstance(entry, dict):
            entry |= {"size": len(files[name]), "sha256": hashlib.sha256(files[name]).hexdigest()}
    return encode_checked_json(manifest)


def _update_checkpoint(manifest: dict[str, Any], files: Mapping[str, bytes]) -> bytes:
    hashes = {name: f"{zlib.crc32(files.get(name, b'')):08x}" for name in manifest["files"]}
    return encode_checked_json({**manifest, "files": hashes})


def _update_folder(manifest: dict[str, Any], files: Mapping[str, bytes]) -> bytes:
    hashes = {name: f"{zlib.crc32(files[name]):08x}" for name in manifest["crc32"] if name in files}
    return dump_json({**manifest, "crc32": hashes})


def _update_alone(manifest: dict[str, Any], _: Mapping[str, bytes]) -> bytes:
    return encode_checked_json(manifest)


def _update_line(line: bytes) -> bytes:
    """A line of a log with its checksum, if it is still JSON."""
    try:
        fields = {name: value for name, value in json.loads(line).items() if name != "crc32"}
    except (ValueError, AttributeError, RecursionError):
        return line + b"\n" if line else b""
    return encode_line(fields)


def _file_entries(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, dict):
        own = [node] if {"name", "num_bytes", "sha256"} <= node.keys() and isinstance(node["name"], str) else []
        return own + [entry for value in node.values() for entry in _file_entries(value)]
    return [entry for value in node for entry in _file_entries(value)] if isinstance(node, list) else []


def _with_header(content: bytes, dice: random.Random, mutate: Bytes) -> bytes:
    """Mutate a JSON header with its length before it, or the bytes behind it."""
    stop = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    if stop > len(content):
        return mutate(content)
    header, rest = content[LENGTH_BYTES:stop], content[stop:]
    if dice.random() < 0.8:
        header = mutate_json(header, dice, mutate)
    else:
        rest = mutate(rest)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header + rest


def _places(node: Any) -> list[tuple[Any, Any]]:
    """All values in a JSON object, each as its parent and its key."""
    found = []
    for key in _keys(node):
        found.append((node, key))
        found += _places(node[key])
    return found


def _keys(node: Any) -> list[Any]:
    return list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []


def _nested(depth: int) -> Any:
    node: Any = 0
    for _ in range(depth):
        node = [node]
    return node
