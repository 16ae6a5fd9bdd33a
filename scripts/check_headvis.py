"""Read a HeadVis tree of `attnscope survey export` with the loaders of Neuronpedia: scripts/check_headvis.py CHECKOUT.

CHECKOUT is a checkout of the repository hijohnnylin/neuronpedia. Its loaders run as they are, but for the connection
to a database: the rows that they would insert are compared with the files of the tree.
"""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock

ROOT = Path(__file__).resolve().parents[1]
LOADERS = "utils/neuronpedia-utils/neuronpedia_utils/headvis"
ABSENT = ("dotenv", "psycopg2", "psycopg2.extras", "cuid2")
"""Packages for a database and its keys."""
PASSAGES = 14
METRICS = {
    "self_attention_score": "selfAttentionScore",
    "prev_token_score": "prevTokenScore",
    "pattern_entropy": "patternEntropy",
    "qk_distance": "qkDistance",
    "qk_distance_variance": "qkDistanceVariance",
    "induction_score": "inductionScore",
}
AGGREGATES = {
    "qk_distance_histogram": "qkDistanceHistogram",
    "top_query_tokens": "topQueryTokens",
    "top_key_tokens": "topKeyTokens",
    "histogram": "activationHistogram",
    "statistics": "headStatistics",
}
SEQUENCE = {
    "interval": "interval",
    "tokens": "tokens",
    "attention_indices": "attentionIndices",
    "attention_values": "attentionValues",
    "max_activation": "maxActivation",
}

Rows = dict[tuple[int, int], list[dict[str, Any]]]
"""Rows by layer and head, each by the names of its columns."""


def export(folder: Path) -> Path:
    """Write a tree of a small model with random parameters."""
    from attnscope.survey import export_headvis, run_survey
    from tests.survey.survey_process import SMALL, write_model, write_text

    model, text = write_model(folder / "model"), write_text(folder / "lines.txt", 1500)
    return export_headvis(
        run_survey(model, text, folder / "survey", **SMALL), folder / "exports", num_passages=PASSAGES
    )


def run_loader(path: Path, exports: Path) -> Rows:
    """The rows that a loader inserts."""
    rows: list[tuple[Any, ...]] = []
    connection = MagicMock()
    cursor = connection.cursor.return_value.__enter__.return_value
    cursor.fetchall.return_value, cursor.fetchone.return_value = [], (0,)
    sys.modules.update({package: MagicMock() for package in ABSENT})
    sys.modules["psycopg2"].connect.return_value = connection
    extras: Any = sys.modules["psycopg2.extras"]
    extras.Json = lambda value: value
    extras.execute_values = lambda _cursor, _query, batch, **_options: rows.extend(batch)
    sys.path.insert(0, str(path.parent))
    spec = spec_from_file_location(path.stem.replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    loader: Any = module_from_spec(spec)
    spec.loader.exec_module(loader)
    sys.argv = [path.name, str(exports)]
    loader.main()
    found: Rows = {}
    for values in rows:
        row = dict(zip(loader.COLUMNS, values, strict=True))
        found.setdefault((row["layer"], row["headIndex"]), []).append(row)
    return found


def compare(tree: Path, metrics: Rows, sequences: Rows) -> int:
    """Compare all rows with the files; return the number of sequences."""
    scatter = json.loads((tree / "scatter_data.json").read_text())
    assert {(one["layer"], one["head"]) for one in scatter} == metrics.keys() == sequences.keys()
    for one in scatter:
        place = one["layer"], one["head"]
        content = json.loads((tree / "heads" / f"L{place[0]}H{place[1]}.json").read_text())
        (row,) = metrics[place]
        assert {name: row[column] for name, column in METRICS.items()} == {name: one[name] for name in METRICS}
        assert {name: row[column] for name, column in AGGREGATES.items()} == {
            name: content[name] for name in AGGREGATES
        }
        for found, written in zip(sequences[place], content["sequences"], strict=True):
            assert {name: found[column] for name, column in SEQUENCE.items()} == {
                name: written[name] for name in SEQUENCE
            }
    return sum(map(len, sequences.values()))


def main() -> int:
    """Export, read and compare."""
    if len(sys.argv) != 2 or not (loaders := Path(sys.argv[1]) / LOADERS).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT))
    with TemporaryDirectory() as place:
        tree = export(Path(place))
        exports = Path(place) / "exports"
        metrics, sequences = (
            run_loader(loaders / f"load-head-{name}.py", exports) for name in ("metrics", "sequences")
        )
        print(f"{len(metrics)} heads and {compare(tree, metrics, sequences)} sequences are read as they were written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
