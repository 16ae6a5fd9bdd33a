"""Experiments as pages in Markdown: each with its tables, figures and verdicts, and one page of what is printed wrong.

In: results, and the experiments' own words. Out: text. `scripts/make_labs.py` writes the pages of the docs with these.
Does not know: files. Memory: the text.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnscope.downloads import describe
from attnscope.labs.catalogue import experiment, heading, introduction, parts, question
from attnscope.labs.claims import CLAIMS, SOURCES
from attnscope.labs.exercise import task
from attnscope.labs.exercises import NAMES as EXERCISES
from attnscope.labs.result import Figure, Result, Table, shown
from attnscope.labs.verdicts import Decision, Verdict


def page(name: str, found: Sequence[Result], *, images: str) -> str:
    """The page of one experiment; `found` holds what came of each of its parts, `images` where its figures are."""
    module = experiment(name)
    blocks = [f"# {question(module)}", introduction(module)]
    if found and found[-1].models:
        blocks.append(models_line(found[-1].models))
    decisions = [decision for result in found for decision in result.decisions]
    if decisions:
        rows = [(f"{d.claim}. {CLAIMS[d.claim].text}", _verdict(d)) for d in decisions]
        blocks += ["## Verdicts", _rows(("claim", "verdict"), rows)]
    for part, result in zip(parts(module), found, strict=True):
        blocks += [f"## {heading(part.__name__)}", inspect.getdoc(part) or ""]
        blocks += [block for finding in result.findings for block in _blocks(finding, images)]
    blocks += [
        "## Run it",
        f"```bash\nattnscope lab run {name} --out results    # this page's numbers: --size small --seed 0\n"
        f"attnscope lab notebook {name}             # the same, cell by cell\n```",
        f"The experiment is one file: [{name}.py](../../src/attnscope/labs/experiments/{name}.py).",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def models_line(models: Sequence[Mapping[str, Any]]) -> str:
    """Which trained models the numbers of a page were measured with."""
    named = "; ".join(f"*{describe(model['name'], model['hash'])}* (`{model['hash'][:19]}`)" for model in models)
    return f"Trained model: {named}."


def errata(results: Iterable[Mapping[str, Any]]) -> str:
    """What the texts say and what was measured, wherever a claim does not simply hold; from results as JSON."""
    results = list(results)
    found = {claim["claim"]: (claim, result["lab"]) for result in results for claim in result["claims"]}
    models = {model["hash"]: model for result in results for model in result["models"]}
    decided = [found[claim] for claim in CLAIMS if claim in found]
    blocks = [
        "# Errata: what is printed, and what is measured",
        "Every claim below stands in one of five texts on attention and does not simply hold. What holds is on the "
        "[pages of the labs](index.md). The texts, by the names of their files:",
        "\n".join(f"- `{source}`: {what}" for source, what in SOURCES.items()),
        *([models_line([*models.values()])] if models else []),
    ]
    for verdict in (Verdict.DOES_NOT_HOLD, Verdict.HOLDS_WHEN, Verdict.NOT_SHOWN):
        rows = [
            (
                f"{claim['claim']}. {claim['text']}",
                ", ".join(map(_number, claim["sources"])),
                f"{'Holds when ' + claim['when'] + '. ' if claim['when'] else ''}{claim['because']} [{lab}]({lab}.md)",
            )
            for claim, lab in decided
            if claim["verdict"] == verdict
        ]
        if rows:
            blocks += [f"## {str(verdict).capitalize()}", _rows(("what is said", "text", "what is measured"), rows)]
    return "\n\n".join(blocks) + "\n"


def index(results: Sequence[Mapping[str, Any]]) -> str:
    """The list of all experiments, with their questions and verdicts."""
    rows = [
        (
            f"[{result['lab']}]({result['lab']}.md)",
            result["question"],
            _verdicts(result["claims"]),
        )
        for result in results
    ]
    listed = "\n".join(f"{heading(result['lab'])} <{result['lab']}>" for result in results)
    return "\n\n".join(
        [
            "# Labs",
            "What five texts teach about attention, run and judged. A lab asks one question, runs, and decides claims "
            "by numbers with stated margins; a number outside of its margin settles nothing, and the lab says so. "
            "[Errata](errata.md) lists what does not hold as printed. [Exercises](exercises.md) check themselves.",
            _rows(("lab", "question", "claims"), rows),
            f"```{{toctree}}\n:hidden:\n\nErrata <errata>\nexercises\n{listed}\n```",
        ]
    ) + "\n"  # fmt: skip


def _verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    """Claims in the order of their numbers, those with one verdict together."""
    listed = {
        verdict: ", ".join(
            name for name in CLAIMS for claim in claims if (claim["claim"], claim["verdict"]) == (name, verdict)
        )
        for verdict in Verdict
    }
    words = {verdict: "holds with a condition" if verdict is Verdict.HOLDS_WHEN else verdict for verdict in Verdict}
    return "; ".join(f"**{words[verdict]}** {names}" for verdict, names in listed.items() if names) or "none"


def exercises() -> str:
    """The list of exercises, each with its task."""
    blocks = [
        "# Exercises",
        "An exercise is a file that you fill in. The checker says in words what is wrong with an answer, and never "
        "what would be right; hints come one at a time.",
        "```bash\nattnscope lab exercise causal_mask mask.py    # writes the file to begin with\n"
        "attnscope lab check mask.py\nattnscope lab hint mask.py\n```",
    ]
    for name in EXERCISES:
        title, _, rest = task(name).partition("\n")
        blocks += [f"## {title.rstrip('.')}", f"`attnscope lab exercise {name}`", rest.strip()]
    return "\n\n".join(blocks) + "\n"


def _blocks(finding: Table | Figure | Decision, images: str) -> list[str]:
    if isinstance(finding, Figure):
        return [f"![{finding.caption}]({images}/{finding.name}.png)", f"*{finding.caption}*"]
    if isinstance(finding, Table):
        rows = _rows(finding.columns, list(finding.lines()), finding.are_numbers)
        return [f"**{finding.title}**", rows, finding.note]
    sources = ", ".join(_number(source) for source in CLAIMS[finding.claim].sources)
    rows = [(number.name, shown(number.value), number.margin) for number in finding.numbers]
    return [
        f"> **Claim {finding.claim}** ([text](errata.md) {sources}): {CLAIMS[finding.claim].text}\n>\n"
        f"> {_verdict(finding)}. {finding.because}",
        _rows(("what decides", "measured", "margin"), rows, (False, True, False)),
    ]


def _number(source: str) -> str:
    """The number that the name of a text begins with."""
    return f"`{source.partition('_')[0]}`"


def _verdict(decision: Decision) -> str:
    """The verdict in bold, and its condition."""
    return f"**{str(decision.verdict).capitalize()}**{decision.words.removeprefix(decision.verdict)}"


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]], are_numbers: Sequence[bool] = ()) -> str:
    sides = ["---:" if is_number else "---" for is_number in are_numbers] or ["---"] * len(columns)
    lines = [columns, sides, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
