"""manifest.json: the settings, hashes and skipped input of a survey. It is written last and marks a finished survey.

It depends only on model, corpus and settings, so two runs of the same survey write the same bytes. In: the merged
result, the plan, the settings, the fingerprint of the model. Out: a file.
Does not know: tables, workers. Memory: O(listed problems).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from attnscope.atomic_files import write_atomically
from attnscope.models.json_files import dump_json
from attnscope.survey.corpus.names import escape_name
from attnscope.survey.corpus.plan import ShardPlan
from attnscope.survey.folder import MANIFEST
from attnscope.survey.partials.bins import RELATIVE_ACCURACY, STATISTICS
from attnscope.survey.partials.examples import NUM_TOP, SAMPLE_SIZE
from attnscope.survey.partials.partial import PartialResult, Problems
from attnscope.survey.settings import Settings
from attnscope.version import __version__

FORMAT = 1
MAX_FILES = 1000
"""Files that are listed; `fingerprint` is a hash of the names, sizes and times of all."""


def write_manifest(
    folder: Path, merged: PartialResult, plan: ShardPlan, settings: Settings, fingerprint: Mapping[str, Any]
) -> None:
    """Write the manifest, which marks the survey as finished; `fingerprint` comes from `fingerprint_model`."""
    write_atomically(folder / MANIFEST, dump_json(describe_survey(merged, plan, settings, fingerprint)))


def describe_survey(
    merged: PartialResult, plan: ShardPlan, settings: Settings, fingerprint: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of the manifest."""
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
        "problems": {
            "count": problems.count,
            "skipped_bytes": problems.skipped_bytes,
            "skipped_share": skipped,
            "exceeds_max_skipped": skipped > settings.max_skipped,
            "first": [problem._asdict() for problem in problems.first],
        },
    }


def hash_corpus(digests: Mapping[int, str]) -> str:
    """A hash of the input, shard by shard: the same corpus in shards of another size has another hash.

    >>> hash_corpus({0: "ab", 1: "cd"}) == hash_corpus({1: "cd", 0: "ab"}) != hash_corpus({0: "cd", 1: "ab"})
    True
    """
    text = "".join(f"{shard} {digest}\n" for shard, digest in sorted(digests.items()))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
