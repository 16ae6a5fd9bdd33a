"""Surveys of made numbers, whose truth is known, written by the writer of real ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import torch

from attnscope.heads.rows import RowScores
from attnscope.models.checked_json import encode_checked_json
from attnscope.survey.corpus.batches import Batch, PlacedPassage
from attnscope.survey.corpus.passages import Passage
from attnscope.survey.corpus.plan import Problem, Shard, ShardPlan, Span
from attnscope.survey.folder import MANIFEST, TABLES
from attnscope.survey.partials.accumulator import ShardAccumulator
from attnscope.survey.partials.examples import passage_id
from attnscope.survey.settings import Settings
from attnscope.survey.tables.manifest import TableFile, write_manifest
from attnscope.survey.tables.parquet import write_tables

ABOUT = {"name": "made", "hash": "sha256:made", "parameters": 1234}
WORDS = ("so", " it", " is", " told", " by\n", " them", " of", " old")


def write_survey(
    folder: Path,
    scores: Sequence[Mapping[str, np.ndarray]],
    *,
    layers: Sequence[str] = ("blocks.0.attention", "blocks.1.attention"),
    about: Mapping[str, object] = ABOUT,
    digest: str = "made",
    max_length: int | None = 512,
    documents: int | None = None,
    problems: Sequence[Problem] = (),
    words: Sequence[str] = WORDS,
) -> Path:
    """A survey of passages, each its scores (layers * heads, tokens) by statistic; NaN does not count."""
    accumulator = ShardAccumulator(seed=0)
    for number, passage in enumerate(scores):
        length = next(iter(passage.values())).shape[1]
        ids = list(range(length))
        placed = PlacedPassage(Passage(ids, "/corpus/made.txt", 100 * number, 0), 0, 0)
        texts = [words[at % len(words)] for at in ids]
        accumulator.begin_batch(Batch(torch.tensor([ids]), None, [placed]), [passage_id(0, number)], [texts])
        for at, layer in enumerate(layers):
            rows = {name: np.split(values, len(layers))[at] for name, values in passage.items()}
            heads = len(next(iter(rows.values())))
            accumulator.add_layer(layer, range(heads), {name: row_scores(values) for name, values in rows.items()})
        accumulator.finish_batch()
    merged = accumulator.to_partial(
        0, digest, documents=len(scores) if documents is None else documents, problems=problems
    )
    folder.mkdir(parents=True, exist_ok=True)
    tables = write_tables(folder, merged)
    plan = ShardPlan((Shard(0, (Span("/corpus/made.txt", "text", 0, 100),)),), (), 100, "made")
    settings = Settings(model="made", sources=("made.txt",), max_length=max_length)
    write_manifest(folder, merged, plan, settings, about, tables)
    return folder


def restate_tables(folder: Path, rows: Mapping[str, int] | None = None) -> None:
    """Write the manifest that fits the tables as they are now, or states other numbers of rows, with its checksum."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for name in TABLES:
        content, found = (folder / name).read_bytes(), parquet.read_metadata(folder / name).num_rows or 0
        stated = TableFile(len(content), (rows or {}).get(name, found), hashlib.sha256(content).hexdigest())
        manifest["tables"][name] = stated._asdict()
    (folder / MANIFEST).write_bytes(encode_checked_json(manifest))


def row_scores(values: np.ndarray) -> RowScores:
    found = torch.from_numpy(values.astype(np.float32))[None]
    return RowScores(found.nan_to_num(0.0), ~found.isnan())


def clustered(chance: np.random.Generator, passages: int, mean: np.ndarray, tokens: int = 8) -> list[np.ndarray]:
    """Shares (heads, tokens) of passages; queries of one passage are alike."""
    spread = chance.normal(0.0, 0.05, (passages, len(mean), 1)) + chance.normal(
        0.0, 0.02, (passages, len(mean), tokens)
    )
    return list(np.clip(mean[:, None] + spread, 0.0, 1.0))
