"""Run labs and write their pages, figures and results: docs/labs, docs/images/labs, benchmarks/results/labs.

The claims of the interactive page, web/src/steps/claims.ts, are written too; build the page again when they change.

Usage: .venv/bin/python scripts/make_labs.py [--lists | --seeds SEED ...] [--] [NAME ...]    (all take some minutes)

Without --seeds, labs run with seed 0, the one of the pages. With --seeds, they run with these seeds instead, and only
their verdicts and measured values are written, to benchmarks/results/labs/seeds: docs/labs/verdicts.md is made of them.
With --lists, no lab runs: the claims, and the pages of labs, verdicts and exercises, are made again from the results.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnscope.labs import NAMES, Lab
from attnscope.labs.catalogue import load_experiment, run_parts, title
from attnscope.labs.pages import errata, exercises, index, page, verdicts
from attnscope.labs.replication import summarize

ROOT = Path(__file__).resolve().parents[1]
PAGES, IMAGES, RESULTS = ROOT / "docs/labs", ROOT / "docs/images/labs", ROOT / "benchmarks/results/labs"
SEEDS = RESULTS / "seeds"
STEPS = ROOT / "web/src/steps/claims.ts"
STEP_CLAIMS = {
    "products": "38",
    "scale": "2",
    "mask": "7",
    "exponential": "1b",
    "weight": "5",
    "values": "45",
    "output": "12",
    "next": "28",
}
"""The steps of one attention weight, and the claim that the page shows below each."""


def new_lab(name: str, seed: int = 0) -> Lab:
    """Return a lab that prints its steps."""
    return Lab(
        name, title(load_experiment(name)), seed=seed, step=lambda what: print(f"{name}: {what}", file=sys.stderr)
    )


def make(name: str) -> None:
    """Run one lab, and write its page, figures and result."""
    lab = new_lab(name)
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


def replicate(name: str, seed: int) -> None:
    """Run one lab with another seed, and write its verdicts and measured values, whatever they are."""
    lab = new_lab(name, seed)
    for _ in run_parts(lab):
        pass
    runs = {run["seed"]: run for run in read_seeds(name)} | {seed: summarize(lab.result.to_json())}
    write(SEEDS / f"{name}.json", json.dumps([runs[key] for key in sorted(runs)], indent=1) + "\n")


def read_seeds(name: str) -> list[dict[str, Any]]:
    """Return the runs of a lab with other seeds."""
    path = SEEDS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def claims_module(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the module of the claims that the page of steps shows, from results as JSON."""
    found = {claim["claim"]: (claim, result["lab"]) for result in results for claim in result["claims"]}
    lines = []
    for step, name in STEP_CLAIMS.items():
        claim, lab = found[name]
        verdict = f"{claim['verdict']} {claim['condition']}".strip()
        fields = {"claim": name, "text": claim["text"], "verdict": verdict, "lab": lab}
        values = ", ".join(f"{key}: {json.dumps(value)}" for key, value in fields.items())
        lines.append(f"  {step}: {{ {values} }},\n")
    return (
        "/** Claims of texts about attention, with the verdicts of labs; written by scripts/make_labs.py. */\n\n"
        'import type { StepName } from "./predictions";\n\n'
        "/** A verdict includes its condition, if it has one. */\n"
        "export const CLAIMS: Readonly<Record<StepName, Readonly<Record<"
        '"claim" | "text" | "verdict" | "lab", string>>>> = {\n' + "".join(lines) + "};\n"
    )


def write(path: Path, text: str) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", default=NAMES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[], metavar="SEED")
    parser.add_argument("--lists", action="store_true")
    arguments = parser.parse_args()
    for chosen in () if arguments.lists else arguments.names:
        for number in arguments.seeds:
            replicate(chosen, number)
        if not arguments.seeds:
            make(chosen)
    results = [json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in NAMES]
    write(PAGES / "errata.md", errata(results))
    write(PAGES / "index.md", index(results))
    write(PAGES / "verdicts.md", verdicts(results, [read_seeds(name) for name in NAMES]))
    write(PAGES / "exercises.md", exercises())
    write(STEPS, claims_module(results))
