"""A folder belongs to one survey, tells what is missing, and touches nothing of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnscope.errors import CheckpointError, SettingError
from attnscope.survey.corpus.plan import make_plan
from attnscope.survey.folder import Folder, identity_of
from attnscope.survey.settings import Settings
from tests.survey.surveying import SMALL, write_text

ABOUT = {"name": "model", "hash": "sha256:1", "parameters": 3}


def settings_for(text: Path, **changes: object) -> Settings:
    return Settings(**{"model": "m", "sources": (str(text),), **SMALL, **changes})  # pyright: ignore[reportArgumentType]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt", 9000)


def claimed(path: Path, settings: Settings) -> Folder:
    folder = Folder(path)
    folder.claim(identity_of(settings, make_plan(settings), ABOUT))
    return folder


def test_shards_are_missing_until_their_parts_are_there(text: Path, tmp_path: Path) -> None:
    settings = settings_for(text)
    plan, folder = make_plan(settings), claimed(tmp_path / "out", settings)
    assert folder.missing(plan) == list(plan.shards)
    assert len(plan.shards) == 4
    folder.part(2).touch()
    folder.tries(1, "run").touch()
    folder.part(1).with_name(".00000001.part.77-abc.tmp").touch()  # as a killed worker leaves it
    assert [shard.number for shard in claimed(tmp_path / "out", settings).missing(plan)] == [0, 1, 3]
    folder.sweep()
    assert [path.name for path in (tmp_path / "out" / "parts").iterdir()] == ["00000002.part"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 32}, "window = 64, and 32 was asked for"),
        ({"separator": "=="}, "separator = None, and '==' was asked for"),
        ({"seed": 1}, "seed = 0, and 1 was asked for"),
        ({"model": "other"}, "model = 'm', and 'other' was asked for"),
    ],
)
def test_another_survey_is_refused(text: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    claimed(tmp_path / "out", settings_for(text))
    with pytest.raises(CheckpointError, match=f"holds a survey with {message}; go on with the same"):
        claimed(tmp_path / "out", settings_for(text, **changes))


def test_other_weights_and_a_changed_corpus_are_refused(text: Path, tmp_path: Path) -> None:
    settings = settings_for(text)
    plan, folder = make_plan(settings), claimed(tmp_path / "out", settings)
    with pytest.raises(CheckpointError, match="holds a survey with other weights, or they have changed since"):
        folder.claim(identity_of(settings, plan, {**ABOUT, "hash": "sha256:2"}))
    write_text(text, 9100, seed=1)
    with pytest.raises(CheckpointError, match="holds a survey with another corpus, or it has changed since"):
        claimed(tmp_path / "out", settings)


def test_what_is_of_nobody_is_neither_used_nor_touched(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "parts").mkdir(parents=True)
    (out / "parts" / "mine.txt").write_text("mine")
    with pytest.raises(SettingError, match="holds parts, which are of no survey; choose another folder"):
        claimed(out, settings_for(text))
    assert [path.name for path in out.rglob("*")] == ["parts", "mine.txt"]


def test_files_of_other_names_stay(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    claimed(out, settings_for(text)).sweep()
    assert (out / "notes.txt").read_text() == "mine"


def test_a_place_that_is_no_folder_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is an address; a survey is written to a folder"):
        Folder("s3://bucket/out")
    with pytest.raises(SettingError, match=r"text\.txt/out cannot be used: Not a directory"):
        claimed(text / "out", settings_for(text))


def test_every_run_is_logged(text: Path, tmp_path: Path) -> None:
    folder = claimed(tmp_path / "out", settings_for(text))
    folder.log({"tokens": 1})
    folder.log({"tokens": 2})
    assert json.loads((tmp_path / "out" / "log.json").read_text()) == {"runs": [{"tokens": 1}, {"tokens": 2}]}
