"""`attnscope heads MODEL [TEXT] --find retrieval`: the heads that fetch facts from far back in a long text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.json_output import heads_to_json, print_json
from attnscope.cli.output_paths import check_output_file, report_write_errors, write_table
from attnscope.cli.texts import load_model, read_text_argument
from attnscope.errors import SettingError
from attnscope.extras import require

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.cli.commands import Options
    from attnscope.heads import HeadTable, Label
    from attnscope.heads.retrieval import Binned, Retrieval

LENGTH, DEPTHS, NEEDLES = 8192, 10, 40
BEST = 10  # heads that are shown by depth and distance
OTHER_OPTIONS = ("tokens", "by", "link")
"""Options that apply to a text, not to needles in it."""


def show_retrieval(options: Options, label: Label, console: Console, top: int) -> None:
    """Score all heads on needles, print them, and write the requested files."""
    from attnscope.heads.retrieval import find_retrieval_heads
    from attnscope.labs import reference_text
    from attnscope.recording import estimate

    depths, needles = options.depths or DEPTHS, options.needles or NEEDLES
    length = options.length or LENGTH
    check(options, depths, needles)
    text = reference_text() if options.text is None else read_text_argument(options.text, command_name="heads")
    model, tokenizer = load_model(options.model, command_name="heads")
    one = estimate(model, length)
    print(f"each of the longest documents has {length:,} tokens; {one}", file=sys.stderr)
    found = find_retrieval_heads(model, text, tokenizer, length=length, needles=needles)
    table = found.table()
    order = table.with_first_columns(label.name, f"{label.name}_error").top(label.name)
    write(options, found, table)
    best = order.rows(range(min(BEST, len(order))))
    if options.json:
        chosen = order if options.top is None else order.rows(range(min(options.top, len(order))))
        print_json(
            model=options.model,
            input=describe(found),
            find={"label": label.name, "threshold": label.threshold, "ablation": ablation_to_json(found)},
            heads=heads_to_json(chosen),
            by_depth=bins_to_json(found.by_depth(label.name, bins=depths), found, best),
            by_distance=bins_to_json(found.by_distance(label.name), found, best),
        )
        return
    console.print(f"[bold]{label.name}[/bold]: {label.meaning}\n\n{describe(found)}\n", highlight=False)
    shown = order.rows(range(min(top, len(order))))
    console.print(shown if console.is_terminal else shown.to_text(console.width), markup=False, soft_wrap=True)
    show_bins("depth in the text", found.by_depth(label.name, bins=depths), found, best, console, scale=100, unit="%")
    show_bins("tokens back", found.by_distance(label.name), found, best, console)
    show_ablation(found, console)


def check(options: Options, depths: int, needles: int) -> None:
    """Raise an error for invalid options, before anything takes time."""
    for name in OTHER_OPTIONS:
        if getattr(options, name) is not None:
            raise SettingError(f"heads: --find {options.find} puts needles into a text; leave out --{name}")
    if depths < 1 or needles < 2 * depths:
        raise SettingError(
            f"heads: expected two needles per depth or more, got --needles {needles} and --depths {depths}"
        )
    if (Path(options.model) / "trace.json").is_file():
        raise SettingError(f"heads: --find {options.find} asks a model questions; {options.model} is a saved trace")
    check_output_file(options.save, command_name="heads")
    if options.pictures is not None:
        require("figures")


def describe(found: Retrieval) -> str:
    """Return what was read, and how many answers the model predicts at each length."""
    parts = []
    for length in found.lengths.unique().tolist():
        chosen = found.lengths == length
        parts.append(f"{int(found.found[chosen].sum())} of {int(chosen.sum())} at {length:,} tokens")
    return f"answers that the model predicts: {', '.join(parts)}"


def write(options: Options, found: Retrieval, table: HeadTable) -> None:
    """Write the requested files."""
    write_table(table, csv=options.csv, parquet=options.parquet, command_name="heads")
    if options.save is not None:
        with report_write_errors(options.save, command_name="heads"):
            rows = found.full_attention_heads().tolist()
            Path(options.save).write_text("".join("\t".join(f"{score:.6f}" for score in row) + "\n" for row in rows))
    if options.pictures is not None:
        folder = Path(options.pictures)
        with report_write_errors(folder, command_name="heads"):
            folder.mkdir(parents=True, exist_ok=True)
            for score in ("retrieval", "streaming"):
                found.figure(score=score, bins=options.depths or DEPTHS).savefig(folder / f"{score}.png")


def bins_to_json(bins: Binned, found: Retrieval, best: HeadTable) -> dict[str, Any]:
    """Return the means and standard errors of the best heads in each bin."""
    columns = {
        name: found.column(layer, head)
        for name, layer, head in zip(best.head_names, best.layers, best.heads, strict=True)
    }
    means, errors = (
        {name: values[:, at].tolist() for name, at in columns.items()} for values in (bins.means, bins.errors)
    )
    return {"edges": bins.edges, "needles": bins.counts, "means": means, "standard_errors": errors}


def show_bins(
    title: str, bins: Binned, found: Retrieval, best: HeadTable, console: Console, *, scale: int = 1, unit: str = ""
) -> None:
    """Print the means and standard errors of the best heads in each bin."""
    from rich.table import Table

    edges = [f"{edge * scale:,.0f}" for edge in bins.edges]
    filled = [at for at, count in enumerate(bins.counts) if count]
    heading = [f"{edges[at]}-{edges[at + 1]}{unit}" for at in filled]
    shown = Table(title, *heading, box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name, layer, head in zip(best.head_names, best.layers, best.heads, strict=True):
        at = found.column(layer, head)
        shown.add_row(name, *(with_error(float(bins.means[row, at]), float(bins.errors[row, at])) for row in filled))
    console.print()
    console.print(shown)


def with_error(mean: float, error: float) -> str:
    """Return a mean and its standard error, or a dash if no needle of a bin has this score."""
    return f"{mean:.2f}±{error:.2f}" if mean == mean else "-"


def ablation_to_json(found: Retrieval) -> dict[str, Any] | None:
    """Return the loss of the answers with all heads, without the best and without random others."""
    if found.ablation is None:
        return None
    heads, loss, ablated, others = found.ablation
    names = [{"layer": layer, "head": head} for layer, head in zip(heads.layers, heads.heads, strict=True)]
    return {"heads": names, "loss": loss, "change": ablated - loss, "change_of_others": (others - loss).tolist()}


def show_ablation(found: Retrieval, console: Console) -> None:
    """Print the change of the loss of the answers."""
    from rich.table import Table

    if found.ablation is None:
        console.print("\nheads were not ablated: a layer computes attention more than once per pass")
        return
    heads, loss, ablated, others = found.ablation
    shown = Table("answers at the longest length", "nats per token", box=None, header_style="bold")
    shown.add_row("loss with all heads", f"{loss:.3f}")
    shown.add_row(f"change when {', '.join(heads.head_names)} are ablated", f"{ablated - loss:+.3f}")
    error = float(others.std()) / len(others) ** 0.5 if len(others) > 1 else float("nan")
    other = f"{float(others.mean()) - loss:+.3f} ± {error:.3f}"
    shown.add_row(f"change when {len(heads)} others are, mean of {len(others)} draws", other)
    console.print()
    console.print(shown)
