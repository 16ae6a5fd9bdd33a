"""A part is on the disk whole, or not at all; and damage is noticed."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import tracemalloc
import zlib
from pathlib import Path

import pytest

from attnscope.errors import CheckpointError
from attnscope.survey.partials import partial_files
from attnscope.survey.partials.partial import PartialResult, merge, merge_partials
from attnscope.survey.partials.partial_files import DIGEST_BYTES, LENGTH_BYTES, MAGIC, load_partial, save_partial
from tests.survey.changed_json import changed_once
from tests.survey.random_shards import assert_same, shard_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a part lies."""
    return tmp_path / "00000003.partial"


def test_what_is_loaded_is_what_was_saved(path: Path) -> None:
    for partial in (
        shard_of(3, 0),
        shard_of(3, 0, batches=0),
        PartialResult.empty(),
        merge_partials(map(shard_of, range(5), [1] * 5)),
    ):
        save_partial(partial, path)
        assert_same(load_partial(path), partial, tolerance=0.0)


def test_the_same_content_is_the_same_bytes_and_another_is_not(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    save_partial(shard_of(3, 0), one)
    save_partial(load_partial(one), same)
    save_partial(shard_of(3, 1), other)
    assert one.read_bytes() == same.read_bytes() != other.read_bytes()


def test_a_text_that_is_no_unicode_survives(path: Path) -> None:
    partial = shard_of(3, 0)
    number, example = next(iter(partial.examples.passages.items()))
    odd = example._replace(text="\ud800 \x00 \U0001f642")
    examples = partial.examples._replace(passages={**partial.examples.passages, number: odd})
    save_partial(PartialResult(**{**vars(partial), "examples": examples}), path)
    assert load_partial(path).examples.passages[number] == odd


def test_a_file_that_is_cut_off_anywhere_is_refused(path: Path) -> None:
    save_partial(shard_of(3, 0), path)
    content = path.read_bytes()
    for length in [*range(100), *range(100, len(content), len(content) // 50), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"00000003\.partial .*delete it"):
            load_partial(path)


def test_a_file_with_one_other_bit_anywhere_is_refused(path: Path) -> None:
    save_partial(shard_of(3, 0), path)
    content = path.read_bytes()
    for place in [*range(80), *range(80, len(content), len(content) // 100), len(content) - 1]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"00000003\.partial .*delete it"):
            load_partial(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match=r"00000003\.partial .*delete it"):
        load_partial(path)


def test_a_part_with_other_bins_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_partial(shard_of(3, 0), path)
    monkeypatch.setattr(partial_files, "RELATIVE_ACCURACY", 0.01)
    with pytest.raises(CheckpointError, match="other statistics or bins"):
        load_partial(path)


WRONG = (None, True, -1, 2**70, 1.5, "", "x" * 5000, "<f8", [], [None], [[1, 2, 3, 4, 5, 6]], {}, {"a": 1})


def seal(content: bytes, path: Path) -> None:
    """Write content with the checksum that fits."""
    path.write_bytes(MAGIC + hashlib.sha256(content).digest() + content)


def test_a_header_with_any_one_change_is_refused_or_read_and_merged(path: Path) -> None:
    partial = shard_of(3, 0, batches=1)
    save_partial(partial, path)
    whole = zlib.decompress(path.read_bytes()[len(MAGIC) + DIGEST_BYTES :])
    start = LENGTH_BYTES + int.from_bytes(whole[:LENGTH_BYTES], "little")
    changes = list(changed_once(json.loads(whole[LENGTH_BYTES:start]), WRONG, items=2))
    refused = 0
    for changed in changes:
        text = json.dumps(changed).encode()
        seal(zlib.compress(len(text).to_bytes(LENGTH_BYTES, "little") + text + whole[start:], 1), path)
        try:
            found = load_partial(path)
        except CheckpointError as error:
            refused += len(str(error).splitlines()) == 1
            continue
        if found.layers == partial.layers and found.heads == partial.heads:
            merge(found, shard_of(1, 0, batches=1))
        refused += 1
    assert refused == len(changes) > 400


def test_invalid_content_with_the_right_checksum_is_refused(path: Path) -> None:
    save_partial(shard_of(3, 0), path)
    whole = zlib.decompress(path.read_bytes()[len(MAGIC) + DIGEST_BYTES :])
    for content in (b"", whole[:4], whole[:100], whole[:-1], whole + b"\0", b"\xff" * 100, bytes(1000)):
        seal(zlib.compress(content), path)
        with pytest.raises(CheckpointError, match=r"00000003\.partial.*delete it"):
            load_partial(path)
    for compressed in (b"", whole, zlib.compress(whole)[:-5], zlib.compress(whole) + b"\0"):
        seal(compressed, path)
        with pytest.raises(CheckpointError, match=r"00000003\.partial is damaged.*delete it"):
            load_partial(path)


def test_a_small_file_does_not_become_a_large_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_files, "MIN_LIMIT", 2**20)
    seal(zlib.compress(bytes(2**26), 9), path)
    assert path.stat().st_size < 2**17
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"00000003\.partial is damaged.*does not end"):
        load_partial(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24
    header = json.dumps({"statistics": partial_files._statistics(), "layers": ["x"] * 10**5, "heads": [0] * 10**5})
    seal(zlib.compress(len(header).to_bytes(LENGTH_BYTES, "little") + header.encode()), path)
    with pytest.raises(CheckpointError, match="and their histograms"):
        load_partial(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 8,
        zlib.compress(b"\2" + b"\0" * 7 + b"{}"),
        zlib.compress(b"\2" + b"\0" * 7 + b"\xff\xff"),
        zlib.compress(b"\xff" * 9),
    ],
)
def test_content_of_others_with_the_right_checksum_is_refused(path: Path, content: bytes) -> None:
    seal(content, path)
    with pytest.raises(CheckpointError, match=r"00000003\.partial .*delete it"):
        load_partial(path)


def test_what_is_not_there_is_said_to_be_missing(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"00000003\.partial: No such file"):
        load_partial(path)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_whoever_is_killed_while_writing_leaves_no_part(tmp_path: Path, moment: str) -> None:
    script = f"""
        import os, signal
        from pathlib import Path
        from attnscope.survey.partials.partial_files import save_partial
        from attnscope.survey.partials.partial import PartialResult

        def die(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)

        {"os.fsync = die" if moment == "fsync" else "Path.replace = die"}
        save_partial(PartialResult.empty(), Path({str(tmp_path / "part")!r}))
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert ended.returncode == -signal.SIGKILL
    left = [each.name for each in tmp_path.iterdir()]
    assert len(left) == 1
    assert left[0].startswith(".part.")
    assert left[0].endswith(".tmp")
    save_partial(PartialResult.empty(), tmp_path / "part")
    assert (tmp_path / "part").read_bytes().startswith(MAGIC)


def test_a_write_that_fails_leaves_what_was_there_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_partial(shard_of(3, 0), path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_partial(shard_of(3, 1), path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before
