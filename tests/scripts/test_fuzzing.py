"""Inputs that fuzzers found open or are refused with an error of AttnScope, and the fuzzers notice everything else."""

from __future__ import annotations

import hashlib
import json
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.checksums import crc32_file, find_damaged
from attnscope.errors import CheckpointError
from attnscope.recording.files.manifest import content_hash
from attnscope.survey import open_survey
from attnscope.survey.partials.partial_files import DIGEST_BYTES, MAGIC, load_partial
from attnscope.train.checkpoint_files import read_manifest
from scripts.fuzzing import __main__ as command
from scripts.fuzzing import findings, mutations
from scripts.fuzzing.findings import CORPUS, MAX_KEPT_BYTES, mutate, try_input
from scripts.fuzzing.mutations import mutate_bytes, mutate_file, mutate_files, pack, read_folder, unpack
from scripts.fuzzing.openers import OPENERS, Opener, PartialOpener, RunOpener, SurveyOpener, TraceOpener

KEPT = sorted(CORPUS.glob("*/*.zip"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_kept_input_opens_or_is_refused(path: Path) -> None:
    finding = try_input(OPENERS[path.parent.name](), path.read_bytes())
    assert finding is None, finding.text


def test_kept_inputs_are_small_and_belong_to_an_opener() -> None:
    assert {path.parent.name for path in KEPT} <= OPENERS.keys()
    assert [path.name for path in KEPT if path.stat().st_size > MAX_KEPT_BYTES] == []
    assert [path.name for path in KEPT if not unpack(path.read_bytes())] == []


def test_the_command_has_all_openers() -> None:
    assert tuple(OPENERS) == command.NAMES


@pytest.mark.parametrize("name", OPENERS)
def test_the_seed_of_an_opener_opens(name: str, tmp_path: Path) -> None:
    opener = OPENERS[name]()
    opener.write_seed(tmp_path)
    opener.open(tmp_path)
    assert len(pack(read_folder(tmp_path))) < MAX_KEPT_BYTES


class Planted(Opener):
    """Opens a file, and fails in a chosen way where the file has a certain byte."""

    name = "planted"

    def __init__(self, fail: Callable[[], object]) -> None:
        self.fail = fail

    def write_seed(self, folder: Path) -> None:
        (folder / "a").write_bytes(bytes(100))
        (folder / "b").write_bytes(bytes(100))

    def open(self, folder: Path) -> None:
        if b"!" in (folder / "a").read_bytes():
            self.fail()


def fail_with(error: BaseException) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


BAD = pack({"a": b"x" * 50 + b"!" + b"y" * 50, "b": bytes(100)})


@pytest.mark.parametrize(
    ("error", "signature"),
    [(KeyError("x"), "KeyError at "), (MemoryError(), "MemoryError at "), (CheckpointError("damaged"), None)],
)
def test_other_exceptions_are_findings(error: BaseException, signature: str | None) -> None:
    finding = try_input(Planted(fail_with(error)), BAD)
    assert finding is None if signature is None else finding is not None and finding.signature.startswith(signature)
    assert try_input(Planted(fail_with(error)), pack({"a": b"", "b": b""})) is None


def compute_for_ever() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("limit", "fault"), [("MAX_SECONDS", lambda: time.sleep(60)), ("MAX_CPU_SECONDS", compute_for_ever)]
)
def test_a_hang_is_a_finding(limit: str, fault: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, limit, 1)
    finding = try_input(Planted(fault), BAD)
    assert finding is not None
    assert finding.signature.startswith("HangError at ")


def test_a_finding_is_minimised_and_kept_if_it_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "CORPUS", tmp_path)
    opener = Planted(fail_with(KeyError("x")))
    finding = try_input(opener, BAD)
    assert finding is not None
    small = findings.minimise(opener, BAD, finding.signature)
    assert unpack(small) == {"a": b"!"}
    path = findings.keep(opener, small)
    assert path is not None
    assert path.read_bytes() == small
    assert findings.keep(opener, bytes(MAX_KEPT_BYTES + 1)) is None


def test_mutations_repeat_and_differ(tmp_path: Path) -> None:
    TraceOpener().write_seed(tmp_path)
    seed = pack(read_folder(tmp_path))
    assert mutate(seed, 1) == mutate(seed, 1)
    assert len({mutate(seed, number) for number in range(50)}) > 40


def test_a_mutated_trace_has_the_right_hashes(tmp_path: Path) -> None:
    TraceOpener().write_seed(tmp_path)
    files = read_folder(tmp_path)
    reached = 0
    for number in range(100):
        dice = random.Random(number)
        changed = mutate_files(files, dice, lambda content, dice=dice: mutate_bytes(content, dice))
        try:
            manifest = json.loads(changed.get("trace.json", b""))
            reached += changed != files and manifest["content"] == content_hash(manifest)
        except (ValueError, KeyError):
            continue
    assert reached > 40


def test_a_mutated_survey_has_the_right_hashes(tmp_path: Path) -> None:
    SurveyOpener().write_seed(tmp_path)
    files = read_folder(tmp_path)
    changed = files | {"heads.parquet": b"other"}
    mutations.update_checksums(changed)
    assert unpack(pack(changed)) == changed
    manifest = json.loads(changed["manifest.json"])
    assert manifest["tables"]["heads.parquet"]["sha256"] == hashlib.sha256(b"other").hexdigest()
    mutations.write_folder(changed | {"heads.parquet": files["heads.parquet"]}, tmp_path)
    with pytest.raises(CheckpointError, match=r"heads\.parquet"):
        open_survey(tmp_path).table("mean")
    mutations.write_folder(files, tmp_path)
    assert mutations.update_checksums(files) is None
    assert files == read_folder(tmp_path)


def test_a_mutated_checkpoint_has_the_right_hashes(tmp_path: Path) -> None:
    RunOpener().write_seed(tmp_path)
    files = read_folder(tmp_path)
    name = next(name for name in files if name.endswith("__0_0.distcp"))
    changed = files | {name: files[name] + b"more"}
    mutations.write_folder(changed, tmp_path)
    folder = (tmp_path / name).parent
    assert find_damaged(folder, read_manifest(folder).files, crc32_file) == ["__0_0.distcp"]
    mutations.update_checksums(changed)
    mutations.write_folder(changed, tmp_path)
    assert find_damaged(folder, read_manifest(folder).files, crc32_file) == []


def test_a_mutated_partial_result_has_the_right_hash(tmp_path: Path) -> None:
    PartialOpener().write_seed(tmp_path)
    content = (tmp_path / "0.partial").read_bytes()
    load_partial(tmp_path / "0.partial")
    dice = random.Random(5)
    mutated = [mutate_file("0.partial", content, dice, lambda raw: mutate_bytes(raw, dice)) for _ in range(50)]
    inner = content[len(MAGIC) + DIGEST_BYTES :]
    reached = [other for other in mutated if other.startswith(MAGIC) and other[len(MAGIC) + DIGEST_BYTES :] != inner]
    decoded = 0
    for other in reached:
        try:
            decoded += bool(zlib.decompress(other[len(MAGIC) + DIGEST_BYTES :]))
        except zlib.error:
            continue
    assert decoded > 20


def test_json_values_are_changed_one_at_a_time() -> None:
    dice = random.Random(0)
    content = json.dumps({"a": [1, {"b": "c"}], "d": None}).encode()
    changed = {mutations.mutate_json(content, dice, lambda raw: raw + b"?") for _ in range(200)}
    assert len(changed) > 100
