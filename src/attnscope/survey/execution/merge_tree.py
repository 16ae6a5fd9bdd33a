"""Merges the partial results of all shards as a tree: groups of shards, groups of groups, and at last all of them.

The tree depends only on the number of shards, so any number of workers gives the same bits. The partial result of a
group is a file with a checksum, like that of a shard; if it is damaged, it is merged again from its inputs.
In: a survey folder with the partial results of all shards. Out: those of groups, and that of all shards.
Does not know: which worker merges which group. Memory: two partial results.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from typing import NamedTuple

from attnscope.errors import CheckpointError
from attnscope.stores.retries import retry_access
from attnscope.survey.execution.workers import AccessSettingError
from attnscope.survey.folder import SurveyFolder
from attnscope.survey.partials.partial import PartialResult, merge_partials
from attnscope.survey.partials.partial_files import load_partial, save_partial

GROUP_SIZE = 64
"""The largest number of partial results that become one file. Surveys with no more shards have no groups."""

OnInput = Callable[[], object]
"""Called after each partial result that has been merged."""


class Group(NamedTuple):
    """Consecutive shards whose partial results are merged; a group of one shard is the shard itself."""

    start: int
    stop: int
    group_size: int = GROUP_SIZE

    @property
    def inputs(self) -> list[Group]:
        """The groups that are merged into this one, at most `group_size` of them.

        >>> [(each.start, each.stop) for each in Group(0, 7, group_size=3).inputs]
        [(0, 3), (3, 6), (6, 7)]
        """
        width = 1
        while width * self.group_size < self.stop - self.start:
            width *= self.group_size
        starts = range(self.start, self.stop, width)
        return [self._replace(start=start, stop=min(start + width, self.stop)) for start in starts]

    @property
    def is_shard(self) -> bool:
        """Whether it has a single shard."""
        return self.stop - self.start == 1


def missing_groups(whole: Group, folder: SurveyFolder) -> list[list[Group]]:
    """The groups that have no file yet, by level: those of one level need the files of the levels before it.

    Args:
        whole: All shards.
        folder: The folder of the survey.
    """
    found, levels, above = folder.partial_names(), list[list[Group]](), [whole]
    while above:
        inputs = (each for group in above for each in group.inputs if not each.is_shard)
        above = [each for each in inputs if folder.group_path(each.start, each.stop).name not in found]
        levels.insert(0, above)
    return [level for level in levels if level]


def merge_group(group: Group, folder: SurveyFolder, on_input: OnInput | None = None) -> PartialResult:
    """Merge the partial results of a group, without saving the result.

    Args:
        group: Some shards, or all.
        folder: The folder of the survey.
        on_input: Called after each input.

    Raises:
        CheckpointError: The partial result of a shard is missing or damaged.
        AccessSettingError: The file of a group was damaged and cannot be written.
    """

    def load() -> Iterator[PartialResult]:
        for each in group.inputs:
            yield _load_input(each, folder)
            if on_input is not None:
                on_input()

    return merge_partials(load())


def save_group(group: Group, folder: SurveyFolder, on_input: OnInput | None = None) -> PartialResult:
    """Merge the partial results of a group, and save the result; see `merge_group`."""
    merged, path = merge_group(group, folder, on_input), folder.group_path(group.start, group.stop)
    try:
        retry_access(lambda: save_partial(merged, path))
    except OSError as error:
        raise AccessSettingError(
            f"survey: the machine {platform.node()} could not save the merged partial results {path}: {error}; fix "
            "this, and run the same command again to resume"
        ) from error
    return merged


def _load_input(group: Group, folder: SurveyFolder) -> PartialResult:
    """Load the file of a shard or a group; merge a group again if it is missing, damaged or has other shards."""
    if group.is_shard:
        return load_partial(folder.partial_path(group.start))
    try:
        found = load_partial(folder.group_path(group.start, group.stop))
    except CheckpointError:
        return save_group(group, folder)
    if found.digests.keys() != set(range(group.start, group.stop)):
        return save_group(group, folder)
    return found
