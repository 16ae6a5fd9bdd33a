"""`run_survey`: collect the statistics of every head over a corpus, with any number of workers.

In: a model, a corpus and a folder. Out: the folder with its tables, opened as a `Survey`. An interrupted survey resumes
at the missing shards; a finished one is only opened.
Does not know: how shards are read or tables are laid out. Memory: that of one worker, or with Ray, two partial results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnscope.errors import CheckpointError, SettingError
from attnscope.models.fingerprint import fingerprint_model
from attnscope.stores.lock import lock_any_folder
from attnscope.survey.corpus.names import escape_name
from attnscope.survey.corpus.plan import ShardPlan, plan_shards
from attnscope.survey.execution.in_process import run_in_process
from attnscope.survey.execution.merge_tree import GROUP_SIZE, Group, merge_group, missing_groups, save_group
from attnscope.survey.execution.progress import SurveyProgress
from attnscope.survey.execution.ray_pool import RayPool
from attnscope.survey.execution.shard_reader import ShardReader
from attnscope.survey.execution.workers import OnReport, Workers, WorkReport
from attnscope.survey.folder import SurveyFolder, survey_identity
from attnscope.survey.partials.partial import PartialResult
from attnscope.survey.settings import Settings
from attnscope.survey.tables.manifest import write_manifest
from attnscope.survey.tables.parquet import write_tables
from attnscope.survey.tables.survey import Survey, open_survey

ProgressCallback = Callable[[SurveyProgress], object]
"""Called once before reading starts, after each batch or shard, and after each partial result that is merged."""


def run_survey(
    model: str | Path,
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    workers: int | Workers = 1,
    progress: ProgressCallback | None = None,
    **settings: Any,
) -> Survey:
    """Collect the statistics of every head of a model over a corpus, and write them to a folder.

    The same call resumes a survey that was interrupted, and opens one that is finished. If the tables of a finished
    survey are damaged, it writes them again from the partial results.

    Args:
        model: A folder, a name on the hub, the name of a downloaded model, or a GGUF file.
        sources: Files, folders, globs and URLs of text, JSONL and Parquet.
        out: The folder of the survey, or a URL in an object store. All workers must see it.
        workers: The number of processes, or `Workers` for more control. More than one process needs Ray.
        progress: Called with a `SurveyProgress` before reading starts, after each batch or shard, and after each
            partial result that is merged; on Ray, after each group of them.
        **settings: Fields of `Settings`: `max_length`, `batch_tokens`, `field`, `separator`, `shard_bytes`, `seed`,
            `max_skipped`.

    Returns:
        The finished survey.

    Raises:
        SettingError: A setting is invalid, a source cannot be read, or another process runs a survey in the folder; or
            more than `max_skipped` of the corpus was skipped, in which case `open_survey` opens the finished survey.
        CheckpointError: The folder has a survey of another model, corpus or settings, or a file has changed while it
            was read.
    """
    pool = workers if isinstance(workers, Workers) else Workers(count=workers)
    chosen = Settings(model=_absolute(model), sources=_as_tuple(sources), **settings)
    plan, folder = plan_shards(chosen), SurveyFolder(out)
    with ExitStack() as stack:
        if pool.uses_ray:  # only the workers load the model
            reader = stack.enter_context(RayPool(chosen, pool))
            fingerprint = reader.fingerprint()
        else:
            reader = ShardReader.load(chosen, pool.device)
            fingerprint = fingerprint_model(reader.model, Path(chosen.model).name)
        identity = survey_identity(chosen, plan, fingerprint)
        folder.claim(identity)
        survey = _open_finished(folder)
        if survey is None:
            with lock_any_folder(folder.path):  # a killed run may have left its lock: that is resuming
                folder.claim(identity)  # again, because before the lock another process could do the same
                merged = _read_and_merge(plan, reader, folder, pool, progress)
                tables = write_tables(folder.path, merged)
                write_manifest(folder.path, merged, plan, chosen, fingerprint, tables)
                folder.remove_temporary_files()
            survey = open_survey(folder.path)
    return check_skipped(survey, chosen.max_skipped)


def _open_finished(folder: SurveyFolder) -> Survey | None:
    """The survey in a folder; None if it is not finished, or if its tables are damaged and have to be written again."""
    if folder.is_finished:
        with suppress(CheckpointError):
            return open_survey(folder.path)
    return None


def _read_and_merge(
    plan: ShardPlan,
    reader: ShardReader | RayPool,
    folder: SurveyFolder,
    pool: Workers,
    progress: ProgressCallback | None,
) -> PartialResult:
    """Read the shards that have no partial result yet, and merge those of all."""
    missing = folder.missing_shards(plan)
    state = SurveyProgress(
        size=plan.size, shards=len(plan.shards), missing=len(missing), workers=min(pool.count, len(missing))
    )
    if progress is not None:
        progress(state)

    def update(report: WorkReport) -> None:
        state.add(report)
        if progress is not None:
            progress(state)

    with _log_run(folder, state, pool):
        if isinstance(reader, ShardReader):
            run_in_process(missing, reader, folder, pool, update)
        else:
            state.excluded_machines = reader.excluded_machines  # which it adds to
            reader.read(missing, folder, update)
    return _merge(plan, reader, folder, state, update)


def _merge(
    plan: ShardPlan, reader: ShardReader | RayPool, folder: SurveyFolder, state: SurveyProgress, on_report: OnReport
) -> PartialResult:
    """Merge the partial results of all shards: groups in this process or on Ray, and the last level in this process."""
    if missing := folder.missing_shards(plan):
        raise SettingError(
            f"survey: all workers have finished, but {len(missing):,} partial results are not in {folder.path}; all "
            "machines of a cluster must see the same folder"
        )

    def update() -> None:
        on_report(WorkReport(0, 0.0, 0.0, merged=1))

    whole = Group(0, len(plan.shards), GROUP_SIZE)
    levels = missing_groups(whole, folder)
    state.to_merge = sum(len(group.inputs) for level in ([whole], *levels) for group in level)
    if isinstance(reader, RayPool):
        reader.merge(levels, folder, on_report)
        reader.close()  # the rest does not need workers
    else:
        for group in (group for level in levels for group in level):
            save_group(group, folder, update)
    return merge_group(whole, folder, update)


def check_skipped(survey: Survey, max_skipped: float) -> Survey:
    """Return a finished survey, or raise an error if too much of its corpus was skipped; its tables stay."""
    problems = survey.manifest["problems"]
    if problems["skipped_share"] > max_skipped:
        raise SettingError(
            f"survey: {problems['skipped_share']:.1%} of the corpus was skipped, but max_skipped is {max_skipped:.1%}; "
            f"the tables are written, and manifest.json in {escape_name(str(survey.folder))} lists the "
            f"{problems['count']:,} problems: fix the corpus and use another folder, or allow more by --max-skipped"
        )
    return survey


@contextmanager
def _log_run(folder: SurveyFolder, state: SurveyProgress, workers: Workers) -> Iterator[None]:
    """Append duration and throughput to the log, also after an error."""
    started, start = datetime.now(UTC), time.perf_counter()
    try:
        yield
    finally:
        folder.append_log(
            {
                "started": started.isoformat(timespec="seconds"),
                "seconds": round(time.perf_counter() - start, 3),
                "workers": workers.count,
                "threads": workers.num_threads,
                "shards": state.shards_read,
                "tokens": state.tokens,
                "tokens_per_second": round(state.tokens_per_second, 3),
                "overhead": round(state.overhead, 4),
                "excluded_machines": state.excluded_machines,
            }
        )


def _absolute(model: str | Path) -> str:
    """The model as a name that is valid in every process: an absolute path, or its name on the hub."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else str(model)


def _as_tuple(sources: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    return (str(sources),) if isinstance(sources, str | Path) else tuple(map(str, sources))
