"""`run_survey`: what every head of a model does over a corpus of any size, read by any number of workers.

In: a model, a corpus, and a folder. Out: the folder with its tables, opened. What was interrupted goes on where it
stopped, and what is finished is not read again.
Does not know: how shards are read, how tables look. Memory: that of one worker, or with Ray, the sums.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnscope.errors import SettingError
from attnscope.models.fingerprint import fingerprint_model
from attnscope.survey.corpus.plan import Plan, make_plan
from attnscope.survey.folder import Folder, identity_of
from attnscope.survey.settings import Settings
from attnscope.survey.tables.manifest import write_manifest
from attnscope.survey.tables.opening import Survey, open_survey
from attnscope.survey.tables.writing import write_tables
from attnscope.survey.tally.part_files import load
from attnscope.survey.tally.partial import Partial, merge_all
from attnscope.survey.work.alone import run_alone
from attnscope.survey.work.on_ray import run_on_ray
from attnscope.survey.work.pace import Pace
from attnscope.survey.work.shard import Reader
from attnscope.survey.work.workers import Step, Workers

Progress = Callable[[Pace], object]
"""Called once before anything is read, and after each step."""


def run_survey(
    model: str | Path,
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    workers: int | Workers = 1,
    progress: Progress | None = None,
    **settings: Any,
) -> Survey:
    """Survey every head of a model over a corpus, and write tables to the folder `out`.

    `sources` are files, folders and addresses of text, JSONL and Parquet. `settings` are those of `Settings`: window,
    batch, field, separator, shard_bytes, seed. `workers` is how many processes read; more than one takes Ray. The same
    call goes on with a survey that was interrupted, and only opens one that is finished.
    """
    crew = workers if isinstance(workers, Workers) else Workers(count=workers)
    told = Settings(model=_located(model), sources=_listed(sources), **settings)
    plan, folder = make_plan(told), Folder(out)
    reader = Reader.load(told, "cpu" if crew.on_ray else crew.device)
    about = fingerprint_model(reader.model, Path(told.model).name)
    folder.claim(identity_of(told, plan, about))
    if folder.is_finished:
        return open_survey(folder.path)
    missing = folder.missing(plan)
    pace = Pace(size=plan.size, shards=len(plan.shards), missing=len(missing), workers=min(crew.count, len(missing)))
    if progress is not None:
        progress(pace)

    def tell(step: Step) -> None:
        pace.add(step)
        if progress is not None:
            progress(pace)

    with _logged(folder, pace, crew):
        if missing and crew.on_ray:
            del reader  # each actor has a model of its own
            run_on_ray(missing, told, folder, crew, tell)
        elif missing:
            run_alone(missing, reader, folder, crew, tell)
    merged = merged_parts(plan, folder)
    write_tables(folder.path, merged)
    write_manifest(folder.path, merged, plan, told, about)
    folder.sweep()
    return open_survey(folder.path)


def merged_parts(plan: Plan, folder: Folder) -> Partial:
    """All parts as one, in the order of their shards, one at a time."""
    if missing := folder.missing(plan):
        raise SettingError(
            f"survey: the workers are done, and {len(missing):,} of their parts are not in {folder.path}; all machines "
            "of a cluster have to see the same folder"
        )
    return merge_all(load(folder.part(shard.number)) for shard in plan.shards)


@contextmanager
def _logged(folder: Folder, pace: Pace, workers: Workers) -> Iterator[None]:
    """Note how the work went, also if it did not end well."""
    began, start = datetime.now(UTC), time.perf_counter()
    try:
        yield
    finally:
        folder.log(
            {
                "began": began.isoformat(timespec="seconds"),
                "seconds": round(time.perf_counter() - start, 3),
                "workers": workers.count,
                "threads": workers.num_threads,
                "shards": pace.shards_read,
                "tokens": pace.tokens,
                "tokens_a_second": round(pace.tokens_a_second, 3),
                "waiting": round(pace.waiting, 4),
            }
        )


def _located(model: str | Path) -> str:
    """A model by a name that holds in every process: a full path, or its name on the hub."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else str(model)


def _listed(sources: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    return (str(sources),) if isinstance(sources, str | Path) else tuple(map(str, sources))
