"""`attnscope watch RUN [OTHER]`: the heads of a training run that is watched, or of two runs side by side.

In a terminal, the table follows the run until Ctrl-C; in a pipe, it is printed once, as tab-separated lines.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from attnscope.cli.commands import Options, argument, command, option
from attnscope.cli.json_output import print_json
from attnscope.cli.survey_tables import BAR_CHARACTERS, PIPE_WIDTH, clean, make_table, print_table, print_text
from attnscope.errors import SettingError
from attnscope.formatting import format_count

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from attnscope.telemetry.alerts import Alert
    from attnscope.telemetry.run_reader import HeadName, RunReader
    from attnscope.telemetry.run_summary import HeadSummary

DEFAULT_TOP = 10  # heads
LIVE_ALERTS, PRINTED_ALERTS = 5, 20
COLLAPSED = 0.5  # share of the queries of a head
POLL_SECONDS = 1.0
TREND_COLUMNS = 8, 24
NOT_FINITE = "!"


@command(
    "watch",
    about="show a watched training run, live in a terminal",
    description="Show the heads with the largest attention logits of a training run that is watched (attnscope.watch "
    "with a folder), and its alerts; with OTHER, two runs side by side. A terminal follows the run until Ctrl-C.",
    examples=[
        "attnscope watch runs/first",
        "attnscope watch runs/first runs/second",
        "attnscope watch runs/first --json",
    ],
)
@argument("run", about="the folder that the run is written to")
@argument("other", required=False, about="the folder of another run, to compare")
@option("--top", type=int, metavar="N", about=f"number of heads to show (default: {DEFAULT_TOP})")
@option("--once", is_flag=True, about="print once, and do not follow the run")
@option("--json", is_flag=True, about="print once, as JSON: all alerts, and all heads unless --top is given")
def watch(options: Options) -> None:
    """Print the state of a run, or follow it."""
    if options.top is not None and options.top < 1:
        raise SettingError(f"watch: --top must be at least 1, got {options.top}")
    from rich.console import Console

    from attnscope.telemetry.run_reader import RunReader

    runs = [RunReader(folder) for folder in (options.run, options.other) if folder is not None]
    for run in runs:
        run.update()
    if options.json:
        show_json(runs, options.top)
        return
    console = Console(highlight=False)
    top = options.top or DEFAULT_TOP
    if console.is_terminal and not console.is_dumb_terminal and not options.once:
        follow(runs, top, console)
        return
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for part in describe(runs, top, console, max_alerts=PRINTED_ALERTS):
        print_part(console, part)


class Part(NamedTuple):
    """A part of what is shown: some text, and perhaps a table."""

    text: str
    names: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()


def follow(runs: Sequence[RunReader], top: int, console: Console, wait: Callable[[float], object] = time.sleep) -> None:
    """Show the state of the runs whenever a step is measured, until Ctrl-C."""
    from rich.console import Group
    from rich.live import Live

    def render() -> RenderableType:
        parts = describe(runs, top, console, max_alerts=LIVE_ALERTS)
        return Group(*(one for part in parts for one in render_part(part)), "", "Ctrl-C stops")

    try:
        with Live(render(), console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
            while True:
                wait(POLL_SECONDS)
                if sum(run.update() for run in runs):  # all of them, not up to the first
                    live.update(render(), refresh=True)
    except KeyboardInterrupt:
        pass


def print_part(console: Console, part: Part) -> None:
    """Print a part on a terminal or in a pipe."""
    print_text(console, part.text)
    if part.rows:
        print_table(console, part.names, part.rows)


def render_part(part: Part) -> list[RenderableType]:
    """A part for a live display."""
    from rich.text import Text

    return [Text(part.text), *([make_table(part.names, part.rows)] if part.rows else [])]


def describe(runs: Sequence[RunReader], top: int, console: Console, *, max_alerts: int) -> list[Part]:
    """What to show of one run, or of two."""
    waiting = [f"{name_of(run)}: no step is measured yet" for run in runs if not run.steps]
    if waiting:
        return [Part("\n".join(waiting))]
    return describe_run(runs[0], top, console, max_alerts) if len(runs) == 1 else describe_two(runs, top, console)


def describe_run(run: RunReader, top: int, console: Console, max_alerts: int) -> list[Part]:
    """The worst heads of a run, the collapsed ones, and its alerts."""
    from attnscope.telemetry.run_summary import summarize_run

    heads, short = summarize_run(run), short_names(run)
    wide = console.width - 62
    names = ("head", "logit", "query", "key", "peak", "at_step", "entropy", "collapsed", "trend")
    rows = [
        (
            short[head.name],
            format_logit(head),
            *(format_position(head.statistics[name]) for name in ("max_query", "max_key")),
            head.peak,
            head.peak_step,
            head.statistics["entropy"],
            head.statistics["collapsed"],
            draw_trend(head, max(TREND_COLUMNS[0], min(TREND_COLUMNS[1], wide))),
        )
        for head in heads[:top]
    ]
    shown = f"the {len(rows)} of {len(heads)} heads with the largest logits at step {run.steps[-1]:,}:"
    return [
        Part(f"{describe_size(run)}\n\n{shown}", names, rows),
        Part(f"\n{describe_collapsed(heads, short)}\n\n{describe_count(run)}", *alert_table(run, short, max_alerts)),
    ]


def describe_two(runs: Sequence[RunReader], top: int, console: Console) -> list[Part]:
    """Two runs side by side: the heads that differ most, and the first alert of each run."""
    from attnscope.telemetry.run_summary import compare_runs

    found, short = compare_runs(*runs), short_names(runs[0])
    wide = (console.width - 58) // 2
    names = ("head", "logit", "other", "difference", "alert", "other's", "trend", "other's trend")
    rows = [
        (
            short[first.name],
            *(format_logit(head) for head in (first, second)),
            format_difference(head.difference),
            *("-" if one.first_alert is None else one.first_alert.step for one in (first, second)),
            *(draw_trend(one, max(TREND_COLUMNS[0], min(TREND_COLUMNS[1], wide))) for one in (first, second)),
        )
        for head in found.heads[:top]
        for first, second in [head]
    ]
    lines = [f"{label}: {describe_size(run)}" for label, run in zip(("run", "other"), runs, strict=True)]
    shown = (
        f"the {len(rows)} of {len(found.heads)} heads that differ most at step {found.step:,}, the last that both "
        "measured; alert: the step of the first"
    )
    return [
        Part("\n".join([*lines, "", f"{shown}:"]), names, rows),
        Part("\n" + "\n".join(f"{name_of(run)}: {describe_first_alert(run)}" for run in runs)),
    ]


def describe_size(run: RunReader) -> str:
    """The size of a run in one line."""
    layers = format_count(len({head.layer for head in run.heads}), "layer")
    heads, steps = format_count(len(run.heads), "head"), format_count(len(run.steps), "measured step")
    return f"{name_of(run)}: {heads} in {layers}, {steps}, the last is step {run.steps[-1]:,}"


def describe_collapsed(heads: Sequence[HeadSummary], short: dict[HeadName, str]) -> str:
    """The heads of which most queries attend to one key."""
    from attnscope.telemetry.statistics import LOW_ENTROPY

    found = sorted(
        (-head.statistics["collapsed"], short[head.name]) for head in heads if head.statistics["collapsed"] >= COLLAPSED
    )
    what = f"at least {COLLAPSED:.0%} of the queries have an entropy below {LOW_ENTROPY} nats"
    if not found:
        return f"no collapsed heads ({what})"
    listed = ", ".join(f"{name} ({-share:.0%})" for share, name in found[:DEFAULT_TOP])
    more = f" and {len(found) - DEFAULT_TOP} more" if len(found) > DEFAULT_TOP else ""
    return f"{format_count(len(found), 'collapsed head')} ({what}): {listed}{more}"


def describe_count(run: RunReader) -> str:
    """The number of alerts of each rule."""
    if not run.alerts:
        return "no alerts"
    rules = Counter(clean(alert.rule) for alert in run.alerts)
    listed = ", ".join(f"{count:,} {rule}" for rule, count in rules.most_common())
    return f"{format_count(len(run.alerts), 'alert')} ({listed}), the last ones first:"


def describe_first_alert(run: RunReader) -> str:
    """The number of alerts, and the first of them."""
    if not run.alerts:
        return "no alerts"
    first = run.alerts[0]
    where = f"step {first.step:,}, head {clean(head_of(first, short_names(run)))}"
    return f"{format_count(len(run.alerts), 'alert')}, the first at {where}: {clean(first.reason)}"


def head_of(alert: Alert, short: dict[HeadName, str]) -> str:
    """The head of an alert, which may not be measured yet."""
    from attnscope.telemetry.run_reader import HeadName

    return short.get(HeadName(alert.layer, alert.head), f"{alert.layer}.{alert.head}")


def alert_table(
    run: RunReader, short: dict[HeadName, str], count: int
) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """The last alerts."""
    rows = [
        (
            alert.step,
            head_of(alert, short),
            *(format_position(place) for place in (alert.query, alert.key)),
            alert.reason,
        )
        for alert in run.alerts[: -count - 1 : -1]
    ]
    return ("step", "head", "query", "key", "reason"), rows


def draw_trend(head: HeadSummary, width: int) -> str:
    """The largest logits of a head over all steps as block characters, from 0 to the largest of them."""
    import numpy as np

    from attnscope.telemetry.run_summary import shorten_series

    values, broken = shorten_series(head.trend, width), shorten_series(head.broken, width)
    highest = np.nanmax(values, initial=0.0)
    shares = np.clip(np.nan_to_num(values / (highest or 1.0)), 0.0, 1.0)
    bars = np.ceil(shares * (len(BAR_CHARACTERS) - 1)).astype(int)
    return "".join(
        NOT_FINITE if wrong else BAR_CHARACTERS[max(bar, 1) if known else 0]
        for bar, wrong, known in zip(bars, broken, ~np.isnan(values), strict=True)
    )


def format_logit(head: HeadSummary) -> float | str:
    """The largest logit of a head."""
    return head.statistics["max_logit"] if head.is_finite else "not finite"


def format_difference(value: float) -> str:
    """A difference with its sign."""
    return "-" if value != value else f"{value:+.1f}"


def format_position(value: float) -> int | str:
    """A token position."""
    return int(value) if value >= 0 else "-"


def short_names(run: RunReader) -> dict[HeadName, str]:
    """The names of heads, without what all layers begin and end with."""
    from attnscope.heads.printing import shorten_names

    layers = shorten_names([head.layer for head in run.heads])
    return {head: clean(f"{layers[head.layer]}.{head.head}") for head in run.heads}


def name_of(run: RunReader) -> str:
    """The folder of a run."""
    return clean(click.format_filename(run.folder))


def show_json(runs: Sequence[RunReader], top: int | None) -> None:
    """Print one run or two as JSON."""
    from attnscope.telemetry.run_summary import compare_runs, summarize_run

    described = [
        {"folder": str(run.folder), "steps": run.steps, "alerts": [alert_to_json(run, alert) for alert in run.alerts]}
        for run in runs
    ]
    if len(runs) == 1:
        heads = [head_to_json(head) for head in summarize_run(runs[0])[:top]]
        print_json(**described[0], heads=heads)
        return
    found = compare_runs(*runs) if all(run.steps for run in runs) else None
    differences = [] if found is None else found.heads[:top]
    print_json(
        runs=described,
        step=None if found is None else found.step,
        heads=[
            {
                "layer": head.first.name.layer,
                "head": head.first.name.head,
                "difference": head.difference,
                "runs": [head_to_json(one) for one in head],
            }
            for head in differences
        ],
    )


def alert_to_json(run: RunReader, alert: Alert) -> dict[str, Any]:
    """An alert as JSON, with the folder of its trace."""
    trace = run.find_trace(alert)
    return alert._asdict() | {"trace": None if trace is None else str(trace)}


def head_to_json(head: HeadSummary) -> dict[str, Any]:
    """A head as JSON: its statistics at the last step, and its peak."""
    return {
        "layer": head.name.layer,
        "head": head.name.head,
        "is_finite": head.is_finite,
        **head.statistics,
        "peak": head.peak,
        "peak_step": head.peak_step,
        "first_alert": None if head.first_alert is None else head.first_alert.step,
    }
