"""manifest.json: settings, hashes, checksums of the tables, and skipped input.

It is written last and marks a finished survey. It depends only on model, corpus and settings, so two runs of the same
survey write the same bytes. Its last field is a checksum of the others. In: the merged result, the plan, the settings,
the fingerprint of the model, the written tables. Out: a file; and its content again, with the types and ranges that
readers rely on, or a `CheckpointError`.
Does not know: the content of tables, workers. Memory: O(listed problems).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, NamedTuple

import torch

from attnscope.errors import CheckpointError, SettingError
from attnscope.models.checked_json import encode_checked_json, remove_checksum
from attnscope.models.json_fields import Fields, short_repr
from attnscope.models.json_files import read_json
from attnscope.stores.paths import AnyPath, write_file
from attnscope.survey.corpus.names import escape_name
from attnscope.survey.corpus.plan import ShardPlan
from attnscope.survey.folder import MANIFEST, TABLES
from attnscope.survey.partials.bins import RELATIVE_ACCURACY, STATISTICS
from attnscope.survey.partials.examples import NUM_TOP, SAMPLE_SIZE
from attnscope.survey.partials.partial import MAX_PROBLEMS, PartialResult, Problems
from attnscope.survey.settings import Settings
from attnscope.version import __version__

FORMAT = 2
MAX_BYTES = 2**26  # of the file; a thousand problems with long paths need a few million
MAX_FILES = 1000
"""Files that are listed; `fingerprint` is a hash of the names, sizes and times of all."""
MAX_TEXT = 2**16  # characters of a path or a reason
REMEDY = "run the same survey command again, which writes all tables again from the partial results"


class TableFile(NamedTuple):
    """What the manifest states about the file of a table."""

    size: int
    """In bytes."""
    rows: int
    sha256: str


def write_manifest(
    folder: AnyPath,
    merged: PartialResult,
    plan: ShardPlan,
    settings: Settings,
    fingerprint: Mapping[str, Any],
    tables: Mapping[str, TableFile],
) -> None:
    """Write the manifest, which marks the survey as finished.

    Args:
        folder: The folder of the survey.
        merged: The result of all shards.
        plan: The shards.
        settings: The settings of the survey.
        fingerprint: What `fingerprint_model` returned.
        tables: What `write_tables` returned.
    """
    content = describe_survey(merged, plan, settings, fingerprint, tables)
    write_file(folder / MANIFEST, encode_checked_json(content))


def describe_survey(
    merged: PartialResult,
    plan: ShardPlan,
    settings: Settings,
    fingerprint: Mapping[str, Any],
    tables: Mapping[str, TableFile],
) -> dict[str, Any]:
    """The content of the manifest, without its checksum."""
    problems = Problems.of(plan.problems).merge(merged.problems)
    skipped = min(1.0, problems.skipped_bytes / max(1, plan.total_bytes))  # sizes of Parquet are estimates
    files = {span.file: span.version for shard in plan.shards for span in shard.spans}
    return {
        "format": FORMAT,
        "model": dict(fingerprint),
        "corpus": {
            "hash": hash_corpus(merged.digests),
            "files": len(files),
            "bytes": plan.size,
            "documents": merged.documents,
            "passages": merged.passages,
            "tokens": merged.tokens,
        },
        "files": [{"file": file, "version": version} for file, version in islice(files.items(), MAX_FILES)],
        "settings": {**asdict(settings), "sources": [escape_name(source) for source in settings.sources]},
        "fingerprint": plan.fingerprint,
        "shards": len(plan.shards),
        "versions": {"attnscope": __version__, "torch": torch.__version__},
        "seeds": {"sample": settings.seed},
        "examples": {"top": NUM_TOP, "sample": SAMPLE_SIZE},
        "accuracy": RELATIVE_ACCURACY,
        "statistics": {name: {**asdict(bins), "bins": len(bins)} for name, bins in STATISTICS.items()},
        "tables": {name: file._asdict() for name, file in tables.items()},
        "problems": {
            "count": problems.count,
            "skipped_bytes": problems.skipped_bytes,
            "skipped_share": skipped,
            "exceeds_max_skipped": skipped > settings.max_skipped,
            "first": [problem._asdict() for problem in problems.first],
        },
    }


def read_manifest(folder: AnyPath) -> dict[str, Any]:
    """Read the manifest of a survey.

    Returns:
        The parsed object. All fields that this package reads have their types; other fields may have any.

    Raises:
        SettingError: The file has nothing in common with the manifest of a survey.
        CheckpointError: It is damaged, or of another format.
    """
    path = folder / MANIFEST
    manifest = read_json(path, MAX_BYTES, advice=REMEDY)
    if not manifest.keys() & {"format", "corpus", "checksum"}:
        raise SettingError(f"{path} is not the manifest of a survey; give the folder of a survey")
    fields = Fields(manifest, source=str(path), advice=REMEDY)
    if (found := fields.take("format")) != FORMAT:
        raise CheckpointError(
            f"the survey in {folder} has format {short_repr(found)}, but this version of AttnScope reads format "
            f"{FORMAT}; update AttnScope, or {REMEDY}"
        )
    remove_checksum(manifest, path, advice=REMEDY)
    _check_fields(fields)
    return manifest


def table_files(manifest: Mapping[str, Any]) -> dict[str, TableFile]:
    """What a manifest states about each table."""
    return {name: TableFile(**{key: manifest["tables"][name][key] for key in TableFile._fields}) for name in TABLES}


def hash_corpus(digests: Mapping[int, str]) -> str:
    """A hash of the input, shard by shard: the same corpus in shards of another size has another hash.

    >>> hash_corpus({0: "ab", 1: "cd"}) == hash_corpus({1: "cd", 0: "ab"}) != hash_corpus({0: "cd", 1: "ab"})
    True
    """
    text = "".join(f"{shard} {digest}\n" for shard, digest in sorted(digests.items()))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _check_fields(fields: Fields) -> None:
    """Check the type and range of every field that readers of a survey use."""
    model, corpus, settings, problems, tables = map(fields.inner, ("model", "corpus", "settings", "problems", "tables"))
    model.string("name", maximum=MAX_TEXT)
    model.string("hash")
    model.integer("parameters")
    corpus.string("hash")
    for name in ("files", "bytes", "documents", "passages", "tokens"):
        corpus.integer(name)
    settings.string("model", maximum=MAX_TEXT)
    if settings.take("max_length") is not None:
        settings.size("max_length")
    problems.integer("count")
    problems.number("skipped_share")
    for number, problem in enumerate(problems.array("first", maximum=MAX_PROBLEMS)):
        listed = Fields(problem, source=f"{fields.source}: problem {number}", advice=REMEDY)
        for name in ("file", "location", "reason"):
            listed.string(name, maximum=MAX_TEXT)
    for name in TABLES:
        table = tables.inner(name)
        table.integer("size")
        table.integer("rows")
        table.string("sha256")
