"""The folder of a survey: what lies where, whose it is, and which shards are missing.

    survey.json          what the survey is; another one in the same folder is refused
    parts/               a file for each shard that has been read
    *.parquet            the tables, and manifest.json, which is written last
    log.json             how long each run took

In: a plan. Out: places of files, and the shards without one. Does not know: what is in a part.
Memory: one name a shard.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attnscope.errors import CheckpointError, SettingError
from attnscope.models.json_files import dump_json, read_json
from attnscope.survey.corpus.plan import Plan, Shard
from attnscope.survey.settings import Settings
from attnscope.survey.tally.part_files import write_whole
from attnscope.version import __version__

SURVEY, MANIFEST, LOG, PARTS = "survey.json", "manifest.json", "log.json", "parts"
HEADS, HISTOGRAMS, EXAMPLES, PASSAGES = "heads.parquet", "histograms.parquet", "examples.parquet", "passages.parquet"
TABLES = (HEADS, HISTOGRAMS, EXAMPLES, PASSAGES)
CHANGED = {
    "weights": " other weights, or they have changed since",
    "corpus": " another corpus, or it has changed since",
}
UNFINISHED = ".*.tmp"
"""Files that are being written, until they have their name."""


class Folder:
    """Where a survey is written."""

    def __init__(self, path: str | Path) -> None:
        if "://" in str(path):
            raise SettingError(f"survey: {path} is an address; a survey is written to a folder that all workers see")
        self.path = Path(path).expanduser().absolute()

    def part(self, number: int) -> Path:
        """The file of a shard."""
        return self.path / PARTS / f"{number:08}.part"

    def tries(self, number: int, run: str) -> Path:
        """A file with a byte for each time that a shard was begun in one run."""
        return self.path / PARTS / f".{number:08}.{run}.tries.tmp"

    def missing(self, plan: Plan) -> list[Shard]:
        """The shards that have not been read."""
        there = {name.name for name in os.scandir(self.path / PARTS)}
        return [shard for shard in plan.shards if self.part(shard.number).name not in there]

    @property
    def is_finished(self) -> bool:
        """Whether all tables are there."""
        return (self.path / MANIFEST).exists()

    def claim(self, identity: dict[str, Any]) -> None:
        """Take the folder into use for a survey, or go on with the same one; of others, nothing is touched."""
        try:
            if (self.path / SURVEY).exists():
                self._refuse_another(identity)
            else:
                self._refuse_foreign()
                self.path.mkdir(parents=True, exist_ok=True)
                self._write(SURVEY, identity)
            (self.path / PARTS).mkdir(exist_ok=True)
        except OSError as error:
            raise SettingError(f"survey: {self.path} cannot be used: {error.strerror or error}") from error

    def _refuse_another(self, identity: dict[str, Any]) -> None:
        before = read_json(self.path / SURVEY)
        for name, value in json.loads(json.dumps(identity)).items():
            if before.get(name) != value:
                shown = f" {name} = {before.get(name)!r}, and {value!r} was asked for"
                shown = CHANGED.get(name, shown)
                raise CheckpointError(
                    f"{self.path} holds a survey with{shown}; go on with the same, or choose another folder"
                )

    def _refuse_foreign(self) -> None:
        found = [name for name in (PARTS, MANIFEST, LOG, *TABLES) if (self.path / name).exists()]
        if found:
            raise SettingError(
                f"{self.path} holds {' and '.join(found)}, which are of no survey; choose another folder"
            )

    def sweep(self) -> None:
        """Clear away what killed workers have left half-written, once all parts are there."""
        for half in (*self.path.glob(UNFINISHED), *(self.path / PARTS).glob(UNFINISHED)):
            half.unlink(missing_ok=True)

    def log(self, run: dict[str, Any]) -> None:
        """Note how a run went."""
        path = self.path / LOG
        runs = read_json(path)["runs"] if path.exists() else []
        self._write(LOG, {"runs": [*runs, run]})

    def _write(self, name: str, found: dict[str, Any]) -> None:
        write_whole(self.path / name, dump_json(found))


def identity_of(settings: Settings, plan: Plan, about: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides what comes of a survey."""
    told = {name: value for name, value in asdict(settings).items() if name != "sources"}
    versions = {"attnscope": __version__, "torch": torch.__version__}
    return {**told, **versions, "weights": about["hash"], "corpus": plan.fingerprint}
