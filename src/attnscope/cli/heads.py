"""`attnscope heads MODEL TEXT`: a table of what every head does, and `--find LABEL`: the heads that do one thing.

`--over-training RUN` asks of a training run instead of a model, and is answered in `heads_over_training.py`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnscope.cli.commands import Name, Options, argument, command, option
from attnscope.cli.heads_over_training import show_over_training
from attnscope.cli.json_output import heads_of, print_json
from attnscope.cli.places import check_file, writing
from attnscope.cli.texts import model_at, text_of, to_input_ids
from attnscope.errors import SettingError, unknown
from attnscope.extras import require

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from attnscope.heads import HeadTable, Label
    from attnscope.recording import Trace

TOP = 20  # heads that are printed, unless told
ESTIMATED = 2048  # tokens from which on it is worth saying how long it will take
DOTS_PER_INCH = 90
WIDE = 200  # characters of a line that goes to a file or to another program
DRAWS = 5  # of other heads that are ablated for comparison
LABELS = (
    "induction", "duplicate", "agreement", "coreference", "previous", "next", "self", "local", "sink", "broad",
)  # fmt: skip
"""As in `attnscope.heads.LABELS`, which takes longer to import than help and completion should take."""


@dataclass
class Subject:
    """What is scored: a model that has read something, or a trace from a folder."""

    trace: Trace
    probe: Trace | None = None
    model: nn.Module | None = None
    tokenizer: Any = None

    @property
    def described(self) -> str:
        """What the heads have read."""
        if self.trace is self.probe:
            return "the repeated-token probe"
        return f"{max((layer.shape[3] for layer in self.trace.layers.values()), default=0):,} tokens"


@command(
    "heads",
    about="score and label every head of a model",
    description="Score and label every head of a model, on a text and on the repeated-token probe.",
    examples=[
        "attnscope heads HuggingFaceTB/SmolLM2-135M-Instruct report.txt",
        "attnscope heads HuggingFaceTB/SmolLM2-135M-Instruct --find induction",
        "attnscope heads --over-training runs/induction",
    ],
)
@argument("model", required=False, about="a folder, a name on the hub, a GGUF file, or a saved trace")
@argument("text", required=False, about="a text, a text file, or - for standard input")
@option("--tokens", type=int, metavar="N", about="read only the first N tokens of the text")
@option("--top", type=int, metavar="N", about=f"number of heads to print (default: {TOP})")
@option("--by", metavar="SCORE", about="sort heads by a score (default: by label)")
@option(
    "--find",
    type=Name("label", LABELS),
    metavar="LABEL",
    about="rank heads by the score of a label, and ablate those that have it",
)
@option("--relations", is_flag=True, about="also score subject-verb agreement and coreference, on built-in sentences")
@option("--json", is_flag=True, about="print heads and scores as JSON; all heads unless --top is given")
@option("--csv", type=click.Path(), metavar="FILE", about="write all heads and scores as CSV; - is standard output")
@option("--parquet", type=click.Path(), metavar="FILE", about="write all heads and scores as Parquet")
@option(
    "--pictures",
    type=click.Path(),
    metavar="FOLDER",
    about="draw the attention pattern of the strongest head of each label as PNG",
)
@option(
    "--over-training",
    type=click.Path(),
    metavar="RUN",
    about="instead of a MODEL, a training run: the step at which each label appears, drawn in RUN or in the FOLDER of "
    "--pictures",
)
def heads(options: Options) -> None:
    """Score, print and write."""
    from rich.console import Console

    from attnscope.heads.labels import RELATIONS, get_label

    if options.over_training is not None:
        show_over_training(options)
        return
    label = None if options.find is None else get_label(options.find)
    check(options)
    is_trace = (Path(options.model) / "trace.json").is_file()
    subject = saved_subject(options) if is_trace else read_subject(options)
    with_relations = options.relations or (label is not None and label.name in RELATIONS)
    table = scored(subject, with_relations=with_relations)
    order = ordered(table, options.by, label)
    write(options, table, subject, with_relations=with_relations)
    if options.json:
        top = order if options.top is None else order.rows(range(min(options.top, len(order))))
        ablation = None if label is None else ablate_found(subject, table, label)
        reason = {"reason": ablation} if isinstance(ablation, str) else ablation
        find = None if label is None else {"label": label.name, "threshold": label.threshold, "ablation": reason}
        print_json(model=options.model, input=subject.described, find=find, heads=heads_of(top))
        return
    console = Console(stderr=options.csv == "-", highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    if label is not None:
        console.print(f"[bold]{label.name}[/bold]: {label.meaning}\n")
    else:
        console.print(f"{len(table)} heads on {subject.described}: {counted(table)}\n")
    top = order.rows(range(min(TOP if options.top is None else options.top, len(order))))
    console.print(top if console.is_terminal else top.to_text(console.width), markup=False, soft_wrap=True)
    if label is not None:
        show_ablation(ablate_found(subject, table, label), console)


def check(options: Options) -> None:
    """Refuse before anything takes time."""
    from attnscope.heads import SCORES
    from attnscope.heads.labels import LABELS

    if options.model is None:
        raise SettingError("heads: give a MODEL to score, or a training run with --over-training RUN")
    for name in ("top", "tokens"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise SettingError(f"heads: --{name} must be at least 1, got {getattr(options, name)}")
    if options.tokens is not None and options.text is None:
        raise SettingError("heads: --tokens needs a TEXT")
    known = dict.fromkeys([*SCORES, *(score for label in LABELS for score in label.scores)])
    if options.by is not None and options.by not in known:
        raise SettingError(f"heads: --by: {unknown('score', options.by, known)}")
    if options.json and options.csv == "-":
        raise SettingError("heads: --json and --csv - both write to standard output; leave out one")
    for file in (options.csv, options.parquet):
        check_file(file, asked_by="heads")
    if options.pictures is not None and Path(options.pictures).is_file():
        raise SettingError(f"heads: --pictures {options.pictures} is a file; give a folder")
    if options.parquet is not None:
        require("tables", "pyarrow")
    if options.pictures is not None:
        require("figures")


def saved_subject(options: Options) -> Subject:
    """A trace from a folder."""
    from attnscope.recording import open_trace

    if options.text is not None:
        raise SettingError(f"heads: {options.model} is a saved trace, which holds its own text; leave out TEXT")
    return Subject(open_trace(options.model))


def read_subject(options: Options) -> Subject:
    """A model that has read the text, if there is one, and the probe."""
    from attnscope.heads import read_repeated_tokens
    from attnscope.recording import estimate, read

    text = None if options.text is None else text_of(options.text, asked_by="heads")
    model, tokenizer = model_at(options.model, asked_by="heads")
    ids = None if text is None else to_input_ids(model, tokenizer, text, options, asked_by="heads")
    if ids is not None and len(ids) < 2:
        raise SettingError("heads: the text has one token; give at least two")
    if ids is not None and len(ids) >= ESTIMATED:
        print(estimate(model, len(ids)), file=sys.stderr)
    probe = read_repeated_tokens(model, tokenizer)
    return Subject(probe if ids is None else read(model, ids, tokenizer), probe, model, tokenizer)


def scored(subject: Subject, *, with_relations: bool) -> HeadTable:
    """All heads; those of a model that was given no text have the probe for one."""
    from attnscope.heads import assign_labels, relation_table, score_heads, score_relations
    from attnscope.heads.labels import RELATIONS

    table = score_heads(subject.trace, probe=None if subject.probe is subject.trace else subject.probe)
    if not with_relations:
        return table
    if subject.model is None:
        raise SettingError("heads: agreement and coreference are scored on built-in sentences, which need a model")
    found = relation_table(score_relations(subject.model, subject.tokenizer))
    by_probe = [score for score in table.columns if score.endswith("_probe")]
    return assign_labels(table.join(found).with_first_columns(*by_probe, *RELATIONS))


def ordered(table: HeadTable, by: str | None, label: Label | None) -> HeadTable:
    """Heads in the order in which they are printed: by a score, or by label and its score."""
    from attnscope.heads.labels import LABELS

    score = by if by is not None else None if label is None else label.find_score(table)
    if label is not None and score is None:
        raise SettingError(
            f"heads: {label.name} needs the score {' or '.join(label.scores)}, which is not available: causal models "
            "have no next, and a trace without token ids has no scores about tokens"
        )
    if score is not None:
        return table.with_first_columns(score).top(score)
    rows: list[int] = []
    places = {head: at for at, head in enumerate(zip(table.layers, table.heads, strict=True))}
    for known in LABELS:
        decides = known.find_score(table)
        if decides is not None:
            best = table.with_label(known.name).top(decides)
            rows += [places[head] for head in zip(best.layers, best.heads, strict=True)]
    return table.rows(list(dict.fromkeys([*rows, *range(len(table))])))


def counted(table: HeadTable) -> str:
    """How many heads have each label, in words."""
    counts = Counter(label for labels in table.labels or () for label in labels)
    return ", ".join(f"{count} {label}" for label, count in counts.most_common())


def write(options: Options, table: HeadTable, subject: Subject, *, with_relations: bool) -> None:
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
    from attnscope.recording import read

    sentences = {"agreement": agreement()[0], "coreference": coreference()[0]} if with_relations else {}
    examples = {
        name: read(subject.model, sentence.text, subject.tokenizer)
        for name, sentence in sentences.items()
        if subject.model is not None
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in label_pictures(table, subject.trace, subject.probe, examples):
        figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH)


def ablate_found(subject: Subject, table: HeadTable, label: Label) -> dict[str, Any] | str:
    """The loss on the probe when the heads of a label are ablated, and as many others of their layers; or why not.

    Each list holds the mean of the first half of the probe, in nats per token, and of the second.
    """
    from attnscope.heads.comparison import compare_with_random_heads
    from attnscope.heads.effects import predicts_next_token
    from attnscope.heads.labels import RELATIONS

    found = table.with_label(label.name)
    if not len(found):
        return f"No head reaches the threshold of this label, {label.threshold:g}."
    if label.name in RELATIONS or subject.probe is None or not predicts_next_token(subject.model):
        return "No heads were ablated: that needs a model that predicts tokens, and a label scored on the probe."
    most = table.heads_by_layer
    if any(2 * len(heads) > len(most[layer]) for layer, heads in found.heads_by_layer.items()):
        return f"No heads were ablated: {len(found)} have the label, and too few others are in their layers to compare."
    ids = subject.probe.texts[-1].ids[0]
    compared = compare_with_random_heads(subject.model, ids, found, table, num_draws=DRAWS)
    halves = slice(0, len(ids) // 2 - 1), slice(len(ids) // 2, None)
    losses = {"loss": compared.loss, "change": compared.change, "change_of_others": compared.random_changes.mean(0)}
    means = {name: [float(loss[half].mean()) for half in halves] for name, loss in losses.items()}
    return {"heads": len(found), "draws": DRAWS, **means}


def show_ablation(ablation: dict[str, Any] | str, console: Console) -> None:
    """Print what changed in the loss, or why nothing was ablated."""
    from rich.table import Table

    console.print()
    if isinstance(ablation, str):
        console.print(ablation)
        return
    count = ablation["heads"]
    shown = Table("nats per token on the probe", "first half", "second half", box=None, header_style="bold")
    for title, name, form in (
        ("loss with all heads", "loss", "z.2f"),
        (f"change when {count} with the label are ablated", "change", "+z.2f"),
        (f"change when {count} others are, mean of {DRAWS} draws", "change_of_others", "+z.2f"),
    ):
        shown.add_row(title, *(f"{mean:{form}}" for mean in ablation[name]))
    console.print(shown)
