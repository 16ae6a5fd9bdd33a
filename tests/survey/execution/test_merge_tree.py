"""The tree of merges depends only on the number of shards, and is the same after kills and damage."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.errors import CheckpointError
from attnscope.stores import retries
from attnscope.survey.execution import merge_tree
from attnscope.survey.execution.merge_tree import GROUP_SIZE, Group, merge_group, missing_groups, save_group
from attnscope.survey.execution.workers import AccessSettingError
from attnscope.survey.folder import PARTIALS, SurveyFolder
from attnscope.survey.partials.partial import merge_partials
from attnscope.survey.partials.partial_files import load_partial, save_partial
from attnscope.survey.tables.parquet import write_tables
from tests.survey.random_shards import assert_same, shard_of

SHARDS = 23
ROUNDING = 1e-12  # of sums in float64, which are added in another order
KILL = """
import os, signal, sys
from attnscope.survey.execution import merge_tree
from attnscope.survey.execution.merge_tree import Group, missing_groups, save_group
from attnscope.survey.folder import SurveyFolder

folder, whole = SurveyFolder(sys.argv[1]), Group(0, int(sys.argv[2]), int(sys.argv[3]))
save_partial = merge_tree.save_partial
saves = 0

def save_and_kill(partial, path):
    global saves
    if saves == last and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    save_partial(partial, path)
    if saves == last:
        os.kill(os.getpid(), signal.SIGKILL)
    saves += 1

merge_tree.save_partial = save_and_kill
kills = 0
while missing_groups(whole, folder):
    kills += 1
    last, after = kills % 3, kills % 2
    if (child := os.fork()) == 0:  # a process that dies before or after one of its next saves
        for level in missing_groups(whole, folder):
            for group in level:
                save_group(group, folder)
        os._exit(0)
    ended = os.waitpid(child, 0)[1]
    assert ended in (0, signal.SIGKILL), ended
print(kills)
"""


@pytest.fixture(scope="module")
def partials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A survey folder with the partial results of all shards, of which one has no passage."""
    folder = SurveyFolder(tmp_path_factory.mktemp("survey"))
    (folder.path / PARTIALS).mkdir()
    for number in range(SHARDS):
        save_partial(shard_of(number, 0, batches=number % 4), folder.partial_path(number))
    return Path(str(folder.path))


def copy_to(path: Path, partials: Path) -> SurveyFolder:
    shutil.copytree(partials, path)
    return SurveyFolder(path)


def save_all(whole: Group, folder: SurveyFolder, dice: random.Random | None = None) -> None:
    """Merge all groups, those of each level in any order."""
    for level in missing_groups(whole, folder):
        for group in dice.sample(level, len(level)) if dice else level:
            save_group(group, folder)


def contents(folder: SurveyFolder) -> dict[str, bytes]:
    """All partial results, and the tables that they give."""
    files = sorted(Path(str(folder.path)).rglob("*.p*"))
    return {path.name: path.read_bytes() for path in files if path.is_file()}


def write(whole: Group, folder: SurveyFolder) -> dict[str, bytes]:
    write_tables(folder.path, merge_group(whole, folder))
    return contents(folder)


@pytest.mark.parametrize("group_size", [2, 3, 7, GROUP_SIZE])
@pytest.mark.parametrize("num_shards", [1, 2, 3, 8, 9, 10, 64, 65, 128, 4095, 4096, 4097, 4161])
def test_every_shard_is_below_one_input_of_every_level(num_shards: int, group_size: int, tmp_path: Path) -> None:
    folder = SurveyFolder(tmp_path)
    (tmp_path / PARTIALS).mkdir()
    whole = Group(0, num_shards, group_size)
    levels = missing_groups(whole, folder)
    merged = dict[Group, int]()
    for place, level in enumerate([*levels, [whole]]):
        for group in level:
            assert 1 <= len(group.inputs) <= group_size
            assert [number for each in group.inputs for number in range(each.start, each.stop)] == list(
                range(group.start, group.stop)
            )
            for each in group.inputs:
                assert each.is_shard or merged[each] < place  # it has a file by now
            merged[group] = place
    assert len({folder.group_path(*group[:2]).name for group in merged}) == len(merged)
    assert group_size ** len(levels) < num_shards or not levels
    assert not levels if num_shards <= group_size else levels
    assert len(merged) <= 1 + 2 * num_shards / group_size + len(levels)


def test_a_hundred_thousand_shards_leave_25_files_to_the_last_level(tmp_path: Path) -> None:
    (tmp_path / PARTIALS).mkdir()
    levels = missing_groups(Group(0, 100_000), SurveyFolder(tmp_path))
    assert [len(level) for level in levels] == [1563, 25]
    assert len(Group(0, 100_000).inputs) == 25


@pytest.mark.parametrize("group_size", [2, 3])
def test_any_order_of_workers_gives_the_same_bytes_as_one_process(
    partials: Path, tmp_path: Path, group_size: int
) -> None:
    whole = Group(0, SHARDS, group_size)
    one = copy_to(tmp_path / "one", partials)
    save_all(whole, one)
    expected = write(whole, one)
    for seed in range(3):
        other = copy_to(tmp_path / f"{seed}", partials)
        save_all(whole, other, random.Random(seed))
        assert write(whole, other) == expected
    store = SurveyFolder(f"memory://{tmp_path.name}-{group_size}")
    for path in (partials / PARTIALS).iterdir():
        (store.path / PARTIALS / path.name).write_bytes(path.read_bytes())
    save_all(whole, store)
    write_tables(store.path, merge_group(whole, store))
    found = {path.name: path for place in (store.path, store.path / PARTIALS) for path in place.glob("*.p*")}
    assert {name: path.read_bytes() for name, path in found.items()} == expected


@pytest.mark.parametrize("group_size", [2, 3, 7])
def test_a_tree_gives_what_merging_one_by_one_gives(partials: Path, tmp_path: Path, group_size: int) -> None:
    folder, whole = copy_to(tmp_path / "out", partials), Group(0, SHARDS, group_size)
    save_all(whole, folder)
    one_by_one = merge_partials(load_partial(folder.partial_path(number)) for number in range(SHARDS))
    assert_same(merge_group(whole, folder), one_by_one, tolerance=ROUNDING)


def test_as_many_shards_as_a_group_holds_are_merged_one_by_one_and_write_no_file(partials: Path) -> None:
    folder, loaded = SurveyFolder(partials), list[None]()
    before, whole = folder.partial_names(), Group(0, SHARDS, SHARDS)
    assert missing_groups(whole, folder) == []
    merged = merge_group(whole, folder, lambda: loaded.append(None))
    one_by_one = merge_partials(load_partial(folder.partial_path(number)) for number in range(SHARDS))
    assert_same(merged, one_by_one, tolerance=0.0)
    assert (len(loaded), folder.partial_names()) == (SHARDS, before)


def test_kills_between_groups_change_no_byte(partials: Path, tmp_path: Path) -> None:
    whole, killed, one = (
        Group(0, SHARDS, 2),
        copy_to(tmp_path / "killed", partials),
        copy_to(tmp_path / "one", partials),
    )
    arguments = (str(killed.path), str(SHARDS), "2")
    ran = subprocess.run([sys.executable, "-c", KILL, *arguments], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 8
    save_all(whole, one)
    assert write(whole, killed) == write(whole, one)


def damage(path: Path, kind: str, other: Path) -> None:
    content, middle = path.read_bytes(), path.stat().st_size // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes({"flipped": flipped, "cut": content[:middle], "of other shards": other.read_bytes()}[kind])


@pytest.mark.parametrize("kind", ["flipped", "cut", "of other shards"])
def test_a_damaged_group_is_merged_again(partials: Path, tmp_path: Path, kind: str) -> None:
    folder, whole = copy_to(tmp_path / "out", partials), Group(0, SHARDS, 3)
    groups = [group for level in missing_groups(whole, folder) for group in level]
    paths = {group: Path(str(folder.group_path(group.start, group.stop))) for group in groups}
    save_all(whole, folder)
    expected = write(whole, folder)
    for group, other in zip(groups, [*groups[1:], groups[0]], strict=True):
        damage(paths[group], kind, paths[other])
        for above in groups:  # as if the run had been killed before they were merged
            if above != group and above.start <= group.start and group.stop <= above.stop:
                paths[above].unlink()
        save_all(whole, folder)
        assert write(whole, folder) == expected


def test_a_damaged_shard_is_named_and_its_group_is_not_written(partials: Path, tmp_path: Path) -> None:
    folder, whole = copy_to(tmp_path / "out", partials), Group(0, SHARDS, 3)
    path = Path(str(folder.partial_path(4)))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"00000004\.partial is damaged.*delete it and run the survey again"):
        save_all(whole, folder)
    assert "00000000-00000002.partial" in folder.partial_names()
    assert "00000003-00000005.partial" not in folder.partial_names()


def test_a_file_that_cannot_be_written_is_an_error_of_the_machine(
    partials: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(merge_tree, "save_partial", fail)
    monkeypatch.setattr(retries, "RETRY_DELAYS", (0.0,))
    with pytest.raises(AccessSettingError, match=r"could not save .*00000000-00000002\.partial: .*No space left"):
        save_group(Group(0, 3), copy_to(tmp_path / "out", partials))
