"""`attnscope heads MODEL TEXT`: score and label all heads; `--find LABEL` ranks and ablates the heads of a label.

`heads_over_training.py` implements `--over-training RUN`, `heads_links.py` `--link`, and `heads_retrieval.py`
`--find retrieval` and `--find streaming`.
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
from attnscope.cli.heads_links import show_links
from attnscope.cli.heads_over_training import show_over_training
from attnscope.cli.heads_retrieval import DEPTHS, LENGTH, NEEDLES, show_retrieval
from attnscope.cli.json_output import heads_to_json, print_json
from attnscope.cli.output_paths import check_output_file, report_write_errors, write_table
from attnscope.cli.texts import load_model, read_text_argument, to_input_ids
from attnscope.errors import SettingError, unknown
from attnscope.extras import require

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from attnscope.heads import HeadTable, Label
    from attnscope.recording import Trace

TOP = 20  # heads to print by default
MIN_ESTIMATED = 2048  # tokens from which on an estimate is printed
DOTS_PER_INCH = 90
NEEDLE_LABELS = ("retrieval", "streaming")  # scored on needles in a long text
LINE_WIDTH = 200  # characters, if standard output is not a terminal
NEEDLES_SECTION = "Options of --find retrieval and --find streaming"
DRAWS = 5  # random draws of other heads to ablate for comparison
LABELS = (
    "retrieval", "induction", "duplicate", "agreement", "coreference", "previous", "next", "self", "local", "sink",
    "streaming", "broad",
)  # fmt: skip
"""As in `attnscope.heads.LABELS`, which is slow to import for help and completion."""


@dataclass
class Recording:
    """The recorded attention to score: of a model, or of a saved trace."""

    trace: Trace
    probe: Trace | None = None
    model: nn.Module | None = None
    tokenizer: Any = None

    @property
    def description(self) -> str:
        """The recorded input as text."""
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
        'attnscope heads smollm2-135m report.txt --link "password is -> cobalt"',
        "attnscope heads smollm2-135m --find retrieval --length 8192",
        "attnscope heads --over-training runs/induction",
    ],
)
@argument(
    "model",
    required=False,
    about="a folder, a GGUF file, a name on the hub, a downloaded model such as smollm2-135m, or a saved trace",
)
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
@option(
    "--link",
    metavar="LINK",
    about="rank heads by the weight from a query to a key: words of the text or positions, as in 'is -> cobalt', "
    "'8191 -> 2285..2324', 'is' or '-> cobalt'",
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
@option(
    "--length",
    type=int,
    metavar="N",
    section=NEEDLES_SECTION,
    about=f"tokens of the longest documents; halves of it are read, too (default: {LENGTH})",
)
@option(
    "--needles",
    type=int,
    metavar="N",
    section=NEEDLES_SECTION,
    about=f"facts that are asked for at each length (default: {NEEDLES})",
)
@option(
    "--depths",
    type=int,
    metavar="N",
    section=NEEDLES_SECTION,
    about=f"bins of depth in which scores are printed (default: {DEPTHS})",
)
@option(
    "--save",
    type=click.Path(),
    metavar="FILE",
    section=NEEDLES_SECTION,
    about="write the score of each key-value head as full_attention_heads.tsv, which DuoAttention and kvpress read",
)
def heads(options: Options) -> None:
    """Score all heads, print and write them."""
    from attnscope.heads.labels import RELATIONS, get_label

    if options.over_training is not None:
        show_over_training(options)
        return
    label = None if options.find is None else get_label(options.find)
    check(options)
    if label is not None and label.name in NEEDLE_LABELS:
        show_retrieval(options, label, make_console(options), TOP if options.top is None else options.top)
        return
    is_trace = (Path(options.model) / "trace.json").is_file()
    recording = open_recording(options) if is_trace else record_model(options)
    if options.link is not None:
        show_links(options, recording.trace, make_console(options), TOP if options.top is None else options.top)
        return
    with_relations = options.relations or (label is not None and label.name in RELATIONS)
    table = score_table(recording, with_relations=with_relations)
    order = sort_heads(table, options.by, label)
    write(options, table, recording, with_relations=with_relations)
    if options.json:
        top = order if options.top is None else order.rows(range(min(options.top, len(order))))
        ablation = None if label is None else measure_ablation(recording, table, label)
        reason = {"reason": ablation} if isinstance(ablation, str) else ablation
        find = None if label is None else {"label": label.name, "threshold": label.threshold, "ablation": reason}
        print_json(model=options.model, input=recording.description, find=find, heads=heads_to_json(top))
        return
    console = make_console(options)
    if label is not None:
        console.print(f"[bold]{label.name}[/bold]: {label.meaning}\n")
    else:
        console.print(f"{len(table)} heads on {recording.description}: {count_labels(table)}\n")
    top = order.rows(range(min(TOP if options.top is None else options.top, len(order))))
    console.print(top if console.is_terminal else top.to_text(console.width), markup=False, soft_wrap=True)
    if label is not None:
        show_ablation(measure_ablation(recording, table, label), console)


def make_console(options: Options) -> Console:
    """Return a console with wide lines in a pipe; on standard error if standard output has the CSV."""
    from rich.console import Console

    console = Console(stderr=options.csv == "-", highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = LINE_WIDTH
    return console


def check(options: Options) -> None:
    """Raise an error for invalid options, before anything takes time."""
    from attnscope.heads import SCORES
    from attnscope.heads.labels import LABELS

    if options.model is None:
        raise SettingError("heads: give a MODEL to score, or a training run with --over-training RUN")
    for name in ("length", "needles", "depths", "save"):
        if getattr(options, name) is not None and options.find not in NEEDLE_LABELS:
            raise SettingError(f"heads: --{name} needs --find retrieval or --find streaming")
    for name in ("top", "tokens", "length", "needles", "depths"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise SettingError(f"heads: --{name} must be at least 1, got {getattr(options, name)}")
    if options.tokens is not None and options.text is None:
        raise SettingError("heads: --tokens needs a TEXT")
    known = dict.fromkeys([*SCORES, *(score for label in LABELS for score in label.scores)])
    if options.by is not None and options.by not in known:
        raise SettingError(f"heads: --by: {unknown('score', options.by, known)}")
    if options.json and options.csv == "-":
        raise SettingError("heads: --json and --csv - both write to standard output; leave out one")
    others = [name for name in ("find", "by", "csv", "parquet", "pictures") if getattr(options, name) is not None]
    if options.link is not None and (others or options.relations):
        raise SettingError(f"heads: --link ranks heads by a link alone; leave out --{(others or ['relations'])[0]}")
    for file in (options.csv, options.parquet):
        check_output_file(file, command_name="heads")
    if options.pictures is not None and Path(options.pictures).is_file():
        raise SettingError(f"heads: --pictures {options.pictures} is a file; expected a folder")
    if options.parquet is not None:
        require("tables", "pyarrow")
    if options.pictures is not None:
        require("figures")


def open_recording(options: Options) -> Recording:
    """Open a saved trace."""
    from attnscope.recording import open_trace

    if options.text is not None:
        raise SettingError(f"heads: {options.model} is a saved trace with its own text; leave out TEXT")
    return Recording(open_trace(options.model))


def record_model(options: Options) -> Recording:
    """Record a model on the text, if given, and on the repeated-token probe."""
    from attnscope.heads import read_repeated_tokens
    from attnscope.recording import estimate, read

    text = None if options.text is None else read_text_argument(options.text, command_name="heads")
    model, tokenizer = load_model(options.model, command_name="heads")
    ids = None if text is None else to_input_ids(model, tokenizer, text, options, command_name="heads")
    if ids is not None and len(ids) < 2:
        raise SettingError("heads: expected a text of at least two tokens, got one")
    if ids is not None and len(ids) >= MIN_ESTIMATED:
        print(estimate(model, len(ids)), file=sys.stderr)
    if options.link is not None:
        if ids is None:
            raise SettingError("heads: --link needs a TEXT")
        return Recording(read(model, ids, tokenizer))
    probe = read_repeated_tokens(model, tokenizer)
    return Recording(probe if ids is None else read(model, ids, tokenizer), probe, model, tokenizer)


def score_table(recording: Recording, *, with_relations: bool) -> HeadTable:
    """Score all heads; without a text, on the probe."""
    from attnscope.heads import assign_labels, relation_table, score_heads, score_relations
    from attnscope.heads.labels import RELATIONS

    table = score_heads(recording.trace, probe=None if recording.probe is recording.trace else recording.probe)
    if not with_relations:
        return table
    if recording.model is None:
        raise SettingError("heads: agreement and coreference are scored on built-in sentences, which need a model")
    found = relation_table(score_relations(recording.model, recording.tokenizer))
    by_probe = [score for score in table.columns if score.endswith("_probe")]
    return assign_labels(table.join(found).with_first_columns(*by_probe, *RELATIONS))


def sort_heads(table: HeadTable, by: str | None, label: Label | None) -> HeadTable:
    """Return the heads in printing order: by a score, or by label and its score."""
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


def count_labels(table: HeadTable) -> str:
    """Return the number of heads with each label, as text."""
    counts = Counter(label for labels in table.labels or () for label in labels)
    return ", ".join(f"{count} {label}" for label, count in counts.most_common())


def write(options: Options, table: HeadTable, recording: Recording, *, with_relations: bool) -> None:
    """Write the requested files."""
    write_table(table, csv=options.csv, parquet=options.parquet, command_name="heads")
    if options.pictures is not None:
        with report_write_errors(options.pictures, command_name="heads"):
            draw(table, recording, Path(options.pictures), with_relations=with_relations)


def draw(table: HeadTable, recording: Recording, folder: Path, *, with_relations: bool) -> None:
    """Write one picture per label."""
    from attnscope.heads.pictures import label_pictures
    from attnscope.heads.sentences import agreement, coreference
    from attnscope.recording import read

    sentences = {"agreement": agreement()[0], "coreference": coreference()[0]} if with_relations else {}
    examples = {
        name: read(recording.model, sentence.text, recording.tokenizer)
        for name, sentence in sentences.items()
        if recording.model is not None
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in label_pictures(table, recording.trace, recording.probe, examples):
        figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH)


def measure_ablation(recording: Recording, table: HeadTable, label: Label) -> dict[str, Any] | str:
    """Measure the loss on the probe with the heads of a label ablated, and with as many others; or return why not.

    Each list contains the mean over the first and over the second half of the probe, in nats per token.
    """
    from attnscope.heads.comparison import compare_with_random_heads
    from attnscope.heads.effects import predicts_next_token
    from attnscope.heads.labels import RELATIONS

    found = table.with_label(label.name)
    if not len(found):
        return f"No head reaches the threshold of this label, {label.threshold:g}."
    if label.name in RELATIONS or recording.probe is None or not predicts_next_token(recording.model):
        return "No heads were ablated: that needs a model that predicts tokens, and a label scored on the probe."
    most = table.heads_by_layer
    if any(2 * len(heads) > len(most[layer]) for layer, heads in found.heads_by_layer.items()):
        return f"No heads were ablated: {len(found)} have the label, and too few others are in their layers to compare."
    ids = recording.probe.texts[-1].ids[0]
    compared = compare_with_random_heads(recording.model, ids, found, table, num_draws=DRAWS)
    halves = slice(0, len(ids) // 2 - 1), slice(len(ids) // 2, None)
    losses = {"loss": compared.loss, "change": compared.change, "change_of_others": compared.random_changes.mean(0)}
    means = {name: [float(loss[half].mean()) for half in halves] for name, loss in losses.items()}
    return {"heads": len(found), "draws": DRAWS, **means}


def show_ablation(ablation: dict[str, Any] | str, console: Console) -> None:
    """Print the change of the loss, or why no heads were ablated."""
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
