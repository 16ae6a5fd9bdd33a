"""Actors of Ray write the bytes that one process writes, quietly, and hardly slower than plain processes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.errors import AttnScopeError
from attnscope.models import load_tokenizer
from attnscope.survey import Settings, Workers, open_survey, run_survey
from attnscope.survey.corpus.plan import plan_shards
from attnscope.survey.execution import ray_cluster
from attnscope.survey.execution.ray_actors import MAX_ATTEMPTS, run_on_ray
from attnscope.survey.execution.ray_cluster import connect_to_ray
from attnscope.survey.execution.workers import WorkReport
from attnscope.survey.folder import PARTIALS, SurveyFolder
from benchmarks.survey_workers import plain_speed, ray_speed
from tests.survey.survey_process import (
    MINILM,
    OPTIONS,
    SHARED,
    SMALL,
    SMOLLM2,
    Command,
    contents,
    descendants,
    listening_addresses,
    write_model,
    write_text,
)

TOKENS = 20_000  # of each of two texts; each is read twice, at about 200 tokens a second and thread
MIN_SHARE = 0.85  # of the speed of plain processes
ROUNDS = 3  # each side needs a calm spell of the machine

FINISHED = {
    "survey.json", "heads.parquet", "histograms.parquet", "examples.parquet", "passages.parquet", "manifest.json",
}  # fmt: skip


@pytest.mark.alone
def test_actors_write_the_bytes_of_one_process_and_raise_what_they_refuse_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one cluster, since a start of Ray takes longer than what is done in it."""
    ray, workers, steps = pytest.importorskip("ray"), Workers(count=2, threads=1), list[WorkReport]()
    model, text = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", 20_000)
    folder, too_long = (
        SurveyFolder(tmp_path / "refused"),
        Settings(model=str(MINILM), sources=(str(text),), max_length=600),
    )
    (folder.path / PARTIALS).mkdir(parents=True)
    monkeypatch.setattr(ray_cluster, "REPORT_SECONDS", 3600.0)  # nothing is printed, however slow the machine is
    before = listening_addresses([os.getpid()])
    with connect_to_ray(workers):
        run_survey(model, text, tmp_path / "two", workers=workers, **SMALL)
        with pytest.raises(AttnScopeError, match="at most 512 tokens") as caught:
            run_on_ray(plan_shards(too_long).shards, too_long, folder, Workers(threads=1), steps.append)
        assert len(str(caught.value).splitlines()) == 1
        with pytest.raises(AttnScopeError, match="4 workers need 1 CPU each, but Ray has 3 CPU"):
            run_on_ray(plan_shards(too_long).shards, too_long, folder, Workers(count=4, threads=1), steps.append)
        assert steps == []
        processes = [os.getpid(), *descendants(os.getpid())]
        assert len(processes) > 4
        assert listening_addresses(processes) - before <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        assert ray.is_initialized()  # a cluster that was there before is not for a run to end
    assert capfd.readouterr() == ("", "")
    run_survey(model, text, tmp_path / "one", workers=Workers(threads=1), **SMALL)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert set(contents(tmp_path / "one")) == FINISHED | {f"partials/{number:08}.partial" for number in range(10)}


@pytest.mark.slow
@pytest.mark.alone
def test_the_command_with_two_actors_prints_its_progress_and_nothing_of_ray(tmp_path: Path) -> None:
    model, text = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", 20_000)
    with Command(model, text, *OPTIONS, "--workers", "2", out=tmp_path / "two") as run:
        on_report = run.succeeded()
    lines = on_report.splitlines()
    assert lines[0] == "10 shards to read, about 5,000 tokens; the corpus has 20.0 kB"
    assert lines[-1].endswith(f"passages of 10 documents, 0 problems, in {tmp_path / 'two'}")
    slow = [line for line in lines[1:-1] if not line.startswith("waiting to start Ray for ")]
    assert all("shard" in line and "tokens/s" in line for line in slow)  # lines of progress


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(not SHARED.exists(), reason="the texts of ../shared are not here")
def test_smollm2_reads_prose_and_plays_alike_on_ray_and_alone(tmp_path: Path) -> None:
    texts = []
    for name in ("wikitext2-valid.txt", "tinyshakespeare.txt"):
        tokenizer = load_tokenizer(SMOLLM2)
        start = (SHARED / name).read_text(encoding="utf-8")[: 5 * TOKENS]
        texts.append(tmp_path / name)
        texts[-1].write_text(
            tokenizer.decode(tokenizer.encode(start, add_special_tokens=False)[:TOKENS]), encoding="utf-8"
        )
    sizes = ("--shard-bytes", "4096", "--max-length", "128", "--batch-tokens", "1024")
    options = (SMOLLM2, *texts, *sizes, "--threads", "1")
    with Command(*options, "--workers", "2", out=tmp_path / "two") as two:
        two.reached(two.actors)  # Ray wants cores to itself while it starts
        with Command(*options, out=tmp_path / "one") as one:  # at the same time, since neither is timed
            two.succeeded()
            one.succeeded()
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    survey = open_survey(tmp_path / "one")
    assert 2 * TOKENS * 0.98 < survey.manifest["corpus"]["tokens"] < 2 * TOKENS * 1.02
    assert len(survey.heads) == 30 * 9


def test_a_shard_that_kills_its_workers_is_not_begun_for_ever(tmp_path: Path) -> None:
    model, text = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", 1000)
    settings = Settings(model=str(model), sources=(str(text),))
    (shard,), folder = plan_shards(settings).shards, SurveyFolder(tmp_path / "out")
    (folder.path / PARTIALS).mkdir(parents=True)
    command = f"""
from pathlib import Path
from attnscope.survey import Settings, Workers
from attnscope.survey.execution import ray_cluster
from attnscope.survey.execution.ray_actors import SurveyActor
actor = SurveyActor({settings!r}, {str(folder.path)!r}, Workers(threads=1), "now")
attempts = Path({str(folder.attempts_path(shard.number, "now"))!r})
part = Path({str(folder.partial_path(shard.number))!r})
for before in ({MAX_ATTEMPTS - 1}, {MAX_ATTEMPTS}):
    attempts.write_bytes(b"." * before)  # as workers leave it that die
    print(actor({{"shard": {json.dumps(shard)!r}}})["error"])
    print([path.name for path in part.parent.iterdir()])
    part.unlink(missing_ok=True)
"""
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=300)
    accepted, written, refused, left = ran.stdout.splitlines()
    assert (accepted, written) == ("", "['00000000.partial']")
    assert f"{MAX_ATTEMPTS} workers died while reading shard 0, which starts in {text}; if memory" in refused
    assert "'00000000.partial'" not in left


def test_an_actor_that_does_not_see_the_corpus_names_its_machine_and_writes_nothing(tmp_path: Path) -> None:
    model, text = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", 1000)
    settings = Settings(model=str(model), sources=(str(text),))
    (shard,), folder = plan_shards(settings).shards, SurveyFolder(tmp_path / "out")
    (folder.path / PARTIALS).mkdir(parents=True)
    text.unlink()
    command = f"""
from attnscope.survey import Settings, Workers
from attnscope.survey.corpus import retries
from attnscope.survey.execution.ray_actors import SurveyActor
retries.RETRY_DELAYS = (0.0,)
actor = SurveyActor({settings!r}, {str(folder.path)!r}, Workers(threads=1), "now")
for _ in range(2):
    print(actor({{"shard": {json.dumps(shard)!r}}})["error"])
"""
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=300)
    first, second = ran.stdout.splitlines()
    assert first == second
    assert first.startswith(f"survey: the machine {platform.node()} could not read shard 0, or save its partial result")
    assert f"{text} cannot be read: No such file or directory" in first
    assert not list((folder.path / PARTIALS).glob("*.partial"))


@pytest.mark.timed
def test_ray_reads_hardly_slower_than_plain_processes(tmp_path: Path) -> None:
    """SmolLM2 in two workers with a thread each, the same shards on both sides, from the first parts to the last."""
    text = write_text(tmp_path / "text.txt", 40_000)
    settings = Settings(model=str(SMOLLM2), sources=(str(text),), max_length=256, batch_tokens=512, shard_bytes=2500)
    best = {plain_speed: 0.0, ray_speed: 0.0}
    for turn in range(ROUNDS):
        for measure in best:
            speed = measure(settings, tmp_path / f"{measure.__name__}-{turn}", 2)
            best[measure] = max(best[measure], speed.tokens_per_second)
        if best[ray_speed] >= MIN_SHARE * best[plain_speed]:
            break
    assert best[ray_speed] >= MIN_SHARE * best[plain_speed], best
    first = [path.read_bytes() for path in sorted((tmp_path / "plain_speed-0" / PARTIALS).iterdir())]
    assert first == [path.read_bytes() for path in sorted((tmp_path / "ray_speed-0" / PARTIALS).iterdir())]
