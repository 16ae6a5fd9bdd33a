"""Run labs and write their pages, figures and results: docs/labs, docs/images/labs, benchmarks/results/labs.

Usage: .venv/bin/python scripts/make_labs.py [NAME ...]    (all of them take some minutes)
"""

import json
import sys
from pathlib import Path

from attnscope.labs import NAMES, Lab
from attnscope.labs.catalogue import load_experiment, run_parts, title
from attnscope.labs.pages import errata, exercises, index, page

ROOT = Path(__file__).resolve().parents[1]
PAGES, IMAGES, RESULTS = ROOT / "docs/labs", ROOT / "docs/images/labs", ROOT / "benchmarks/results/labs"


def make(name: str) -> None:
    """Run one lab, and write its page, figures and result."""
    lab = Lab(name, title(load_experiment(name)), step=lambda what: print(f"{name}: {what}", file=sys.stderr))
    found = list(run_parts(lab))
    if lab.result.inconclusive:
        sys.exit(f"{name}: inconclusive: {', '.join(one.claim for one in lab.result.inconclusive)}")
    for old in (IMAGES / name).glob("*.png"):
        old.unlink()
    for figure in lab.result.figures:
        (IMAGES / name).mkdir(parents=True, exist_ok=True)
        (IMAGES / name / f"{figure.name}.png").write_bytes(figure.png())
    write(PAGES / f"{name}.md", page(name, found, images=f"../images/labs/{name}"))
    write(RESULTS / f"{name}.json", json.dumps(lab.result.to_json(), indent=1) + "\n")


def write(path: Path, text: str) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        make(chosen)
    results = [json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in NAMES]
    write(PAGES / "errata.md", errata(results))
    write(PAGES / "index.md", index(results))
    write(PAGES / "exercises.md", exercises())
