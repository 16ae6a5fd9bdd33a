"""The layout of a survey folder, and which shards are missing.

    survey.json          the identity of the survey; a different survey in the same folder is an error
    partials/            the partial result of each shard that has been read, and of groups of shards
    *.parquet            the tables, and manifest.json, which is written last
    log.json             duration and throughput of each run
    .lock, .lock.json    the lock of the process that writes to the folder; see `stores.lock` for object stores

In: a plan. Out: paths, and the shards without a partial result. Does not know: the content of partial results.
Memory: one name per shard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attnscope.atomic_files import TEMPORARY
from attnscope.errors import CheckpointError, SettingError
from attnscope.models.checked_json import encode_checked_json, read_checked_json
from attnscope.models.json_fields import Fields, short_repr
from attnscope.stores.paths import AnyPath, StorePath, to_path, write_file
from attnscope.survey.corpus.plan import Shard, ShardPlan
from attnscope.survey.settings import Settings
from attnscope.version import __version__

SURVEY, MANIFEST, LOG, PARTIALS = "survey.json", "manifest.json", "log.json", "partials"
SUFFIX = ".partial"
HEADS, HISTOGRAMS, EXAMPLES, PASSAGES = "heads.parquet", "histograms.parquet", "examples.parquet", "passages.parquet"
TABLES = (HEADS, HISTOGRAMS, EXAMPLES, PASSAGES)
CHANGED_INPUTS = {
    "parameters": "a model with other parameters, or they have changed since",
    "corpus": "another corpus, or its files have changed since",
}


class SurveyFolder:
    """The folder that a survey is written to.

    Args:
        path: A folder that all workers see, or a URL in an object store; it is created by `claim`.

    Raises:
        SettingError: The URL is not that of an object store.
    """

    def __init__(self, path: str | Path | StorePath) -> None:
        self.path: AnyPath = to_path(path).expanduser().absolute()

    def partial_path(self, number: int) -> AnyPath:
        """The file of the partial result of a shard."""
        return self.path / PARTIALS / f"{number:08}{SUFFIX}"

    def group_path(self, start: int, stop: int) -> AnyPath:
        """The file of the merged partial result of the shards [start, stop)."""
        return self.path / PARTIALS / f"{start:08}-{stop - 1:08}{SUFFIX}"

    def attempts_path(self, partial: AnyPath, run: str) -> AnyPath:
        """A file that counts the attempts to make a partial result in one run, one byte per attempt."""
        return self.path / PARTIALS / f".{partial.name.removesuffix(SUFFIX)}.{run}.attempts.tmp"

    def missing_shards(self, plan: ShardPlan) -> list[Shard]:
        """The shards that have no partial result yet."""
        found = self.partial_names()
        return [shard for shard in plan.shards if self.partial_path(shard.number).name not in found]

    def partial_names(self) -> set[str]:
        """The names of all files of partial results."""
        return {path.name for path in (self.path / PARTIALS).iterdir()}

    @property
    def is_finished(self) -> bool:
        """Whether all tables are written."""
        return (self.path / MANIFEST).exists()

    def claim(self, identity: dict[str, Any]) -> None:
        """Create the folder for a survey, or check that it already belongs to the same one.

        Raises:
            CheckpointError: The folder belongs to another survey, or its files are damaged.
            SettingError: The folder has files of unknown origin, or cannot be written to.
        """
        try:
            if (self.path / SURVEY).exists():
                self._check_identity(identity)
                self._read_log()  # a damaged one is reported before anything is read
            else:
                self._check_unused()
                self.path.mkdir(parents=True, exist_ok=True)
                self._write(SURVEY, identity)
            (self.path / PARTIALS).mkdir(exist_ok=True)
        except OSError as error:
            raise SettingError(f"survey: cannot write to {self.path}: {error.strerror or error}") from error

    def _check_identity(self, identity: dict[str, Any]) -> None:
        before = self._read(SURVEY, advice="use another folder, or copy this one again")
        for name, value in json.loads(json.dumps(identity)).items():
            if (found := before.take(name)) != value:
                difference = CHANGED_INPUTS.get(name, f"{name} = {short_repr(found)}, got {short_repr(value)}")
                raise CheckpointError(
                    f"{self.path} has a survey with {difference}; use the same settings, or another folder"
                )
        before.finish()

    def _check_unused(self) -> None:
        found = [name for name in (PARTIALS, MANIFEST, LOG, *TABLES) if (self.path / name).exists()]
        if found:
            raise SettingError(
                f"{self.path} has {' and '.join(found)}, but no {SURVEY}, so it is not a survey; use another folder"
            )

    def remove_temporary_files(self) -> None:
        """Remove incomplete files that killed workers left behind; call it when all partial results are there."""
        for path in (*self.path.glob(TEMPORARY), *(self.path / PARTIALS).glob(TEMPORARY)):
            path.unlink(missing_ok=True)

    def append_log(self, run: dict[str, Any]) -> None:
        """Add an entry about a run to the log."""
        self._write(LOG, {"runs": [*self._read_log(), run]})

    def _read_log(self) -> list[Any]:
        if not (self.path / LOG).exists():
            return []
        return self._read(LOG, advice="delete it: it only states how long each run took").array("runs")

    def _read(self, name: str, *, advice: str) -> Fields:
        return Fields(read_checked_json(self.path / name, advice=advice), source=str(self.path / name), advice=advice)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_file(self.path / name, encode_checked_json(content))


def survey_identity(settings: Settings, plan: ShardPlan, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that determines the result of a survey: settings, versions, and hashes of parameters and corpus."""
    chosen = {name: value for name, value in asdict(settings).items() if name not in ("sources", "max_skipped")}
    versions = {"attnscope": __version__, "torch": torch.__version__}
    return {**chosen, **versions, "parameters": fingerprint["hash"], "corpus": plan.fingerprint}
