"""Converts results of labs to documentation pages in Markdown, for `scripts/make_labs.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnscope.downloads import describe
from attnscope.labs.catalogue import heading, introduction, load_experiment, parts, title
from attnscope.labs.claims import CLAIMS, SOURCES
from attnscope.labs.exercise import task
from attnscope.labs.exercises import EFFORT
from attnscope.labs.result import Figure, Result, Table, format_cell
from attnscope.labs.verdicts import Decision, Verdict


def page(name: str, results: Sequence[Result], *, images: str) -> str:
    """Return the page of a lab, from the result of each of its parts; `images` is the folder of its figures."""
    module = load_experiment(name)
    blocks = [
        f"# {title(module)}",
        introduction(module),
        f"```bash\nattnscope lab run {name} --out results    # these numbers: --size small --seed 0, the defaults\n"
        f"attnscope lab notebook {name}             # the same code, to run cell by cell\n```",
        f"All code is in [{name}.py](../../src/attnscope/labs/experiments/{name}.py).",
    ]
    if results and results[-1].models:
        blocks.append(models_line(results[-1].models))
    decisions = [decision for result in results for decision in result.decisions]
    if decisions:
        rows = [(f"{d.claim}. {CLAIMS[d.claim].text}", _verdict(d)) for d in decisions]
        blocks += ["## Verdicts", _rows(("claim", "verdict"), rows)]
    for part, result in zip(parts(module), results, strict=True):
        blocks += [f"## {heading(part.__name__)}", inspect.getdoc(part) or ""]
        blocks += [block for finding in result.findings for block in _blocks(finding, images)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def models_line(models: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence that names the trained models of a page, with their precision."""
    named = "; ".join(f"*{describe(model['name'], model['hash'])}* (`{model['hash'][:19]}`)" for model in models)
    return f"Trained model: {named}, converted to float32."


def errata(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the page of all claims that do not hold unconditionally, from results as JSON."""
    results = list(results)
    found = {claim["claim"]: (claim, result["lab"]) for result in results for claim in result["claims"]}
    models = {model["hash"]: model for result in results for model in result["models"]}
    decided = [found[claim] for claim in CLAIMS if claim in found]
    blocks = [
        "# Errata of five texts about attention",
        "This page lists the claims of five texts about attention that do not hold, or hold only under a condition. "
        "Use it to check what you have read. The [labs](index.md) list all claims and show how each is measured. The "
        "texts, by file name:",
        "\n".join(f"- `{source}`: {what}" for source, what in SOURCES.items()),
        *([models_line([*models.values()])] if models else []),
    ]
    for verdict in (Verdict.DOES_NOT_HOLD, Verdict.HOLDS_WHEN, Verdict.NOT_SHOWN):
        rows = [
            (
                f"{claim['claim']}. {claim['text']}",
                ", ".join(map(_number, claim["sources"])),
                f"{'Holds when ' + claim['condition'] + '. ' if claim['condition'] else ''}{claim['reason']} "
                f"[{lab}]({lab}.md)",
            )
            for claim, lab in decided
            if claim["verdict"] == verdict
        ]
        if rows:
            blocks += [f"## {str(verdict).capitalize()}", _rows(("claim", "text", "measured"), rows)]
    return "\n\n".join(blocks) + "\n"


def index(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the page that lists all labs, with their titles and verdicts."""
    rows = [
        (
            f"[{result['lab']}]({result['lab']}.md)",
            result["title"],
            _verdicts(result["claims"]),
        )
        for result in results
    ]
    listed = "\n".join(f"{heading(result['lab'])} <{result['lab']}>" for result in results)
    return "\n\n".join(
        [
            "# Labs",
            "Learn how attention works by running experiments. Each lab tests claims of five texts about attention. "
            "It prints tables and figures, and a verdict on each claim. A verdict rests on measurements with stated "
            "intervals; if a measurement is outside its interval, the run is inconclusive. [Errata](errata.md) lists "
            "the claims that do not hold. [Exercises](exercises.md) let you implement the ideas and check your code.",
            "```bash\nattnscope lab list                        # all labs and exercises\n"
            "attnscope lab run scaling                 # run one; `all` runs every lab\n"
            "attnscope lab notebook scaling            # write it as a Jupyter notebook\n```",
            _rows(("lab", "topic", "claims"), rows),
            f"```{{toctree}}\n:hidden:\n\nErrata <errata>\nexercises\n{listed}\n```",
        ]
    ) + "\n"  # fmt: skip


def _verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return the claims of a lab, grouped by verdict."""
    listed = {
        verdict: ", ".join(
            name for name in CLAIMS for claim in claims if (claim["claim"], claim["verdict"]) == (name, verdict)
        )
        for verdict in Verdict
    }
    names_of_verdicts = {
        verdict: "holds with a condition" if verdict is Verdict.HOLDS_WHEN else verdict for verdict in Verdict
    }
    return (
        "; ".join(f"**{names_of_verdicts[verdict]}** {names}" for verdict, names in listed.items() if names) or "none"
    )


def exercises() -> str:
    """Return the page of all exercises with their tasks."""
    titles = {name: task(name).partition("\n")[0].rstrip(".") for name in EFFORT}
    rows = [
        (f"`{name}`", titles[name], f"[{lesson}](../learn/{lesson}.md)", difficulty, str(minutes))
        for name, (lesson, difficulty, minutes) in EFFORT.items()
    ]
    blocks = [
        "# Exercises",
        "Implement the parts of attention yourself, and get feedback on your code. An exercise is a Python file with "
        "functions to fill in. The checker describes what is wrong with an answer without giving the solution. Hints "
        "come one at a time. `solution` prints our code once yours is correct.",
        "```bash\nattnscope lab exercise causal_mask mask.py    # write the starter file\n"
        "attnscope lab check mask.py\nattnscope lab hint mask.py\nattnscope lab solution mask.py\n```",
        "The exercises build on each other in this order. The [lesson](../learn/index.md) is what to read first. "
        "Minutes are estimates.",
        _rows(("exercise", "task", "lesson", "difficulty", "minutes"), rows, (False, False, False, False, True)),
    ]
    for name, heading_of_task in titles.items():
        rest = task(name).partition("\n")[2]
        blocks += [f"## {heading_of_task}", f"`attnscope lab exercise {name}`", rest.strip()]
    return "\n\n".join(blocks) + "\n"


def _blocks(finding: Table | Figure | Decision, images: str) -> list[str]:
    if isinstance(finding, Figure):
        return [f"![{finding.caption}]({images}/{finding.name}.png)", f"*{finding.caption}*"]
    if isinstance(finding, Table):
        rows = _rows(finding.columns, list(finding.text_rows()), finding.is_numeric)
        return [f"**{finding.title}**", rows, finding.note]
    claim = CLAIMS[finding.claim]
    sources = ", ".join(_number(source) for source in claim.sources) + (f"; {claim.section}" if claim.section else "")
    rows = [(one.name, format_cell(one.value), one.interval) for one in finding.measurements]
    return [
        f"> **Claim {finding.claim}** ([text](errata.md) {sources}): {claim.text}\n>\n"
        f"> {_verdict(finding)}. {finding.reason}",
        _rows(("measurement", "value", "expected"), rows, (False, True, False)),
    ]


def _number(source: str) -> str:
    """Return the number at the start of a file name."""
    return f"`{source.partition('_')[0]}`"


def _verdict(decision: Decision) -> str:
    """Return the verdict in bold, and its condition."""
    return f"**{str(decision.verdict).capitalize()}**{decision.text.removeprefix(decision.verdict)}"


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]], is_numeric: Sequence[bool] = ()) -> str:
    sides = ["---:" if is_number else "---" for is_number in is_numeric] or ["---"] * len(columns)
    lines = [columns, sides, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
