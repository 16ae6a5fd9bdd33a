"""`attnscope heads MODEL TEXT`: a table of what every head does, and `--find LABEL`: the heads that do one thing.

`--over-training RUN` asks of a training run instead of a model, and is answered in `heads_over_training.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.heads_over_training import show_over_training
from attnscope.cli.parsers import add_command
from attnscope.cli.places import check_file, writing
from attnscope.cli.texts import ids_of, model_at, text_of
from attnscope.errors import SettingError
from attnscope.extras import require

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from attnscope.heads import HeadTable, Label
    from attnscope.record import Trace

TOP = 20  # heads that are printed, unless told
ESTIMATED = 2048  # tokens from which on it is worth saying how long it will take
DOTS_PER_INCH = 90
WIDE = 200  # characters of a line that goes to a file or to another program
DRAWS = 5  # of other heads that are switched off for comparison


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "heads",
        about="score and label every head of a model",
        description="Score and label every head of a model, on a text and on random tokens that come twice.",
        examples=[
            "attnscope heads HuggingFaceTB/SmolLM2-135M-Instruct report.txt",
            "attnscope heads HuggingFaceTB/SmolLM2-135M-Instruct --find induction",
            "attnscope heads --over-training runs/induction",
        ],
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="a folder, a name on the hub, a GGUF file, or a saved trace"
    )
    parser.add_argument("text", metavar="TEXT", nargs="?", help="a text or a file of it; - reads standard input")
    parser.add_argument("--tokens", type=int, metavar="N", help="read no more than the first N tokens of the text")
    parser.add_argument("--top", type=int, metavar="N", help=f"print so many heads (default: {TOP})")
    parser.add_argument("--by", metavar="SCORE", help="print those with the most of a score (default: by label)")
    parser.add_argument("--find", metavar="LABEL", help="rank heads by what one label asks, and switch them off to see")
    parser.add_argument("--relations", action="store_true", help="also score agreement and coreference on sentences")
    parser.add_argument("--csv", metavar="FILE", help="write all heads and scores as CSV; - is standard output")
    parser.add_argument("--parquet", metavar="FILE", help="write all heads and scores as Parquet")
    parser.add_argument("--pictures", metavar="FOLDER", help="draw the strongest head of each label as PNG")
    parser.add_argument(
        "--over-training",
        metavar="RUN",
        help="instead of a MODEL, a training run: when each label appears, drawn in RUN or the FOLDER of --pictures",
    )
    parser.set_defaults(handler=run)


@dataclass
class Subject:
    """What is scored: a model that has read something, or a trace from a folder."""

    trace: Trace
    probe: Trace | None = None
    model: nn.Module | None = None
    tokenizer: Any = None

    @property
    def described(self) -> str:
        """What the heads have looked at."""
        if self.trace is self.probe:
            return "random tokens that come twice"
        return f"{max((layer.shape[3] for layer in self.trace.layers.values()), default=0):,} tokens"


def run(options: argparse.Namespace) -> None:
    """Score, print and write."""
    from rich.console import Console

    from attnscope.heads.labels import RELATIONS, label_named

    if options.over_training is not None:
        show_over_training(options)
        return
    label = None if options.find is None else label_named(options.find)
    check(options)
    is_trace = (Path(options.model) / "trace.json").is_file()
    subject = saved_subject(options) if is_trace else read_subject(options)
    with_relations = options.relations or (label is not None and label.name in RELATIONS)
    table = scored(subject, with_relations=with_relations)
    order = ordered(table, options.by, label)
    write(options, table, subject, with_relations=with_relations)
    console = Console(stderr=options.csv == "-", highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    if label is not None:
        console.print(f"[bold]{label.name}[/bold]: {label.meaning}\n")
    else:
        console.print(f"{len(table)} heads on {subject.described}: {counted(table)}\n")
    top = order.at(range(min(TOP if options.top is None else options.top, len(order))))
    console.print(top if console.is_terminal else top.text(console.width), markup=False, soft_wrap=True)
    if label is not None:
        put_to_the_test(subject, table, label, console)


def check(options: argparse.Namespace) -> None:
    """Refuse before anything takes time."""
    from attnscope.heads import SCORES
    from attnscope.heads.labels import LABELS

    if options.model is None:
        raise SettingError("heads: give a MODEL to score, or a training run with --over-training RUN")
    for name in ("top", "tokens"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise SettingError(f"heads: --{name} {getattr(options, name)}; it is at least 1")
    if options.tokens is not None and options.text is None:
        raise SettingError("heads: --tokens is about a text, and none was given")
    known = dict.fromkeys([*SCORES, *(score for label in LABELS for score in label.scores)])
    if options.by is not None and options.by not in known:
        raise SettingError(f"heads: --by {options.by} is no score; there are {', '.join(known)}")
    for file in (options.csv, options.parquet):
        check_file(file, asked_by="heads")
    if options.pictures is not None and Path(options.pictures).is_file():
        raise SettingError(f"heads: --pictures {options.pictures} is a file, and pictures go into a folder")
    if options.parquet is not None:
        require("tables", "pyarrow")
    if options.pictures is not None:
        require("figures")


def saved_subject(options: argparse.Namespace) -> Subject:
    """A trace from a folder."""
    from attnscope.record import open as open_trace

    if options.text is not None:
        raise SettingError(f"heads: {options.model} is a saved trace, which has its own text; leave out TEXT")
    return Subject(open_trace(options.model))


def read_subject(options: argparse.Namespace) -> Subject:
    """A model that has read the text, if there is one, and the probe."""
    from attnscope.heads import read_probe
    from attnscope.record import estimate, read

    text = None if options.text is None else text_of(options.text, asked_by="heads")
    model, tokenizer = model_at(options.model, asked_by="heads")
    ids = None if text is None else ids_of(model, tokenizer, text, options, asked_by="heads")
    if ids is not None and len(ids) < 2:
        raise SettingError("heads: the text has one token, which has nothing to look at but itself; give a longer one")
    if ids is not None and len(ids) >= ESTIMATED:
        print(estimate(model, len(ids)), file=sys.stderr)
    probe = read_probe(model, tokenizer)
    return Subject(probe if ids is None else read(model, ids, tokenizer), probe, model, tokenizer)


def scored(subject: Subject, *, with_relations: bool) -> HeadTable:
    """All heads; those of a model that was given no text have the probe for one."""
    from attnscope.heads import labelled, relation_table, score_heads, score_relations
    from attnscope.heads.labels import RELATIONS

    table = score_heads(subject.trace, probe=None if subject.probe is subject.trace else subject.probe)
    if not with_relations:
        return table
    if subject.model is None:
        raise SettingError("heads: agreement and coreference are scored on sentences of their own, which take a model")
    found = relation_table(score_relations(subject.model, subject.tokenizer))
    by_probe = [score for score in table.columns if score.endswith("_probe")]
    return labelled(table.joined(found).leading(*by_probe, *RELATIONS))


def ordered(table: HeadTable, by: str | None, label: Label | None) -> HeadTable:
    """Heads in the order in which they are printed: by a score, or by label and its score."""
    from attnscope.heads.labels import LABELS

    score = by if by is not None else None if label is None else label.score_in(table)
    if label is not None and score is None:
        raise SettingError(
            f"heads: {label.name} is decided by {' or '.join(label.scores)}, which these heads do not have: a model "
            "that looks back only has no next, and a trace without ids tells nothing of tokens"
        )
    if score is not None:
        return table.leading(score).top(score)
    rows: list[int] = []
    places = {head: at for at, head in enumerate(zip(table.layers, table.heads, strict=True))}
    for known in LABELS:
        decides = known.score_in(table)
        if decides is not None:
            best = table.with_label(known.name).top(decides)
            rows += [places[head] for head in zip(best.layers, best.heads, strict=True)]
    return table.at(list(dict.fromkeys([*rows, *range(len(table))])))


def counted(table: HeadTable) -> str:
    """How many heads have each label, in words."""
    counts = Counter(label for labels in table.labels or () for label in labels)
    return ", ".join(f"{count} {label}" for label, count in counts.most_common())


def write(options: argparse.Namespace, table: HeadTable, subject: Subject, *, with_relations: bool) -> None:
    """The files that were asked for."""
    if options.csv is not None:
        with writing(options.csv, asked_by="heads"):
            table.to_csv(sys.stdout if options.csv == "-" else options.csv)
    if options.parquet is not None:
        with writing(options.parquet, asked_by="heads"):
            table.to_parquet(options.parquet)
    if options.pictures is not None:
        with writing(options.pictures, asked_by="heads"):
            draw(table, subject, Path(options.pictures), with_relations=with_relations)


def draw(table: HeadTable, subject: Subject, folder: Path, *, with_relations: bool) -> None:
    """One picture for each label."""
    from attnscope.heads.pictures import label_pictures
    from attnscope.heads.sentences import agreement, coreference
    from attnscope.record import read

    sentences = {"agreement": agreement()[0], "coreference": coreference()[0]} if with_relations else {}
    examples = {
        name: read(subject.model, sentence.text, subject.tokenizer)
        for name, sentence in sentences.items()
        if subject.model is not None
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in label_pictures(table, subject.trace, subject.probe, examples):
        figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH)


def put_to_the_test(subject: Subject, table: HeadTable, label: Label, console: Console) -> None:
    """Switch the found heads off, and as many others of the same layers, where the model predicts tokens."""
    from rich.table import Table

    from attnscope.heads.comparison import compare_with_others
    from attnscope.heads.effects import predicts_next_token
    from attnscope.heads.labels import RELATIONS

    found = table.with_label(label.name)
    if not len(found):
        console.print(f"\nNo head reaches {label.least:g}, which the label asks for.")
        return
    if label.name in RELATIONS or subject.probe is None or not predicts_next_token(subject.model):
        console.print("\nNothing was switched off: that takes a model that predicts tokens, and a label about texts.")
        return
    most = table.chosen
    if any(2 * len(heads) > len(most[layer]) for layer, heads in found.chosen.items()):
        console.print(
            f"\n{len(found)} heads have the label: more than others are left in their layers to compare with."
        )
        return
    ids = subject.probe.texts[-1].ids[0]
    compared = compare_with_others(subject.model, ids, found, table, draws=DRAWS)
    first, second = slice(0, len(ids) // 2 - 1), slice(len(ids) // 2, None)
    shown = Table("nats a token on random tokens", "first time", "second time", box=None, header_style="bold")
    for name, losses, form in (
        ("loss with all heads", compared.loss, "z.2f"),
        (f"change without {len(found)} with the label", compared.rise, "+z.2f"),
        (f"change without {len(found)} others, mean of {DRAWS} draws", compared.others.mean(0), "+z.2f"),
    ):
        shown.add_row(name, *(f"{float(losses[half].mean()):{form}}" for half in (first, second)))
    console.print()
    console.print(shown)
