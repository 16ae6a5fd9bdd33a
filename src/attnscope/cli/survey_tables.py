"""`attnscope survey show DIR` and `attnscope survey diff A B`: print a survey, and the changes between two.

Output is a table in a terminal, and tab-separated lines in a pipe. Control characters in names and passages are
replaced.
"""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from attnscope.cli.commands import Options, argument, command, option
from attnscope.cli.json_output import print_json, statistics_to_json
from attnscope.cli.output_paths import check_output_file, report_write_errors
from attnscope.errors import SettingError
from attnscope.extras import require
from attnscope.formatting import format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from attnscope.heads import HeadTable
    from attnscope.survey import Difference, Survey
    from attnscope.survey.tables.survey import Example, HeadStatistic, Histogram

DEFAULT_TOP = 20  # rows to print
PIPE_WIDTH = 200  # characters per line if standard output is not a terminal
BAR_CHARACTERS, BAR_WIDTH = " ▁▂▃▄▅▆▇█", 10
WIDE_TERMINAL = 100  # characters from which on there is room for all quantiles
MIN_TEXT = 20  # characters of a passage in a narrow terminal
MARKS = "»", "«"
WRAPPED = ("labels", "reason")  # columns of words
SPLIT = "split: variance of the queries / largest possible at their mean; 0 all equal, 1/3 uniform, 1 all or nothing"
PASSAGES = "errors treat passages as independent; if documents have many passages, the true errors are larger"
EFFECT_SIZE = (
    "effect_size: the change of a fraction; of reach and effective keys relative to the larger value; of entropy, the "
    "same for exp(entropy) (0.5 is twice, -0.5 half)"
)


@command(
    "show",
    about="print the results of a survey, or of one of its heads",
    description="Print the results of a survey: all heads, or one of them with example passages.",
    examples=["attnscope survey show surveys/first", "attnscope survey show surveys/first --head 5.6"],
)
@argument("survey", metavar="DIR", about="the folder of a finished survey")
@option("--by", metavar="STATISTIC", about="sort heads by a statistic (default: by label)")
@option("--top", type=int, metavar="N", about=f"number of heads to print (default: {DEFAULT_TOP})")
@option("--head", metavar="LAYER.HEAD", about="one head, named as in the table: distributions and passages")
@option("--json", is_flag=True, about="print heads and statistics as JSON; all heads unless --top is given")
@option("--csv", type=click.Path(), metavar="FILE", about="write all heads and statistics as CSV; - is standard output")
def show(options: Options) -> None:
    """Print a survey, or one head of it."""
    from attnscope.survey import open_survey

    check(options, "show")
    if options.json and options.csv == "-":
        raise SettingError("survey show: --json and --csv - both write to standard output; leave out one")
    require("survey", "pyarrow", "ddsketch")
    survey = open_survey(options.survey)
    if options.by is not None:
        survey.heads[options.by]  # an unknown statistic is an error
    head = None if options.head is None else parse_head(survey.heads, options.head)
    if options.csv is not None:
        write(options.csv, lambda file: write_statistics(survey, file))
    if options.json:
        show_json(survey, head, options)
        return
    console = console_for(options)
    print_text(console, describe_survey(survey))
    if head is None:
        print_text(console, f"{len(survey.heads)} heads: {count_labels(survey.heads)}\n")
        show_ranking(survey, options.by, options.top or DEFAULT_TOP, console)
    else:
        show_head(survey, head, options.by, console)
    print_text(console, f"\n{SPLIT}\n{PASSAGES}")


@command(
    "diff",
    about="compare two surveys of the same heads",
    description="Print which heads changed between two surveys, with confidence intervals.",
    examples=["attnscope survey diff surveys/first surveys/second"],
)
@argument("before", metavar="A", about="the folder of a finished survey")
@argument("after", metavar="B", about="another of the same heads: on another corpus, or of another checkpoint")
@option("--by", metavar="STATISTIC", about="only changes of one statistic (default: of all)")
@option("--top", type=int, metavar="N", about=f"number of changes to print (default: {DEFAULT_TOP})")
@option("--csv", type=click.Path(), metavar="FILE", about="write all comparisons as CSV; - is standard output")
def diff(options: Options) -> None:
    """Print what changed."""
    from attnscope.survey import compare, open_survey

    check(options, "diff")
    require("survey", "pyarrow", "ddsketch")
    before, after = open_survey(options.before), open_survey(options.after)
    found = compare(before, after)
    rows = list(found.rows(options.by))
    if options.csv is not None:
        write(options.csv, lambda file: found.to_csv(file, options.by))
    console = console_for(options)
    print_text(console, f"before: {describe_survey(before)}\nafter:  {describe_survey(after)}")
    if found.warning is not None:
        print_text(console, f"warning: {found.warning}")
    print_text(console, "\n".join(summarize(found)))
    if rows:
        names = ("head", "labels", "statistic", "before", "after", "change", "from", "to", "effect_size")
        lines = [
            (
                found.before.head_name(row.layer, row.head),
                " → ".join(dict.fromkeys("+".join(labels) for labels in (row.labels_before, row.labels_after))),
                row.statistic,
                *(row.before, row.after, row.change, row.low, row.high, row.effect_size),
            )
            for row in rows[: options.top or DEFAULT_TOP]
        ]
        print_text(console, "")
        print_table(console, names, lines)
    if found.inconclusive is None:
        print_text(
            console, f"\nthe simultaneous confidence of all intervals (from, to) is 95 %; {PASSAGES}\n{EFFECT_SIZE}"
        )


def check(options: Options, name: str) -> None:
    """Check options before anything is read."""
    if options.top is not None and options.top < 1:
        raise SettingError(f"survey {name}: --top must be at least 1, got {options.top}")
    check_output_file(options.csv, command_name=f"survey {name}")


def console_for(options: Options) -> Console:
    """The console for text: standard output, or standard error if the CSV goes to standard output."""
    from rich.console import Console

    console = Console(stderr=options.csv == "-", highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def print_text(console: Console, text: str) -> None:
    """Print text without markup."""
    console.print(text, markup=False, soft_wrap=not console.is_terminal)


def describe_survey(survey: Survey) -> str:
    """Model, corpus and problems in one line."""
    model, corpus, problems = (survey.manifest[part] for part in ("model", "corpus", "problems"))
    counts = ", ".join(format_count(corpus[name], name[:-1]) for name in ("files", "documents", "passages", "tokens"))
    summary = format_count(problems["count"], "problem") if problems["count"] else "no problems"
    if problems["first"]:
        first = problems["first"][0]
        summary += f", the first: {first['file']} {first['location']}: {first['reason']}"
    return clean(f"{model['name']} ({model['parameters']:,} parameters) on {counts}; {summary}")


def count_labels(table: HeadTable) -> str:
    """The number of heads with each label."""
    counts = Counter(label for labels in table.labels or () for label in labels)
    return ", ".join(f"{count} {label}" for label, count in counts.most_common())


def summarize(found: Difference) -> list[str]:
    """The number of changed comparisons, heads and labels, or why there is no conclusion."""
    if found.inconclusive is not None:
        return [f"no conclusion about {len(found.before)} heads: {found.inconclusive}"]
    changed, heads = found.changed_heads, len(found.before)
    lines = [f"{found.num_comparisons:,} comparisons, {int(found.changes.changed.sum()):,} changed"]
    if found.num_unknown:
        lines[0] += f"; {found.num_unknown:,} skipped, because too few passages have such queries"
    if len(changed):
        lines.append(f"{len(changed)} of {heads} heads changed: {count_labels(changed)}")
    else:
        lines.append(f"none of {heads} heads changed significantly")
    if changes := found.label_changes():
        moves = ", ".join(f"{old} → {new} {count}" for (old, new), count in changes.most_common())
        lines.append(f"first labels that changed: {moves}")
    return lines


def parse_head(table: HeadTable, name: str) -> tuple[str, int]:
    """The layer and number of a head, from its name in the table or its full name."""
    layer, _, number = name.rpartition(".")
    full = {**{short: layer for layer, short in table.short_names.items()}, **{layer: layer for layer in table.layers}}
    if layer not in full or not (number.isascii() and number.isdigit()):
        raise SettingError(f"survey show: unknown head {name!r} (expected LAYER.HEAD, such as {table.head_names[0]})")
    table.head_scores(full[layer], int(number))  # an unknown head is an error
    return full[layer], int(number)


def main_statistic(table: HeadTable, row: int) -> str:
    """The statistic of the first label of a head, or without a label, the one that comes closest to its threshold."""
    from attnscope.heads.labels import LABELS

    beyond = {}
    for label in LABELS:
        score = label.find_score(table)
        value = float("nan") if score is None else float(table[score][row])
        if score is not None and value == value:
            if label.name in (table.labels or ())[row]:
                return score
            beyond[score] = value / label.threshold
    return max(beyond, key=lambda score: beyond[score], default=next(iter(table.columns)))


def show_ranking(survey: Survey, by: str | None, top: int, console: Console) -> None:
    """Print the first heads by label, or by a statistic."""
    from attnscope.cli.heads import sort_heads

    order = sort_heads(survey.heads, by, None)
    order = order.rows(range(min(top, len(order))))
    places = [
        (layer, head, by or main_statistic(order, row))
        for row, (layer, head) in enumerate(zip(order.layers, order.heads, strict=True))
    ]
    labels = ["+".join(some) for some in order.labels or ()]
    print_distributions(survey, places, {"head": order.head_names, "labels": labels}, ("p05", "p50", "p95"), console)


def show_json(survey: Survey, head: tuple[str, int] | None, options: Options) -> None:
    """Print the same as JSON: all heads or the first ones, or one head with its example passages."""
    from attnscope.cli.heads import sort_heads

    table = sort_heads(survey.heads, options.by, None)
    rows = range(len(table) if options.top is None else min(options.top, len(table)))
    examples: dict[str, Any] = {}
    if head is not None:
        table = survey.heads
        rows = [list(zip(table.layers, table.heads, strict=True)).index(head)]
        statistic = options.by or main_statistic(table, rows[0])
        known = not table[statistic][rows[0]].isnan()
        passages = [example._asdict() for example in survey.examples(*head, statistic)] if known else []
        examples = {"statistic": statistic, "examples": passages}
    about = {part: survey.manifest[part] for part in ("model", "corpus", "problems")}
    print_json(**about, heads=statistics_to_json(survey, table.rows(rows)), **examples)


def show_head(survey: Survey, head: tuple[str, int], by: str | None, console: Console) -> None:
    """Print all statistics of one head, and its example passages for one of them."""
    table = survey.heads
    row = list(zip(table.layers, table.heads, strict=True)).index(head)
    print_text(console, f"head {table.head_name(*head)}: {'+'.join((table.labels or ())[row])}\n")
    known = [name for name in survey.statistics if not table[name][row].isnan()]
    narrow = console.is_terminal and console.width < WIDE_TERMINAL
    quantiles = ("p05", "p50", "p95") if narrow else ("p05", "p25", "p50", "p75", "p95", "max")
    print_distributions(survey, [(*head, name) for name in known], {}, quantiles, console)
    statistic = by or main_statistic(table, row)
    examples = survey.examples(*head, statistic) if statistic in known else []
    for kind, heading in (
        ("top", f"passages with the highest mean of {statistic}; the strongest query is marked"),
        ("decile", f"a passage from each decile of a sample, from the lowest mean of {statistic} to the highest"),
    ):
        if some := [example for example in examples if example.kind == kind]:
            print_text(console, f"\n{heading}")
            print_passages(some, console)


def print_distributions(
    survey: Survey,
    places: Sequence[HeadStatistic],
    leading: dict[str, list[str]],
    quantiles: tuple[str, ...],
    console: Console,
) -> None:
    """Print a row for each head and statistic: mean, error, quantiles, split and, in a terminal, the histogram."""
    heads = {place: at for at, place in enumerate(zip(survey.heads.layers, survey.heads.heads, strict=True))}
    numbers = ("mean", "standard_error", *quantiles)
    tables = [*(survey.table(number) for number in numbers), survey.split()]
    rows: list[tuple[Any, ...]] = [
        (
            *(cells[at] for cells in leading.values()),
            place[2],
            *(float(one[place[2]][heads[place[:2]]]) for one in tables),
        )
        for at, place in enumerate(places)
    ]
    names = (*leading, "statistic", *numbers, "split")
    if console.is_terminal and places:
        largest = survey.table("max")
        ends = {name: float(largest[name].nan_to_num(0.0).max()) for name in survey.statistics}
        bars = [
            bar(some, place[2], ends[place[2]]) for some, place in zip(survey.histograms(places), places, strict=True)
        ]
        rows = [(*row, drawn) for row, drawn in zip(rows, bars, strict=True)]
        names = (
            *names,
            f"{'0':<{BAR_WIDTH - 1}}1" if all(place[2] in fraction_statistics() for place in places) else "0 to max",
        )
    print_table(console, names, rows)


def fraction_statistics() -> tuple[str, ...]:
    """The statistics that are fractions between 0 and 1."""
    from attnscope.survey.tables.survey import STATISTICS, is_fraction

    return tuple(name for name in STATISTICS if is_fraction(name))


def bar(histogram: Histogram, statistic: str, largest: float) -> str:
    """A histogram as a line of block characters; the scale is linear, or logarithmic for tokens and keys."""
    import numpy as np

    if statistic in ("reach", "effective_keys"):
        edges = np.expm1(np.linspace(0.0, np.log1p(largest), BAR_WIDTH + 1))
    else:
        edges = np.linspace(0.0, 1.0 if statistic in fraction_statistics() else largest, BAR_WIDTH + 1)
    found = histogram.rebin(edges)
    return "".join(
        BAR_CHARACTERS[int(np.ceil(fraction / found.max() * (len(BAR_CHARACTERS) - 1)))] for fraction in found
    )


def print_table(console: Console, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table in a terminal, and tab-separated lines elsewhere."""
    if console.is_terminal:
        console.print(make_table(names, rows))
        return
    lines = [names, *([format_plain(cell) for cell in row] for row in rows)]
    console.file.write("".join("\t".join(line) + "\n" for line in lines))


def make_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table for a terminal, with mean and error in one column; long labels and reasons take several lines."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    kept = [at for at, name in enumerate(names) if name != "standard_error"]
    for at in kept:
        words = any(isinstance(row[at], str) and row[at] != "-" for row in rows)
        name = "mean ± error" if names[at] == "mean" else names[at].replace("_", " ")
        side = "left" if words else "right"
        table.add_column(Text(name), justify=side, no_wrap=names[at] not in WRAPPED, overflow="ellipsis")
    for row in rows:
        cells = [format_number(cell) if isinstance(cell, float) else clean(str(cell)) for cell in row]
        if "standard_error" in names:
            mean, error = names.index("mean"), names.index("standard_error")
            cells[mean] += f" ± {format_number(row[error], like=row[mean])}" if row[error] == row[error] else ""
        table.add_row(*(Text(cells[at]) for at in kept))
    return table


def format_number(value: float, like: float | None = None) -> str:
    """A number with decimals by its magnitude, or by that of another number; NaN is empty."""
    size = abs(value if like is None else like)
    decimals = 3 if size < 10 else 2 if size < 100 else 1
    return "" if value != value else f"{value:z,.{decimals}f}"


def format_plain(cell: Any) -> str:
    """A cell of tab-separated output."""
    return ("" if cell != cell else f"{cell:.6g}") if isinstance(cell, float) else clean(str(cell))


def print_passages(examples: Sequence[Example], console: Console) -> None:
    """Print a line for each passage: its mean, its source, and the text around the strongest query."""
    from rich.text import Text

    for example in examples:
        decile = "" if example.decile is None else f"{example.decile:>2}  "
        source = f"{clean(Path(example.file).name)} {example.start:,}+{example.offset:,}"
        where = f"{decile}{format_number(example.score)}  {source}  "
        room = max(console.width - len(where) - len("".join(MARKS)), MIN_TEXT)
        before, marked, after = text_around(example.text, example.strongest_span, room)
        if marked:
            marked = MARKS[0] + marked + MARKS[1]
        line = Text.assemble(where, before, (marked, "bold reverse"), after)
        console.print(line, soft_wrap=not console.is_terminal, no_wrap=True, overflow="crop")


def text_around(text: str, span: tuple[int, int] | None, room: int) -> tuple[str, str, str]:
    """The parts of a text before, at and after a span (start, stop), shortened to `room` columns.

    >>> text_around("one two three four", (4, 7), 9)
    ('…e ', 'two', ' t…')
    """
    from rich.cells import cell_len

    begin, end = span or (0, 0)
    end = min(end, begin + room)
    start = begin
    while start > 0 and cell_len(clean(text[start - 1 : begin])) <= room // 3:
        start -= 1
    stop = end
    while stop < len(text) and cell_len(clean(text[start : stop + 1])) <= room:
        stop += 1
    before, after = clean(text[start:begin]), clean(text[end:stop])
    before = "…" + before[1:] if start > 0 and before else before
    after = after[:-1] + "…" if stop < len(text) and after else after
    return before, clean(text[begin:end]), after


def clean(text: str) -> str:
    """Replace every character that is not printable by a space: line ends, tabs, escapes."""
    return "".join(character if character.isprintable() else " " for character in text)


def write_statistics(survey: Survey, file: TextIO) -> None:
    """Write all columns of all heads and statistics as CSV."""
    from attnscope.survey.tables.survey import QUANTILES, SUMMARY_COLUMNS

    numbers = (*SUMMARY_COLUMNS, *QUANTILES)
    tables = [*(survey.table(number) for number in numbers), survey.split()]
    columns = {name: [table[name].tolist() for table in tables] for name in survey.statistics}
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["layer", "head", "labels", "statistic", *numbers, "split"])
    heads = survey.heads
    for row, (layer, head) in enumerate(zip(heads.layers, heads.heads, strict=True)):
        for name, found in columns.items():
            cells = [column[row] for column in found]
            counts = [int(cell) if cell == cell else 0 for cell in cells[:2]]
            values = ["" if cell != cell else cell for cell in cells[2:]]
            writer.writerow([layer, head, "+".join((heads.labels or ())[row]), name, *counts, *values])


def write(place: str, writer: Any) -> None:
    """Write to a file, or to standard output for `-`."""
    if place == "-":
        writer(sys.stdout)
        return
    with report_write_errors(place, command_name="survey"), Path(place).open("w", newline="", encoding="utf-8") as file:
        writer(file)
