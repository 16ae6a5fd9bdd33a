"""Write the result and the picture of docs/stories/dials.md from two surveys of SmolLM2.

In: the folders of two finished surveys. Out: benchmarks/results/story_dials_<date>.md, docs/images/stories/dials. The
page itself is written by hand; tests/project/test_stories.py compares its numbers with the result.

Usage: .venv/bin/python scripts/make_dials.py PROSE PLAYS    (seconds; the page says how to make the surveys)
"""

from __future__ import annotations

import datetime
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from attnscope.bench.report import Table, write
from attnscope.figures import lines
from attnscope.heads import HeadTable
from attnscope.survey import Survey, compare, open_survey

ROOT = Path(__file__).resolve().parents[1]
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images" / "stories" / "dials"

FORMATS = ("previous", "self", "duplicate", "induction")
LEAST = 0.3  # of a mean, for a head to be one of a kind
DIAL, SWITCH = (("blocks.16.attention", 0, "previous"), ("blocks.18.attention", 6, "induction"))
REST = ("blocks.18.attention", 6, "sink")  # what the switch does otherwise
EDGES = np.linspace(0.0, 1.0, 21)
MAX_CHANGED = 8


def texts(*surveys: Survey) -> Table:
    """What was read."""
    table = Table(
        title="texts",
        comparison="`attnscope survey run .cache/models/smollm2-135m FILE --out FOLDER`",
        columns=("file", "bytes", "tokens", "passages"),
    )
    for survey in surveys:
        corpus = survey.manifest["corpus"]
        (source,) = survey.manifest["settings"]["sources"]
        table.add(Path(source).name, *(f"{corpus[name]:,}" for name in ("bytes", "tokens", "passages")))
    return table


def kinds(prose: Survey, plays: Survey) -> Table:
    """Every head that has much of what names its kind: its mean, and how its queries are split, in both texts."""
    table = Table(
        title="dials and switches",
        comparison=f"heads whose mean over all queries of the prose is at least {LEAST}; errors are over passages. "
        "split: variance of the queries / largest possible at their mean; 0 all alike, 1/3 spread evenly, 1 all or "
        "nothing.",
        columns=("kind", "head", "prose: mean", "error", "5 %", "half", "95 %", "split", "plays: mean", "split"),
    )
    numbers = [prose.table(number) for number in ("mean", "standard_error", "p05", "p50", "p95")]
    columns = [*numbers, prose.split(), plays.heads, plays.split()]
    for kind in FORMATS:
        for head in strongest(prose.heads, kind):
            cells = [f"{float(column[kind][head]):.3f}" for column in columns]
            table.add(kind, prose.heads.head_names[head], *cells)
    return table


def strongest(heads: HeadTable, kind: str) -> list[int]:
    """The heads with at least `LEAST` of a kind, the most first."""
    found = heads[kind]
    return [head for head in found.argsort(descending=True).tolist() if found[head] >= LEAST]


def passages(survey: Survey) -> Table:
    """What single passages would have said of the head that is a switch."""
    table = Table(
        title="one passage at a time",
        comparison="means of induction of 18.6 over single passages of the prose: one from the middle of each tenth, "
        "the least first",
        columns=tuple(str(tenth) for tenth in range(1, 11)),
    )
    found = [example for example in survey.examples(*SWITCH) if example.kind == "decile"]
    table.add(*(f"{example.score:.3f}" for example in found))
    return table


def shares(survey: Survey) -> Table:
    """How the queries of a dial and of a switch are distributed, in tenths of the way from 0 to 1."""
    tenths = EDGES[::2]
    table = Table(
        title="where the queries are",
        comparison="percent of the queries of the prose by their weight; for induction, of those whose token has been "
        "there before",
        columns=("head", *(f"{low:.1f} to {high:.1f}" for low, high in pairwise(tenths))),
    )
    for layer, head, statistic in (DIAL, SWITCH, REST):
        cells = survey.histogram(layer, head, statistic).rebin(tenths)
        table.add(f"{survey.heads.head_name(layer, head)} {statistic}", *(f"{100 * cell:.1f}" for cell in cells))
    return table


def changes(prose: Survey, plays: Survey) -> Table:
    """What differs most between the texts."""
    found = compare(prose, plays)
    intervals = (
        f"{len(found.changed_heads):,} of {len(prose.heads):,} heads differ in some statistic; "
        f"{found.num_comparisons:,} intervals that hold together with 95 %"
    )
    table = Table(
        title="from prose to plays",
        comparison=f"{found.inconclusive or intervals}; the largest changes of each kind",
        columns=("kind", "head", "prose", "plays", "change", "from", "to"),
    )
    for kind in (*FORMATS, "sink"):
        for row, _ in zip(found.rows(kind, include_unchanged=True), range(MAX_CHANGED), strict=False):
            numbers = (row.before, row.after, row.change, row.low, row.high)
            table.add(kind, prose.heads.head_name(row.layer, row.head), *(f"{number:.3f}" for number in numbers))
    return table


def draw(survey: Survey) -> None:
    """The queries of a dial in one hump, those of a switch at both ends."""
    curves = {
        f"{survey.heads.head_name(layer, head)} {statistic}": 100
        * survey.histogram(layer, head, statistic).rebin(EDGES)
        for layer, head, statistic in (DIAL, SWITCH)
    }
    figure = lines(
        ((EDGES[:-1] + EDGES[1:]) / 2).tolist(),
        {name: cells.tolist() for name, cells in curves.items()},
        xlabel="weight of one query on what names its head",
        ylabel="percent of queries",
    )
    figure.savefig(IMAGES / "queries.png")


def main(prose: str, plays: str) -> None:
    """Open both, write, and draw."""
    one, other = open_survey(prose), open_survey(plays)
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"story_dials_{datetime.date.today().isoformat()}.md"
    found = [texts(one, other), kinds(one, other), shares(one), passages(one), changes(one, other)]
    command = ".venv/bin/python scripts/make_dials.py surveys/prose surveys/plays"
    write(path, "story dials", command, found, one.manifest["model"])
    draw(one)
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(*sys.argv[1:])
