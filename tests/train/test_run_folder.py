"""One run at a time writes to a folder, and others can read what it leaves."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from attnscope.errors import SettingError
from attnscope.train import parallel, train
from attnscope.train.data import tokens
from attnscope.train.parallel import Ranks, find_missing_ranks, init_ranks, name_missing_ranks
from attnscope.train.run_folder import claim, open_run
from tests.train.ranks import LastingRanks
from tests.train.torchrun import Forked, curve, small, write_text

LONG: dict[str, Any] = {"steps": 60, "checkpoint_every": 5}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


def test_a_second_run_in_the_folder_is_refused_and_the_first_is_not_disturbed(text: Path, tmp_path: Path) -> None:
    first = Forked(1, "rotary", text, tmp_path / "run", **LONG)
    pid = first.processes[0].pid
    assert pid is not None
    try:
        while not any((tmp_path / "run").glob("checkpoints/step-*")):
            assert first.processes[0].is_alive(), first.printed()
        os.kill(pid, signal.SIGSTOP)
        half = tmp_path / "run" / "checkpoints" / "step-00000999.unfinished"
        half.mkdir()
        with pytest.raises(SettingError, match=rf"in use by process {pid} on \S+ since .*; wait"):
            train(small("rotary", text, **LONG), tmp_path / "run", progress=False)
        assert half.exists()
        half.rmdir()
        second = Forked(2, "rotary", text, tmp_path / "run", **LONG)
        assert second.ended() == [1, 1]
        assert second.printed().count("SettingError: ") == 2
        os.kill(pid, signal.SIGCONT)
        first.succeeded()
    finally:
        first.kill()
    assert list(curve(tmp_path / "run")) == list(range(1, LONG["steps"] + 1))


def test_the_folder_of_a_killed_run_is_taken_over(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Forked(1, "rotary", text, tmp_path / "run", **LONG)
    first.killed_when(lambda: any((tmp_path / "run").glob("checkpoints/step-*")))
    train(small("rotary", text, **LONG), tmp_path / "run")
    assert f"took over {tmp_path / 'run'} from process {first.processes[0].pid} on" in capsys.readouterr().err
    assert list(curve(tmp_path / "run")) == list(range(1, LONG["steps"] + 1))
    assert not (tmp_path / "run" / ".lock.json").exists()


def test_colleagues_can_read_the_model(text: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        train(small("rotary", text, steps=2), tmp_path, progress=False)
    finally:
        os.umask(before)
    found = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "model").iterdir()}
    assert "model.safetensors" in found
    assert set(found.values()) == {"0o640"}


def three_ranks(reported: list[int]) -> Ranks:
    """Rank 0 of three, of which these have reported a failure."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    for rank in reported:
        store.set(f"{parallel.TIMED_OUT} {rank}", "")
    return Ranks(rank=0, world_size=3, device=None, store=store)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("reported", "missing", "words"),
    [([], [1, 2], "ranks 1, 2 of 3"), ([1], [2], "rank 2 of 3"), ([1, 2], [], r"rank \(unknown\) of 3")],
)
def test_ranks_that_do_not_answer_are_named(
    reported: list[int], missing: list[int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "MISSING_SECONDS", 0.0)
    assert find_missing_ranks(three_ranks(reported), seconds=0.0) == missing
    with (
        pytest.raises(SettingError, match=f"{words} did not answer in time, .* increase step_timeout_seconds"),
        name_missing_ranks(three_ranks(reported)),
    ):
        raise RuntimeError("[unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete")
    with pytest.raises(RuntimeError, match="closed by peer"), name_missing_ranks(three_ranks(reported)):
        raise RuntimeError("Connection closed by peer")


def wait_in_vain(text: Path, seconds: float) -> float:
    """Rank 0 waits for rank 1 within a step; how long it did."""
    with init_ranks(small("rotary", text, step_timeout_seconds=seconds).settings) as ranks:
        ranks.sum_over_ranks(1.0)
        started = time.monotonic()
        if ranks.is_first:
            with pytest.raises(RuntimeError, match="imed out"), ranks.step_timeout(enabled=True):
                ranks.sum_over_ranks(1.0)
            ranks.store.set("done waiting", "")
        ranks.store.get("done waiting")
        return time.monotonic() - started


def test_the_timeout_of_a_step_applies_within_a_step(ranks: LastingRanks, text: Path) -> None:
    waited, _ = ranks.run(wait_in_vain, 2, text, 1.0)
    assert waited < 100  # and not start_timeout_seconds


def between_steps(text: Path) -> float:
    """Rank 1 comes later than the timeout of a step allows, but between two steps."""
    with init_ranks(small("rotary", text, step_timeout_seconds=0.5).settings) as ranks:
        for _ in range(2):
            with ranks.step_timeout(enabled=True):
                ranks.sum_over_ranks(1.0)
        if not ranks.is_first:
            time.sleep(1.5)
        return ranks.sum_over_ranks(1.0)[0]


def test_the_timeout_of_a_step_does_not_apply_between_steps(ranks: LastingRanks, text: Path) -> None:
    assert ranks.run(between_steps, 2, text) == [2.0, 2.0]


def test_timeouts_may_change_when_a_run_resumes(text: Path, tmp_path: Path) -> None:
    train(small("rotary", text, steps=4, checkpoint_every=2), tmp_path, progress=False)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000004")
    changed = small("rotary", text, steps=4, checkpoint_every=2, start_timeout_seconds=60.0, step_timeout_seconds=20.0)
    assert train(changed, tmp_path, progress=False).step == 4


def open_data(text: Path, folder: Path) -> tuple[list[str], str]:
    """On one rank: the token files that were compared with their checksums, and the error, if there is one."""
    compared: list[str] = []
    checksum = tokens.crc32_file

    def counted(path: Path) -> str:
        compared.append(path.name)
        return checksum(path)

    recipe = small("rotary", text)
    tokens.crc32_file = counted
    try:
        with init_ranks(recipe.settings) as group, open_run(recipe, folder, group, print) as data:
            assert data.tokenizer is not None
            if group.is_first:
                claim(recipe, folder)
    except SettingError as error:
        return compared, str(error)
    finally:
        tokens.crc32_file = checksum
    return compared, ""


def test_one_rank_compares_the_tokens_with_their_checksums_for_all(
    ranks: LastingRanks, text: Path, tmp_path: Path
) -> None:
    files = ["documents.bin", "tokens-00000.bin"]
    for _ in ("a new run", "a run that is resumed"):
        assert ranks.run(open_data, 2, text, tmp_path / "run") == [(files, ""), ([], "")]
    damaged = tmp_path / "run" / "tokens" / files[1]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for _, error in ranks.run(open_data, 2, text, tmp_path / "run"):
        assert error.startswith(f"{damaged} is damaged: its checksum differs")
