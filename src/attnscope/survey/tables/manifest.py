"""manifest.json: what a survey was made of and with, written last, so that a folder that has it is finished.

Everything in it follows from model, corpus and settings: two runs of one survey write the same, whoever worked on them
and for how long. In: a merged partial, the plan, the settings, what is known of the model. Out: a file.
Does not know: tables, workers. Memory: O(problems that are listed).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attnscope.models.json_files import dump_json
from attnscope.survey.corpus.plan import Plan
from attnscope.survey.folder import MANIFEST
from attnscope.survey.settings import Settings
from attnscope.survey.tally.examples import SAMPLE, TOP
from attnscope.survey.tally.part_files import write_whole
from attnscope.survey.tally.partial import Partial, Problems
from attnscope.survey.tally.statistics import ACCURACY, STATISTICS
from attnscope.version import __version__

FORMAT = 1


def write_manifest(folder: Path, merged: Partial, plan: Plan, settings: Settings, about: Mapping[str, Any]) -> None:
    """Say that a survey is finished, and what it is; `about` is what `fingerprint_model` says of the model."""
    found = described(merged, plan, settings, about)
    write_whole(folder / MANIFEST, dump_json(found))


def described(merged: Partial, plan: Plan, settings: Settings, about: Mapping[str, Any]) -> dict[str, Any]:
    """All that the manifest says."""
    problems = Problems.of(plan.problems).plus(merged.problems)
    files = {span.file for shard in plan.shards for span in shard.spans}
    return {
        "format": FORMAT,
        "model": dict(about),
        "corpus": {
            "hash": corpus_hash(merged.digests),
            "files": len(files),
            "bytes": plan.size,
            "documents": merged.documents,
            "passages": merged.passages,
            "tokens": merged.tokens,
        },
        "settings": asdict(settings),
        "fingerprint": plan.fingerprint,
        "shards": len(plan.shards),
        "versions": {"attnscope": __version__, "torch": torch.__version__},
        "seeds": {"sample": settings.seed},
        "examples": {"top": TOP, "sample": SAMPLE},
        "accuracy": ACCURACY,
        "statistics": {name: {**asdict(bins), "bins": len(bins)} for name, bins in STATISTICS.items()},
        "problems": {"count": problems.number, "first": [problem._asdict() for problem in problems.first]},
    }


def corpus_hash(digests: Mapping[int, str]) -> str:
    """Of what was read, shard by shard: the same corpus in shards of another size has another hash.

    >>> corpus_hash({0: "ab", 1: "cd"}) == corpus_hash({1: "cd", 0: "ab"}) != corpus_hash({0: "cd", 1: "ab"})
    True
    """
    text = "".join(f"{shard} {digest}\n" for shard, digest in sorted(digests.items()))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
