"""A survey goes on where it stopped, ends whatever is in its corpus, and takes no more memory for a larger one."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from attnscope.cli.main import main
from attnscope.errors import CheckpointError, SettingError
from attnscope.folder_lock import lock_folder
from attnscope.models.checkpoint import folder_checksums
from attnscope.stores import retries
from attnscope.survey import Workers, open_survey, run, run_survey
from attnscope.survey.corpus.names import unescape_name
from attnscope.survey.execution.progress import SurveyProgress
from tests.survey.survey_process import (
    OPTIONS,
    SMALL,
    WORDS,
    Command,
    contents,
    count_partials,
    write_model,
    write_text,
)

ALONE = Workers(threads=1)
MAX_GROWTH = 1.10  # of peak memory, for a corpus ten times as large
LONG = 200_000_000  # bytes of one line


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model")


class Stop(Exception):  # noqa: N818 - nothing went wrong
    """Somebody has had enough."""


def stop_after(shards: int):
    """A listener that ends a survey in the midst of things."""

    def listen(pace: SurveyProgress) -> None:
        if pace.shards_read == shards:
            raise Stop

    return listen


def test_a_survey_that_stopped_goes_on_and_ends_with_the_same_bytes(model: Path, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 10_000)
    whole = run_survey(model, text, tmp_path / "whole", workers=ALONE, **SMALL)
    for expected in (2, 3):
        with pytest.raises(Stop):
            run_survey(model, text, tmp_path / "out", workers=ALONE, progress=stop_after(expected - 1), **SMALL)
        assert 0 < count_partials(tmp_path / "out") <= expected
        assert not (tmp_path / "out" / "manifest.json").exists()
    paces = list[SurveyProgress]()
    survey = run_survey(model, text, tmp_path / "out", workers=ALONE, progress=paces.append, **SMALL)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert survey.manifest == whole.manifest
    assert paces[-1].shards_read < paces[-1].shards == paces[-1].shards_done == 5
    log = json.loads((tmp_path / "out" / "log.json").read_text())["runs"]
    assert len(log) == 3
    assert sum(run["shards"] for run in log) == 5


@pytest.mark.parametrize("files", [1, 3, 6, 8])
def test_a_survey_that_stopped_between_merges_goes_on_and_ends_with_the_same_bytes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    monkeypatch.setattr(run, "GROUP_SIZE", 2)
    text, paces = write_text(tmp_path / "text.txt", 10_000), list[SurveyProgress]()
    run_survey(model, text, tmp_path / "whole", workers=ALONE, progress=paces.append, **SMALL)
    groups = ["00000000-00000001.partial", "00000000-00000003.partial", "00000002-00000003.partial"]
    assert sorted(path.name for path in (tmp_path / "whole" / "partials").glob("*-*")) == groups
    assert (paces[-1].merged, paces[-1].to_merge) == (8, 8)  # two in each group, and in the end the last two

    def stop(progress: SurveyProgress) -> None:
        if progress.merged == files:
            raise Stop

    with pytest.raises(Stop):
        run_survey(model, text, tmp_path / "out", workers=ALONE, progress=stop, **SMALL)
    assert not (tmp_path / "out" / "manifest.json").exists()
    run_survey(model, text, tmp_path / "out", workers=ALONE, progress=paces.append, **SMALL)
    assert paces[-1].shards_read == 0
    assert paces[-1].to_merge == 8 - 2 * min(3, (files - 1) // 2)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_folder_without_groups_is_opened_and_its_damaged_tables_are_written_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, out = write_text(tmp_path / "text.txt", 10_000), tmp_path / "out"
    first = run_survey(model, text, out, workers=ALONE, **SMALL)  # as before there were groups
    before = contents(out)
    monkeypatch.setattr(run, "GROUP_SIZE", 2)
    assert run_survey(model, text, out, workers=ALONE, **SMALL).manifest == first.manifest
    assert contents(out) == before
    (out / "heads.parquet").unlink()
    again = run_survey(model, text, out, workers=ALONE, **SMALL)
    assert again.manifest["corpus"] == first.manifest["corpus"]
    after = contents(out)
    changed = {name for name, content in before.items() if after[name] != content}
    assert changed <= {"heads.parquet", "manifest.json"}  # sums are rounded in another order


def test_a_finished_survey_is_opened_and_not_read_again(model: Path, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 3000)
    first = run_survey(model, text, tmp_path / "out", workers=ALONE, **SMALL)
    for part in (tmp_path / "out" / "partials").iterdir():
        part.unlink()
    again = run_survey(
        model, text, tmp_path / "out", workers=ALONE, progress=lambda _: pytest.fail("it is read"), **SMALL
    )
    assert again.manifest == first.manifest


def test_other_parameters_under_the_same_name_are_another_survey(tmp_path: Path) -> None:
    text, place = write_text(tmp_path / "text.txt", 3000), tmp_path / "model"
    run_survey(write_model(place), text, tmp_path / "out", workers=ALONE, **SMALL)
    weights = bytearray((place / "model.safetensors").read_bytes())
    weights[-1] ^= 1  # a sign, or the last bit of a number
    (place / "model.safetensors").write_bytes(weights)
    (place / folder_checksums.FILE).unlink()
    with pytest.raises(CheckpointError, match="other parameters"):
        run_survey(place, text, tmp_path / "out", workers=ALONE, **SMALL)


def test_a_damaged_part_is_named(model: Path, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 6000)
    with pytest.raises(Stop):
        run_survey(model, text, tmp_path / "out", workers=ALONE, progress=stop_after(1), **SMALL)
    part = tmp_path / "out" / "partials" / "00000000.partial"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"00000000\.partial is damaged.*delete it and run the survey again"):
        run_survey(model, text, tmp_path / "out", workers=ALONE, **SMALL)
    part.unlink()
    run_survey(model, text, tmp_path / "out", workers=ALONE, **SMALL)
    run_survey(model, text, tmp_path / "whole", workers=ALONE, **SMALL)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["heads.parquet", "histograms.parquet", "examples.parquet", "passages.parquet"])
def test_damaged_tables_are_written_again_from_the_partial_results(model: Path, tmp_path: Path, name: str) -> None:
    text, out = write_text(tmp_path / "text.txt", 3000), tmp_path / "out"
    run_survey(model, text, out, workers=ALONE, **SMALL)
    before = contents(out)
    for damaged in ({name: flipped(before[name])}, {"manifest.json": flipped(before["manifest.json"])}):
        for file, content in damaged.items():
            (out / file).write_bytes(content)
        with pytest.raises(CheckpointError, match="run the same survey command again"):
            open_survey(out)
        paces = list[SurveyProgress]()
        run_survey(model, text, out, workers=ALONE, progress=paces.append, **SMALL)
        assert contents(out) == before
        assert paces[-1].shards_read == 0
    (out / name).unlink()
    run_survey(model, text, out, workers=ALONE, **SMALL)
    assert contents(out) == before


def flipped(content: bytes) -> bytes:
    """The content with one other bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_only_one_process_at_a_time_writes_to_a_folder(model: Path, tmp_path: Path) -> None:
    text, out, begun = write_text(tmp_path / "text.txt", 6000), tmp_path / "out", list[Path]()

    def run_again() -> None:
        begun.append(out)
        with pytest.raises(SettingError, match=rf"out is in use by process {os.getpid()} on .*another folder"):
            run_survey(model, text, out, workers=ALONE, progress=lambda _: pytest.fail("it reads"), **SMALL)

    run_survey(model, text, out, workers=ALONE, progress=act_after(1, run_again), **SMALL)
    assert begun
    run_survey(model, text, tmp_path / "whole", workers=ALONE, **SMALL)
    assert contents(out) == contents(tmp_path / "whole")
    (out / "manifest.json").unlink()
    run_survey(model, text, out, workers=ALONE, **SMALL)  # the lock is free


def test_a_finished_survey_is_opened_without_its_lock(model: Path, tmp_path: Path) -> None:
    text, out = write_text(tmp_path / "text.txt", 3000), tmp_path / "out"
    run_survey(model, text, out, workers=ALONE, **SMALL)
    with lock_folder(out, print):
        run_survey(model, text, out, workers=ALONE, **SMALL)


def write_files(folder: Path, count: int) -> Path:
    """A corpus of files that are a shard each."""
    folder.mkdir()
    for number in range(count):
        write_text(folder / f"{number}.txt", SMALL["shard_bytes"], seed=number)
    return folder


def act_after(shards: int, action: Callable[[], object]) -> Callable[[SurveyProgress], None]:
    """A listener that does something once, after so many shards."""
    waiting = [action]

    def listen(progress: SurveyProgress) -> None:
        if progress.shards_read == shards and waiting:
            waiting.pop()()

    return listen


def test_a_corpus_that_goes_away_ends_the_survey_and_the_same_command_resumes_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = list[float]()
    monkeypatch.setattr(retries.time, "sleep", delays.append)
    corpus, out, hidden = write_files(tmp_path / "corpus", 5), tmp_path / "out", tmp_path / "hidden"
    run_survey(model, corpus, tmp_path / "whole", workers=ALONE, **SMALL)
    hide = act_after(2, lambda: corpus.rename(hidden))
    message = r"could not read shard 2, .*2\.txt cannot be read: No such file or directory; fix this, .* resume"
    with pytest.raises(SettingError, match=message) as caught:
        run_survey(model, corpus, out, workers=ALONE, progress=hide, **SMALL)
    assert f"the machine {platform.node()} " in str(caught.value)
    assert tuple(delays) == retries.RETRY_DELAYS
    assert sorted(path.name for path in (out / "partials").iterdir()) == ["00000000.partial", "00000001.partial"]
    assert not (out / "manifest.json").exists()
    hidden.rename(corpus)
    run_survey(model, corpus, out, workers=ALONE, **SMALL)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_corpus_that_is_back_in_time_changes_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, hidden = write_files(tmp_path / "corpus", 4), tmp_path / "hidden"
    run_survey(model, corpus, tmp_path / "whole", workers=ALONE, **SMALL)
    monkeypatch.setattr(retries.time, "sleep", lambda _: hidden.rename(corpus))
    hide = act_after(2, lambda: corpus.rename(hidden))
    survey = run_survey(model, corpus, tmp_path / "out", workers=ALONE, progress=hide, **SMALL)
    assert survey.manifest["problems"]["count"] == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_file_that_is_rewritten_under_a_survey_ends_it(model: Path, tmp_path: Path) -> None:
    corpus, out = write_files(tmp_path / "corpus", 4), tmp_path / "out"
    last = corpus / "3.txt"
    before, stamp = last.read_text(), last.stat().st_mtime_ns

    def rewrite() -> None:
        last.write_text(before[::-1])
        os.utime(last, ns=(stamp + 10**9, stamp + 10**9))

    with pytest.raises(CheckpointError, match=r"3\.txt has changed while the survey ran"):
        run_survey(model, corpus, out, workers=ALONE, progress=act_after(1, rewrite), **SMALL)
    assert count_partials(out) == 3
    with pytest.raises(CheckpointError, match="its files have changed since"):
        run_survey(model, corpus, out, workers=ALONE, **SMALL)
    last.write_text(before)
    os.utime(last, ns=(stamp, stamp))
    survey = run_survey(model, corpus, out, workers=ALONE, **SMALL)
    assert [entry["file"] for entry in survey.manifest["files"]] == [str(corpus / f"{at}.txt") for at in range(4)]
    assert survey.manifest["files"][3]["version"].startswith(f"{last.stat().st_size} ")


def test_any_file_name_is_read_and_comes_back_from_the_tables(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, out = write_files(tmp_path / "corpus", 1), tmp_path / os.fsdecode(b"s\xe9rie")
    names = {b"caf\xe9.txt", b"a::b.txt", b"back\\slash.txt", b"line\nbreak.txt"}
    for number, name in enumerate(names, start=1):
        write_text(corpus / os.fsdecode(name), SMALL["shard_bytes"], seed=number)
    (corpus / os.fsdecode(b"empty\xff.txt")).touch()
    assert main(["survey", "run", str(model), str(corpus), *OPTIONS, "--out", str(out)]) == 0
    assert "5 documents, 1 problem, in " in capsys.readouterr().out
    survey = open_survey(out)
    with (out / "passages.parquet").open("rb") as table:
        files = pyarrow.parquet.read_table(table, columns=["file"]).column(0).to_pylist()
    assert {os.path.basename(os.fsencode(unescape_name(file))) for file in files} == {b"0.txt", *names}
    assert survey.manifest["problems"]["first"][0]["file"] == str(corpus / "empty\\xff.txt")
    assert main(["survey", "show", str(out), "--head", "0.0"]) == 0


def test_more_invalid_input_than_allowed_is_an_error_after_the_tables_are_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, out = write_files(tmp_path / "corpus", 2), tmp_path / "out"
    size = sum(path.stat().st_size for path in corpus.iterdir())
    (corpus / "latin.txt").write_bytes(b"\xe9\n" * 300)
    command = ["survey", "run", str(model), str(corpus), *OPTIONS, "--out", str(out)]
    assert main(command) == 2
    printed = capsys.readouterr().err
    assert f"survey: {600 / (size + 600):.1%} of the corpus was skipped, but max_skipped is 5.0%" in printed
    problems = open_survey(out).manifest["problems"]
    assert (problems["skipped_bytes"], problems["exceeds_max_skipped"]) == (600, True)
    assert problems["skipped_share"] == 600 / (size + 600)
    before = contents(out)
    assert main(command) == 2
    assert main([*command, "--max-skipped", "0.2"]) == 0
    with pytest.raises(SettingError, match="of the corpus was skipped"):
        run_survey(model, corpus, out, workers=ALONE, **SMALL)
    assert contents(out) == before
    run_survey(model, corpus, tmp_path / "allowed", workers=ALONE, max_skipped=0.2, **SMALL)
    assert not open_survey(tmp_path / "allowed").manifest["problems"]["exceeds_max_skipped"]


def write_broken(folder: Path) -> Path:
    """A corpus in which much is wrong, and some is not."""
    folder.mkdir()
    write_text(folder / "good.txt", 2000)
    (folder / "empty.txt").touch()
    (folder / "latin.txt").write_bytes(b"a rose is a rose\nnobody sees \xe9 it.\nlight, and garden\n")
    with (folder / "long.jsonl").open("w", encoding="utf-8") as file:
        file.write('{"text": "rose is a rose"}\n{"text": "')
        for _ in range(LONG // 1_000_000):
            file.write("rose " * 200_000)
        file.write('"}\n{"text": "nobody sees it."}\n{"text": 3}\n{"tex\n')
    table = pyarrow.table({"text": [" ".join(WORDS)] * 50})
    pyarrow.parquet.write_table(table, folder / "good.parquet")
    whole = (folder / "good.parquet").read_bytes()
    (folder / "truncated.parquet").write_bytes(whole[: len(whole) // 2])
    return folder


def test_what_is_broken_is_listed_and_the_rest_is_read(model: Path, tmp_path: Path) -> None:
    corpus = write_broken(tmp_path / "corpus")
    command = (model, corpus, "--max-length", "64", "--shard-bytes", "4000000", "--threads", "1", "--max-skipped", "1")
    with Command(*command, out=tmp_path / "out") as run:
        printed = run.succeeded()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    problems = manifest["problems"]["first"]
    assert sorted(Path(problem["file"]).name for problem in problems) == [
        "empty.txt", "latin.txt", "long.jsonl", "long.jsonl", "long.jsonl", "truncated.parquet",
    ]  # fmt: skip
    assert manifest["problems"]["count"] == 6
    assert 0.99 < manifest["problems"]["skipped_share"] < 1
    assert manifest["problems"]["exceeds_max_skipped"] is False
    assert next(problem["location"] for problem in problems if problem["file"].endswith("latin.txt")) == "byte 29"
    assert f"6 problems, in {tmp_path / 'out'}" in printed
    # A text; one before and after what is no text; two lines of JSON; rows of Parquet.
    assert manifest["corpus"]["documents"] == 1 + 2 + 2 + 50


def peaks_of(run: Command) -> dict[str, int]:
    """The highest memory of the driver and of the workers, in bytes, as it is when the command ends."""
    found: dict[str, int] = {}

    def look() -> bool:
        for kind, pids in (("driver", [run.process.pid]), ("worker", run.actors())):
            found[kind] = max([found.get(kind, 0), *map(peak_of, pids)])
        return run.process.poll() is not None

    while not look():
        time.sleep(0.005)  # the system keeps the highest value, so that a look now and then is enough
    assert run.process.returncode == 0, run.printed()
    return found


def peak_of(pid: int) -> int:
    """What a process has held at most; 0 once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_corpus_ten_times_as_large_takes_no_more_memory(workers: int, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", num_layers=1, num_heads=2)
    peaks = list[dict[str, int]]()
    for times in (1, 10):
        text = write_text(tmp_path / f"{times}.txt", times * 30_000)
        options = ("--batch-tokens", "4096", "--shard-bytes", "6000", "--threads", "1", "--workers", str(workers))
        with Command(model, text, *options, out=tmp_path / f"out-{times}") as run:
            peaks.append(peaks_of(run))
    assert all(peaks[1][kind] <= MAX_GROWTH * peaks[0][kind] for kind in peaks[0]), peaks
