"""Converts results of labs to documentation pages in Markdown, for `scripts/make_labs.py`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnscope.labs.catalogue import heading, introduction, load_experiment, parts, title
from attnscope.labs.claims import CLAIMS, SOURCES
from attnscope.labs.exercise import task
from attnscope.labs.exercises import EFFORT
from attnscope.labs.replication import SeedSpread, seed_spreads
from attnscope.labs.result import Figure, Result, Table, format_cell
from attnscope.labs.verdicts import Decision, Verdict

INTERVALS = (
    "The expected intervals were set after measurements like these had been seen. They show that a verdict can be "
    "reproduced; they are not predictions."
)
SEEDS = "[All verdicts](verdicts.md) has means and standard errors over several seeds."
LESSONS = {
    "scaling": "division",
    "training_without_scaling": "division",
    "worked_examples": "dot_products",
    "masks": "masks",
    "multi_head_attention": "multi_head",
    "single_vs_two_heads": "multi_head",
    "positional_encoding": "positions",
    "sequence_reversal": "positions",
    "length_extrapolation": "positions",
    "attention_cost": "cost",
    "path_length": "recurrence",
    "sliding_window": "cost",
    "linear_attention": "cost",
    "hopfield": "cost",
    "normalization": "block",
    "transformer_block": "block",
    "training_without_parts": "block",
    "untrained_heads": "trained_heads",
    "trained_heads": "trained_heads",
    "exposure_bias": "gpt",
    "mini_gpt": "gpt",
}
"""The lesson that prepares each lab."""
STANDARD = {
    Verdict.HOLDS: "The claim is right as stated, in the setting that the text describes.",
    Verdict.HOLDS_WHEN: "The claim is right under a condition that the text does not state, and a measurement shows "
    "that it is wrong, or without effect, outside that condition.",
    Verdict.DOES_NOT_HOLD: "The claim is wrong as stated, in the setting that the text describes.",
    Verdict.NOT_SHOWN: "The evidence that the text gives does not support the claim, whether it is right or wrong.",
}
"""What each verdict means."""
FIGURES = (
    "A printed figure is right if it is the measured one, rounded to the printed digits. A figure introduced by "
    '"about" may differ by 5%. Times and their ratios depend on the machine and may differ by a factor of 1.5. If a '
    "text makes a statement and prints figures for it, they are separate claims."
)


def page(name: str, results: Sequence[Result], *, images: str) -> str:
    """Return the page of a lab, from the result of each of its parts; `images` is the folder of its figures."""
    module = load_experiment(name)
    blocks = [
        f"# {title(module)}",
        introduction(module),
        f"```bash\nattnscope lab run {name} --out results    # these numbers: --size small --seed 0, the defaults\n"
        f"attnscope lab notebook {name}             # the same code, to run cell by cell\n```",
        f"All code is in [{name}.py](../../src/attnscope/labs/experiments/{name}.py). {lesson_line(name)}",
    ]
    if results and results[-1].models:
        blocks.append(models_line(results[-1].models))
    decisions = [decision for result in results for decision in result.decisions]
    if decisions:
        rows = [(f"{d.claim}. {CLAIMS[d.claim].text}", _verdict(d)) for d in decisions]
        blocks += ["## Verdicts", _rows(("claim", "verdict"), rows), f"{INTERVALS} {SEEDS}"]
    for part, result in zip(parts(module), results, strict=True):
        blocks += [f"## {heading(part.__name__)}", inspect.getdoc(part) or ""]
        blocks += [block for finding in result.findings for block in _blocks(finding, images)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def lesson_line(name: str) -> str:
    """Return the sentence that links the lesson of a lab."""
    return f"The lesson is [{LESSONS[name]}](../learn/{LESSONS[name]}.md)."


def models_line(models: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence that names the trained models of a page, with their precision."""
    named = "; ".join(
        f"*{model['description']}* (`{model['hash'][:19]}`), computed in {model['dtype']}" for model in models
    )
    return f"Trained model: {named}."


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


def verdicts(results: Sequence[Mapping[str, Any]], other_seeds: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Return the page of all claims with their measurements, and how they vary over seeds.

    Args:
        results: The result of each lab as JSON, with the seed of the pages.
        other_seeds: For each lab, its runs with other seeds.
    """
    blocks = [
        "# All verdicts",
        "This page lists the verdicts of all labs, and how much their measurements vary. The random seeds of a "
        "lab are named above its table. The value is that of seed 0, which the pages of the labs show. The mean is of "
        "all seeds, with its standard error. The deviation is the standard deviation of a single run; it is 0 where "
        "nothing is random. The margin is the distance from the value to the nearest end of the expected interval, in "
        "deviations. `pytest tests/labs/test_replication.py` fails if a verdict changes with the seed.",
        INTERVALS,
        "```bash\n.venv/bin/python scripts/make_labs.py --seeds 1 2 3 4 -- scaling    # run a lab with other seeds\n"
        "attnscope lab run scaling --seed 5                                # or look at one run\n```",
        "## Standard",
        _rows(("verdict", "meaning"), [(f"**{verdict}**", meaning) for verdict, meaning in STANDARD.items()]),
        FIGURES,
    ]
    for result, others in zip(results, other_seeds, strict=True):
        if not result["claims"]:
            continue
        runs = [result, *others]
        spreads = seed_spreads(runs)
        seeds = ", ".join(str(run["seed"]) for run in runs)
        blocks += [f"## {heading(result['lab'])}", f"[{result['lab']}]({result['lab']}.md), seeds {seeds}"]
        rows = []
        for claim in result["claims"]:
            verdict = f"**{claim['verdict']}** {claim['condition']}".strip()
            for at, one in enumerate(claim["measurements"]):
                spread = spreads[claim["claim"], one["name"]]
                rows.append(
                    (
                        f"{claim['claim']}. {claim['text']}" if not at else "",
                        verdict if not at else "",
                        one["name"],
                        format_cell(one["value"]),
                        *_spread_cells(spread),
                        one["interval"],
                        _margin(one, spread.deviation),
                    )
                )
        columns = (
            "claim",
            "verdict",
            "measurement",
            "value",
            "mean ± standard error",
            "deviation",
            "expected",
            "margin",
        )
        blocks.append(_rows(columns, rows, (False, False, False, True, True, True, False, True)))
    return "\n\n".join(blocks) + "\n"


def _spread_cells(spread: SeedSpread) -> tuple[str, str]:
    """Return the mean with its standard error, and the deviation, with two digits of each error."""
    if math.isnan(spread.deviation):
        return "", ""
    error, deviation = (format_cell(float(f"{number:.2g}")) for number in (spread.mean.error, spread.deviation))
    return f"{format_cell(spread.mean.value)} ± {error}", deviation


def _margin(measurement: Mapping[str, Any], deviation: float) -> str:
    """Return the distance to the nearest end of the interval in deviations, or nothing without randomness."""
    ends = [end for end in (measurement.get("low"), measurement.get("high")) if end is not None]
    if not ends or not deviation > 0:
        return ""
    return f"{min(abs(measurement['value'] - end) for end in ends) / deviation:.1f}"


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
            "the claims that do not hold, and [All verdicts](verdicts.md) the standard errors over several seeds. The "
            "intervals were set after such measurements had been seen: they show that a verdict can be reproduced. "
            "[Exercises](exercises.md) let you implement the ideas and check your code.",
            "```bash\nattnscope lab list                        # all labs and exercises\n"
            "attnscope lab run scaling                 # run one; `all` runs every lab\n"
            "attnscope lab notebook scaling            # write it as a Jupyter notebook\n```",
            _rows(("lab", "topic", "claims"), rows),
            f"```{{toctree}}\n:hidden:\n\nErrata <errata>\nAll verdicts <verdicts>\nexercises\n{listed}\n```",
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
        "attnscope lab check mask.py\nattnscope lab hint mask.py 1                  # then 2 and 3\n"
        "attnscope lab solution mask.py\n```",
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
