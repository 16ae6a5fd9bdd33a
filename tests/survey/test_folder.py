"""A folder belongs to one survey, tells what is missing, and touches nothing of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnscope.errors import AttnScopeError, CheckpointError, SettingError
from attnscope.models.checked_json import encode_checked_json, read_checked_json
from attnscope.survey.corpus import plan as plans
from attnscope.survey.corpus.plan import plan_shards
from attnscope.survey.folder import SurveyFolder, survey_identity
from attnscope.survey.settings import Settings
from tests.survey.survey_process import SMALL, write_text

ABOUT = {"name": "model", "hash": "sha256:1", "parameters": 3}


def settings_for(text: Path, **changes: object) -> Settings:
    return Settings(**{"model": "m", "sources": (str(text),), **SMALL, **changes})  # pyright: ignore[reportArgumentType]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt", 9000)


def claimed(path: Path, settings: Settings) -> SurveyFolder:
    folder = SurveyFolder(path)
    folder.claim(survey_identity(settings, plan_shards(settings), ABOUT))
    return folder


def test_shards_are_missing_until_their_parts_are_there(text: Path, tmp_path: Path) -> None:
    settings = settings_for(text)
    plan, folder = plan_shards(settings), claimed(tmp_path / "out", settings)
    assert folder.missing_shards(plan) == list(plan.shards)
    assert len(plan.shards) == 4
    for name in (
        folder.partial_path(2).name,
        folder.attempts_path(folder.partial_path(1), "run").name,
        ".00000001.part.77-abc.tmp",
    ):
        (tmp_path / "out" / "partials" / name).touch()  # the last ones as a killed worker leaves them
    assert [shard.number for shard in claimed(tmp_path / "out", settings).missing_shards(plan)] == [0, 1, 3]
    folder.remove_temporary_files()
    assert [path.name for path in (tmp_path / "out" / "partials").iterdir()] == ["00000002.partial"]


def test_a_folder_that_was_begun_with_another_default_size_of_shards_is_refused(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(text, shard_bytes=None)
    monkeypatch.setattr(plans, "MIN_SHARD_BYTES", 3000)
    monkeypatch.setattr(plans, "MAX_DEFAULT_SHARD_BYTES", 3000)
    claimed(tmp_path / "out", settings)
    claimed(tmp_path / "out", settings)
    monkeypatch.setattr(plans, "MIN_SHARD_BYTES", 2000)  # a release with another default
    with pytest.raises(CheckpointError, match="another corpus"):
        claimed(tmp_path / "out", settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 32}, "max_length = 64, got 32"),
        ({"separator": "=="}, "separator = None, got '=='"),
        ({"seed": 1}, "seed = 0, got 1"),
        ({"model": "other"}, "model = 'm', got 'other'"),
    ],
)
def test_another_survey_is_refused(text: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    claimed(tmp_path / "out", settings_for(text))
    with pytest.raises(CheckpointError, match=f"{message}.*another folder"):
        claimed(tmp_path / "out", settings_for(text, **changes))


def test_other_parameters_and_a_changed_corpus_are_refused(text: Path, tmp_path: Path) -> None:
    settings = settings_for(text)
    plan, folder = plan_shards(settings), claimed(tmp_path / "out", settings)
    with pytest.raises(CheckpointError, match="other parameters"):
        folder.claim(survey_identity(settings, plan, {**ABOUT, "hash": "sha256:2"}))
    write_text(text, 9100, seed=1)
    with pytest.raises(CheckpointError, match="another corpus"):
        claimed(tmp_path / "out", settings)


def test_what_is_of_nobody_is_neither_used_nor_touched(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "partials").mkdir(parents=True)
    (out / "partials" / "mine.txt").write_text("mine")
    with pytest.raises(SettingError, match=r"partials.*another folder"):
        claimed(out, settings_for(text))
    assert [path.name for path in out.rglob("*")] == ["partials", "mine.txt"]


def test_files_of_other_names_stay(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    claimed(out, settings_for(text)).remove_temporary_files()
    assert (out / "notes.txt").read_text() == "mine"


def test_a_place_that_is_no_folder_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"folder.* sftp://host/out"):
        SurveyFolder("sftp://host/out")
    with pytest.raises(SettingError, match=r"text\.txt/out: Not a directory"):
        claimed(text / "out", settings_for(text))


def test_every_run_is_logged(text: Path, tmp_path: Path) -> None:
    folder = claimed(tmp_path / "out", settings_for(text))
    folder.append_log({"tokens": 1})
    folder.append_log({"tokens": 2})
    log = read_checked_json(tmp_path / "out" / "log.json", advice="")
    assert log == {"runs": [{"tokens": 1}, {"tokens": 2}]}


def with_checksum(content: str) -> str:
    """The same JSON object with the checksum that fits; empty if there is no object."""
    try:
        return encode_checked_json(json.loads(content)).decode()
    except (ValueError, AttributeError, RecursionError):
        return ""


WRONG = (None, True, -1, 2**70, 1.5, "", "x" * 10_000, [], {}, {"runs": 3})


@pytest.mark.parametrize("name", ["survey.json", "log.json"])
def test_damaged_json_is_refused_or_the_same_and_always_in_one_line(text: Path, tmp_path: Path, name: str) -> None:
    settings = settings_for(text)
    plan, folder = plan_shards(settings), claimed(tmp_path / "out", settings)
    folder.append_log({"tokens": 1})
    path = tmp_path / "out" / name
    whole = path.read_text()
    found = json.loads(whole)
    contents = ["", whole[:-10], "{" * 100_000, whole.replace('"', '"\\ud800', 1), *map(json.dumps, WRONG)]
    for key in found:
        contents += [json.dumps({**found, key: value}) for value in WRONG]
        contents.append(json.dumps({other: value for other, value in found.items() if other != key}))
        contents.append(whole.replace(f'"{key}":', f'"{key}": 1, "{key}":', 1))
    contents += [corrected for content in contents if (corrected := with_checksum(content)) not in ("", whole)]
    messages = list[str]()
    for content in contents:
        path.write_text(content)
        try:
            folder.claim(survey_identity(settings, plan, ABOUT))
            folder.append_log({"tokens": 2})
        except AttnScopeError as error:
            messages.append(str(error))
    assert len(messages) > 0.8 * len(contents)
    assert all(len(message.splitlines()) == 1 and "Traceback" not in message for message in messages)
    assert all("delete it" in message for message in messages) or name == "survey.json"
    path.write_text(whole)
    folder.claim(survey_identity(settings, plan, ABOUT))


@pytest.mark.parametrize("name", ["survey.json", "log.json"])
def test_every_flipped_bit_of_json_is_found_or_changes_nothing(text: Path, tmp_path: Path, name: str) -> None:
    settings = settings_for(text)
    plan, folder = plan_shards(settings), claimed(tmp_path / "out", settings)
    folder.append_log({"tokens": 1})
    path = tmp_path / "out" / name
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            folder.claim(survey_identity(settings, plan, ABOUT))
            assert json.loads(bytes(damaged)) == json.loads(whole)
        except AttnScopeError:
            refused += 1
    assert refused > 0.9 * len(whole.split())
