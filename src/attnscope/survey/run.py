"""`run_survey`: collect the statistics of every head over a corpus, with any number of workers.

In: a model, a corpus and a folder. Out: the folder with its tables, opened as a `Survey`. An interrupted survey resumes
at the missing shards; a finished one is only opened.
Does not know: how shards are read or tables are laid out. Memory: that of one worker, or with Ray, two partial results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnscope.errors import CheckpointError, SettingError
from attnscope.models.fingerprint import fingerprint_model
from attnscope.survey.corpus.plan import ShardPlan, plan_shards
from attnscope.survey.execution.in_process import run_in_process
from attnscope.survey.execution.progress import SurveyProgress
from attnscope.survey.execution.ray_actors import run_on_ray
from attnscope.survey.execution.shard_reader import ShardReader
from attnscope.survey.execution.workers import Workers, WorkReport
from attnscope.survey.folder import SurveyFolder, survey_identity
from attnscope.survey.partials.partial import PartialResult, merge_partials
from attnscope.survey.partials.partial_files import load_partial
from attnscope.survey.settings import Settings
from attnscope.survey.tables.manifest import write_manifest
from attnscope.survey.tables.parquet import write_tables
from attnscope.survey.tables.survey import Survey, open_survey

ProgressCallback = Callable[[SurveyProgress], object]
"""Called once before reading starts, and after each batch or shard."""


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
        out: The folder of the survey. All workers must see it.
        workers: The number of processes, or `Workers` for more control. More than one process needs Ray.
        progress: Called with a `SurveyProgress` before reading starts, and after each batch or shard.
        **settings: Fields of `Settings`: `max_length`, `batch_tokens`, `field`, `separator`, `shard_bytes`, `seed`.

    Returns:
        The finished survey.

    Raises:
        SettingError: A setting is invalid, or a source cannot be read.
        CheckpointError: The folder has a survey of another model, corpus or settings.
    """
    pool = workers if isinstance(workers, Workers) else Workers(count=workers)
    chosen = Settings(model=_absolute(model), sources=_as_tuple(sources), **settings)
    plan, folder = plan_shards(chosen), SurveyFolder(out)
    reader = ShardReader.load(chosen, "cpu" if pool.uses_ray else pool.device)
    fingerprint = fingerprint_model(reader.model, Path(chosen.model).name)
    folder.claim(survey_identity(chosen, plan, fingerprint))
    if folder.is_finished:
        with suppress(CheckpointError):  # damaged tables are written again
            return open_survey(folder.path)
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

    with _logged(folder, state, pool):
        if missing and pool.uses_ray:
            del reader  # each actor has its own model
            run_on_ray(missing, chosen, folder, pool, update)
        elif missing:
            run_in_process(missing, reader, folder, pool, update)
    merged = merge_saved_partials(plan, folder)
    tables = write_tables(folder.path, merged)
    write_manifest(folder.path, merged, plan, chosen, fingerprint, tables)
    folder.remove_temporary_files()
    return open_survey(folder.path)


def merge_saved_partials(plan: ShardPlan, folder: SurveyFolder) -> PartialResult:
    """Load and merge the partial results of all shards, in the order of the shards, one at a time."""
    if missing := folder.missing_shards(plan):
        raise SettingError(
            f"survey: all workers have finished, but {len(missing):,} partial results are not in {folder.path}; all "
            "machines of a cluster must see the same folder"
        )
    return merge_partials(load_partial(folder.partial_path(shard.number)) for shard in plan.shards)


@contextmanager
def _logged(folder: SurveyFolder, state: SurveyProgress, workers: Workers) -> Iterator[None]:
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
            }
        )


def _absolute(model: str | Path) -> str:
    """The model as a name that is valid in every process: an absolute path, or its name on the hub."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else str(model)


def _as_tuple(sources: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    return (str(sources),) if isinstance(sources, str | Path) else tuple(map(str, sources))
