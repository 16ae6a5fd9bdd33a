"""Workers on Ray write the bytes that one process writes, and go on where workers, nodes and machines fail.

Most tests have a simulated Ray, whose nodes and workers fail as they are told. Those with the marker `alone` start Ray.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnscope.errors import AttnScopeError
from attnscope.models import load_tokenizer
from attnscope.survey import Settings, Workers, open_survey, run, run_survey
from attnscope.survey.corpus.plan import Shard
from attnscope.survey.execution import ray_cluster, ray_pool
from attnscope.survey.execution.merge_tree import Group, missing_groups
from attnscope.survey.execution.ray_actors import MAX_ATTEMPTS, Answer
from attnscope.survey.execution.ray_cluster import connect_to_ray
from attnscope.survey.execution.ray_pool import RayPool
from attnscope.survey.execution.shard_queue import MAX_FAILURES
from attnscope.survey.execution.shard_reader import ShardReader
from attnscope.survey.execution.workers import WorkReport
from attnscope.survey.folder import PARTIALS, SurveyFolder
from benchmarks.survey_workers import plain_speed, ray_speed
from tests.survey.simulated_ray import FINGERPRINT, Cluster, Node
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


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    """Use simulated nodes instead of Ray."""

    def start(**nodes: Node) -> Cluster:
        cluster = Cluster(**nodes)
        monkeypatch.setattr(ray_pool, "import_extra", lambda _: cluster)
        monkeypatch.setattr(ray_pool, "connect_to_ray", lambda _: nullcontext())
        monkeypatch.setattr(ray_pool, "time", SimpleNamespace(monotonic=lambda: cluster.now, time_ns=lambda: 7))
        return cluster

    return start


def read_with(count: int, num_shards: int, **changes: Any) -> tuple[RayPool, list[WorkReport]]:
    """The pool at its end, and the reports about shards."""
    reports = list[WorkReport]()
    with RayPool(Settings(model="m", sources=("text.txt",)), Workers(count=count, threads=1, **changes)) as pool:
        assert pool.fingerprint() == FINGERPRINT
        shards = [Shard(number, ()) for number in range(num_shards)]
        pool.read(shards, SurveyFolder("out"), reports.append)
    assert sorted(report.shard for report in reports if report.shard is not None) == list(range(num_shards))
    return pool, reports


def test_a_cluster_without_nodes_is_waited_for_and_read_with_when_it_grows(
    simulate: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = simulate()
    cluster.at[35.0] = lambda: cluster.simulated.update(first=Node(cpus=1))
    cluster.at[50.0] = lambda: cluster.simulated.update(second=Node(cpus=2))
    _, reports = read_with(3, 60, address="auto")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "waiting for a worker to start for 10 seconds: each needs 1 CPU on one node, and all nodes together have 0 CPU"
    )
    assert len(lines) == 3
    assert (reports[0].workers, reports[-1].workers) == (1, 3)
    assert {node for node, _ in cluster.read} == {"first", "second"}


def test_a_cluster_that_does_not_grow_ends_the_survey_in_one_line(simulate: Callable[..., Cluster]) -> None:
    simulate(head=Node(cpus=0))
    with pytest.raises(AttnScopeError, match="no worker could be started in 100 seconds: each needs 1 CPU") as caught:
        read_with(1, 1, address="auto", start_timeout=100.0)
    assert len(str(caught.value).splitlines()) == 1


def test_fewer_workers_than_asked_for_read_all_shards(simulate: Callable[..., Cluster]) -> None:
    simulate(a=Node(cpus=2))
    _, reports = read_with(64, 10)
    assert reports[-1].workers == 2


@pytest.mark.parametrize("kind", ["load", "read"])
def test_a_node_that_fails_fast_is_excluded_and_the_others_read_all(
    simulate: Callable[..., Cluster], kind: str
) -> None:
    bad = Node(read_error="disk") if kind == "read" else Node(load=Answer(error="disk", is_of_machine=True))
    cluster = simulate(bad=bad, good=Node(cpus=1))
    pool, _ = read_with(2, 12)
    assert pool.excluded_machines == {"machine of bad": "disk"}
    assert {node for node, _ in cluster.read} == {"good"}
    assert len([handle for handle in cluster.handles if "bad" in handle.excluded]) >= 1


@pytest.mark.parametrize("kind", ["load", "read"])
def test_if_all_nodes_fail_the_survey_ends_with_the_error(simulate: Callable[..., Cluster], kind: str) -> None:
    error = Answer(error="disk", is_of_machine=True)
    nodes = [Node(read_error="disk") if kind == "read" else Node(load=error) for _ in range(2)]
    for some in (nodes[:1], nodes):
        simulate(**{f"n{number}": node for number, node in enumerate(some)})
        with pytest.raises(AttnScopeError, match="disk"):
            read_with(2, 4)


def test_a_model_that_three_nodes_cannot_load_is_not_tried_on_a_thousand(simulate: Callable[..., Cluster]) -> None:
    error = Answer(error="has no tokenizer", is_of_machine=True)
    cluster = simulate(**{f"n{number}": Node(cpus=1, load=error) for number in range(1000)})
    with pytest.raises(AttnScopeError, match="has no tokenizer"):
        read_with(1, 4)
    assert len(cluster.handles) == MAX_FAILURES


def test_an_error_that_is_not_of_the_machine_ends_the_survey_at_once(simulate: Callable[..., Cluster]) -> None:
    cluster = simulate(a=Node(load=Answer(error="has changed")), b=Node())
    with pytest.raises(AttnScopeError, match="has changed"):
        read_with(1, 4)
    assert len(cluster.handles) == 1


def test_workers_that_die_are_replaced(simulate: Callable[..., Cluster]) -> None:
    cluster = simulate(a=Node(kills=1))
    cluster.at[3.0] = lambda: setattr(cluster.simulated["a"], "kills", 3)
    read_with(2, 20)
    assert len(cluster.handles) == 2 + 4


def test_a_node_that_is_lost_is_replaced_by_another_one(simulate: Callable[..., Cluster]) -> None:
    cluster = simulate(a=Node())

    def preempt() -> None:
        del cluster.simulated["a"]

    cluster.at[3.0] = preempt
    cluster.at[30.0] = lambda: cluster.simulated.update(b=Node())
    pool, _ = read_with(2, 20)
    assert {node for node, _ in cluster.read} == {"a", "b"}
    assert pool.excluded_machines == {}


def test_workers_that_always_die_while_they_load_end_the_survey(simulate: Callable[..., Cluster]) -> None:
    cluster = simulate(a=Node(kills=10**6))
    with pytest.raises(AttnScopeError, match=f"{MAX_ATTEMPTS} workers died before they had loaded the model"):
        read_with(2, 4)
    assert len(cluster.handles) == MAX_ATTEMPTS


def test_a_straggler_is_read_by_another_worker_and_counted_once(simulate: Callable[..., Cluster]) -> None:
    cluster = simulate(slow=Node(cpus=1, seconds=1000.0), fast=Node(cpus=1))
    read_with(2, 4)
    assert cluster.now < 100.0
    assert cluster.read == [("fast", number) for number in (1, 2, 3, 0)]


def test_groups_are_merged_level_by_level_by_all_workers_although_some_are_lost_or_read_a_copy(
    simulate: Callable[..., Cluster], tmp_path: Path
) -> None:
    (tmp_path / PARTIALS).mkdir()
    levels, reports = missing_groups(Group(0, 27, 3), SurveyFolder(tmp_path)), list[WorkReport]()
    assert [len(level) for level in levels] == [9, 3]
    cluster = simulate(slow=Node(cpus=1, seconds=1000.0), a=Node(cpus=1), b=Node(cpus=1))
    cluster.at[10.0] = lambda: setattr(cluster.simulated["a"], "kills", 2)
    with RayPool(Settings(model="m", sources=("text.txt",)), Workers(count=3, threads=1)) as pool:
        pool.fingerprint()
        pool.read([Shard(number, ()) for number in range(27)], SurveyFolder("out"), lambda _: None)
        assert any(handle.node == "slow" for handle in cluster.handles)  # it still reads, and will be told nothing
        pool.merge(levels, SurveyFolder("out"), reports.append)
    assert cluster.now < 1000.0
    assert sorted(group for _, group in cluster.merged) == sorted(group for level in levels for group in level)
    assert {group for _, group in cluster.merged[:9]} == set(levels[0])  # before any group that needs them
    assert {node for node, _ in cluster.merged} == {"a", "b"}
    assert [report.merged for report in reports] == [3] * 12


def test_machines_with_different_parameters_are_refused(simulate: Callable[..., Cluster]) -> None:
    simulate(a=Node(cpus=1), b=Node(cpus=1, load=Answer(FINGERPRINT | {"hash": "sha256:2"})))
    with pytest.raises(AttnScopeError, match="on the machine machine of b has other parameters"):
        read_with(2, 4)


@pytest.mark.alone
def test_actors_write_the_bytes_of_one_process_and_raise_what_they_refuse_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one cluster, since a start of Ray takes longer than what is done in it."""
    ray, workers = pytest.importorskip("ray"), Workers(count=2, threads=1)
    model, text = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", 20_000)
    too_long = Settings(model=str(MINILM), sources=(str(text),), max_length=600)
    monkeypatch.setattr(run, "GROUP_SIZE", 3)
    monkeypatch.setattr(ray_cluster, "REPORT_SECONDS", 3600.0)  # nothing is printed, however slow the machine is
    before = listening_addresses([os.getpid()])
    with connect_to_ray(workers):
        with monkeypatch.context() as driver:  # in this process, the model is never loaded
            driver.setattr(ShardReader, "load", lambda *_: pytest.fail("the driver loads the model"))
            run_survey(model, text, tmp_path / "two", workers=workers, **SMALL)
        with (
            pytest.raises(AttnScopeError, match="at most 512 tokens") as caught,
            RayPool(too_long, Workers(threads=1, address="auto")) as pool,
        ):
            pool.fingerprint()
        assert len(str(caught.value).splitlines()) == 1
        too_few = Workers(threads=1, cpus=64, address="auto", start_timeout=1.0)
        with (
            pytest.raises(AttnScopeError, match=r"in 1 seconds: each needs 64 CPU on one node, .* have 3 CPU"),
            RayPool(too_long, too_few) as pool,
        ):
            pool.fingerprint()
        processes = [os.getpid(), *descendants(os.getpid())]
        assert len(processes) > 4
        listening = listening_addresses(processes)
        assert listening
        assert listening - before <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        assert ray.is_initialized()  # a cluster that was there before is not for a run to end
    assert capfd.readouterr() == ("", "")
    run_survey(model, text, tmp_path / "one", workers=Workers(threads=1), **SMALL)  # with the same survey.json
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    groups = ((0, 2), (3, 5), (6, 8), (0, 8))
    names = [*(f"{number:08}" for number in range(10)), *(f"{first:08}-{last:08}" for first, last in groups)]
    assert set(contents(tmp_path / "one")) == FINISHED | {f"partials/{name}.partial" for name in names}


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
    assert all(("shard" in line and "tokens/s" in line) or "merged" in line for line in slow)  # lines of progress


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
