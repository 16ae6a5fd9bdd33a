"""An actor reads a shard or answers with an error, and says whether another machine may not have it."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from attnscope.errors import CheckpointError
from attnscope.survey import Settings, Workers
from attnscope.survey.corpus.plan import plan_shards
from attnscope.survey.execution.merge_tree import Group
from attnscope.survey.execution.ray_actors import MAX_ATTEMPTS, SurveyActor, answer
from attnscope.survey.execution.workers import AccessSettingError
from attnscope.survey.folder import PARTIALS, SurveyFolder
from attnscope.survey.partials.partial_files import save_partial
from tests.survey.random_shards import shard_of
from tests.survey.survey_process import write_model, write_text


def test_only_errors_that_another_machine_may_not_have_are_of_the_machine() -> None:
    def fail(error: Exception) -> None:
        raise error

    assert answer(lambda: 7).value == 7
    assert not answer(lambda: fail(CheckpointError("a.txt has changed"))).is_of_machine
    assert answer(lambda: fail(AccessSettingError("no such file"))) == (None, "no such file", True)
    found = answer(lambda: fail(RuntimeError("CUDA error: uncorrectable ECC error\nand a page more")))
    assert found.is_of_machine
    assert (
        found.error
        == f"survey: the machine {platform.node()} failed: RuntimeError: CUDA error: uncorrectable ECC error"
    )


def test_a_model_that_cannot_be_loaded_is_an_error_of_the_machine(tmp_path: Path) -> None:
    settings = Settings(model=str(tmp_path / "nowhere"), sources=("text.txt",))
    command = f"""
from attnscope.survey import Settings, Workers
from attnscope.survey.execution.ray_actors import SurveyActor
found = SurveyActor({settings!r}, Workers(threads=1), "now").load()
print(found.is_of_machine, found.error)
"""
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout.startswith("True ")
    assert str(tmp_path / "nowhere") in ran.stdout


def test_a_shard_that_kills_its_workers_is_not_begun_for_ever(tmp_path: Path) -> None:
    model, text = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", 1000)
    settings = Settings(model=str(model), sources=(str(text),))
    (shard,), folder = plan_shards(settings).shards, SurveyFolder(tmp_path / "out")
    (folder.path / PARTIALS).mkdir(parents=True)
    command = f"""
from pathlib import Path
from attnscope.survey import Settings, Workers
from attnscope.survey.corpus.plan import plan_shards
from attnscope.survey.execution.ray_actors import SurveyActor
actor = SurveyActor({settings!r}, Workers(threads=1), "now")
assert not actor.load().error
shard = plan_shards({settings!r}).shards[0]
attempts = Path({str(folder.attempts_path(folder.partial_path(shard.number), "now"))!r})
part = Path({str(folder.partial_path(shard.number))!r})
for before in ({MAX_ATTEMPTS - 1}, {MAX_ATTEMPTS}):
    attempts.write_bytes(b"." * before)  # as workers leave it that die
    print(actor.read(shard, Path({str(folder.path)!r})).error)
    print([path.name for path in part.parent.iterdir()])
    part.unlink(missing_ok=True)
"""
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=300)
    accepted, written, refused, left = ran.stdout.splitlines()
    assert (accepted, written) == ("", "['00000000.partial']")
    assert f"{MAX_ATTEMPTS} workers died while reading shard 0, which starts in {text}; if memory" in refused
    assert "'00000000.partial'" not in left


def test_a_group_that_kills_its_workers_is_not_merged_for_ever(tmp_path: Path) -> None:
    folder, group = SurveyFolder(tmp_path), Group(0, 3)
    (tmp_path / PARTIALS).mkdir()
    for number in range(3):
        save_partial(shard_of(number, 0), folder.partial_path(number))
    actor = SurveyActor(Settings(model="m", sources=("text.txt",)), Workers(threads=1), "now")
    path = folder.group_path(0, 3)
    attempts = Path(str(folder.attempts_path(path, "now")))
    attempts.write_bytes(b"." * MAX_ATTEMPTS)  # as workers leave it that die
    refused = actor.merge(group, tmp_path)
    assert f"{MAX_ATTEMPTS} workers died while merging {path}; if memory is short" in refused.error
    assert not refused.is_of_machine
    assert not path.exists()
    attempts.write_bytes(b"." * (MAX_ATTEMPTS - 1))
    assert actor.merge(group, tmp_path).value.merged == 3
    assert path.exists()
    assert not attempts.exists()


def test_an_actor_that_does_not_see_the_corpus_names_its_machine_and_writes_nothing(tmp_path: Path) -> None:
    model, text = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", 1000)
    settings = Settings(model=str(model), sources=(str(text),))
    folder = SurveyFolder(tmp_path / "out")
    (folder.path / PARTIALS).mkdir(parents=True)
    command = f"""
from pathlib import Path
from attnscope.survey import Settings, Workers
from attnscope.stores import retries
from attnscope.survey.corpus.plan import plan_shards
from attnscope.survey.execution.ray_actors import SurveyActor
retries.RETRY_DELAYS = (0.0,)
actor = SurveyActor({settings!r}, Workers(threads=1), "now")
assert not actor.load().error
shard = plan_shards({settings!r}).shards[0]
Path({str(text)!r}).unlink()
for _ in range(2):
    answer = actor.read(shard, Path({str(folder.path)!r}))
    assert answer.is_of_machine
    print(answer.error)
"""
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=300)
    first, second = ran.stdout.splitlines()
    assert first == second
    assert first.startswith(f"survey: the machine {platform.node()} could not read shard 0, or save its partial result")
    assert f"{text} cannot be read: No such file or directory" in first
    assert not list((folder.path / PARTIALS).glob("*.partial"))
