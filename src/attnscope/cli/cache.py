"""`attnscope cache MODEL TEXT`: what a model loses when pairs of its KV cache are evicted, by policy and budget."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from attnscope.cli.commands import Name, Options, argument, command, option
from attnscope.cli.json_output import print_json
from attnscope.cli.output_paths import check_output_file, report_write_errors
from attnscope.cli.texts import load_model, read_text_argument
from attnscope.errors import SettingError, unknown
from attnscope.extras import require

if TYPE_CHECKING:
    from attnscope.cache import EvictionReport, EvictionResult
    from attnscope.heads import HeadTable

KEEP, CONTINUATION, WEIGHT = "0.5,0.25,0.1", 256, 0.95
POLICIES = ("received", "window", "recent", "expected", "norm", "random")
"""As in `attnscope.cache.POLICIES`, which is slow to import for help."""
MIN_ESTIMATED = 2048  # tokens from which on an estimate is printed
COLUMNS = ("policy", "kept", "pairs", "loss", "change", "KL", "lost weight", "needles")


@command(
    "cache",
    about="evict pairs of the KV cache, and measure what is lost",
    description="Evict key-value pairs of a context by several policies and budgets, and measure the loss of the "
    "continuation, the KL divergence of the next token, and the attention weight on what is gone.",
    notes="Policies: received (H2O), window (SnapKV), recent (StreamingLLM),\n"
    "expected (Expected Attention), norm and random.",
    examples=[
        "attnscope cache smollm2-135m report.txt",
        "attnscope cache smollm2-135m report.txt --keep 0.25 --needles 5",
        "attnscope cache smollm2-135m report.txt --budgets budgets.parquet",
    ],
)
@argument("model", about="a folder, a GGUF file, a name on the hub, or a downloaded model such as smollm2-135m")
@argument("text", about="a text, a text file, or - for standard input; its last tokens are the continuation")
@option("--tokens", type=int, metavar="N", about="read only the first N tokens of the text")
@option("--keep", default=KEEP, metavar="SHARES", about=f"shares of the pairs to keep (default: {KEEP})")
@option("--by", default=",".join(POLICIES), metavar="POLICIES", about="policies, separated by commas (default: all)")
@option(
    "--per",
    type=Name("unit", ("head", "layer")),
    default="head",
    metavar="UNIT",
    about="head: the same number of pairs in each key-value head; layer: in each layer (default: head)",
)
@option(
    "--continuation",
    type=int,
    default=CONTINUATION,
    metavar="N",
    about=f"tokens at the end of the text that are predicted after eviction (default: {CONTINUATION})",
)
@option("--needles", type=int, default=0, metavar="N", about="facts to put into the context and to ask for after it")
@option("--json", is_flag=True, about="print the results as JSON")
@option("--csv", type=click.Path(), metavar="FILE", about="write the lost weight of every head; - is standard output")
@option(
    "--budgets",
    type=click.Path(),
    metavar="FILE",
    about=f"write the pairs that each key-value head needs to keep {WEIGHT:.0%} of the attention, as Parquet",
)
def cache(options: Options) -> None:
    """Measure all policies and budgets, print and write the results."""
    shares, policies = check(options)
    text = read_text_argument(options.text, command_name="cache")
    model, tokenizer = load_model(options.model, command_name="cache")
    from attnscope.cache import measure_eviction
    from attnscope.recording import estimate

    ids = tokenizer.encode(text)[: options.tokens]
    if len(ids) <= options.continuation:
        raise SettingError(
            f"cache: expected a text of more than {options.continuation:,} tokens, got {len(ids):,}; use a longer "
            "text, or a shorter --continuation"
        )
    if len(ids) >= MIN_ESTIMATED:
        print(estimate(model, len(ids)), file=sys.stderr)
    found = measure_eviction(
        model,
        ids,
        tokenizer,
        keep=shares,
        by=policies,
        per=options.per,
        continuation=options.continuation,
        needles=options.needles,
    )
    write(options, found)
    if options.json:
        results = [to_json(result) for result in found.results]
        base = {"loss": found.loss, "needles_found": int(found.found.sum()), "needles": len(found.found)}
        print_json(
            model=options.model, context=found.context, continuation=options.continuation, **base, results=results
        )
    elif options.csv != "-":
        show(found)


def check(options: Options) -> tuple[list[float], list[str]]:
    """Return the shares and the policies; raise an error for invalid options, before anything takes time."""
    try:
        shares = [float(share) for share in options.keep.split(",")]
    except ValueError:
        raise SettingError(f"cache: --keep: expected numbers such as {KEEP}, got {options.keep!r}") from None
    if any(not 0 < share <= 1 for share in shares):
        raise SettingError(f"cache: --keep: expected shares above 0 and at most 1, got {options.keep}")
    policies = options.by.split(",")
    for name in policies:
        if name not in POLICIES:
            raise SettingError(f"cache: --by: {unknown('policy', name, POLICIES)}")
    if options.tokens is not None and options.tokens < 2:
        raise SettingError(f"cache: --tokens must be at least 2, got {options.tokens}")
    if options.continuation < 2 or options.needles < 0:
        raise SettingError("cache: --continuation must be at least 2, and --needles at least 0")
    if options.json and options.csv == "-":
        raise SettingError("cache: --json and --csv - both write to standard output; leave out one")
    for file in (options.csv, options.budgets):
        check_output_file(file, command_name="cache")
    if options.budgets is not None:
        require("tables", "pyarrow")
    return shares, policies


def write(options: Options, found: EvictionReport) -> None:
    """Write the requested files."""
    if options.csv is not None:
        with report_write_errors(options.csv, command_name="cache"):
            lost_by_head(found).to_csv(sys.stdout if options.csv == "-" else options.csv)
    if options.budgets is not None:
        with report_write_errors(options.budgets, command_name="cache"):
            budgets_by_policy(found).to_parquet(options.budgets)


def lost_by_head(found: EvictionReport) -> HeadTable:
    """Return the lost weight of each query head, with a column for each policy and share."""
    from attnscope.heads import HeadTable

    first = found.results[0].lost
    columns = {f"{result.kept.policy}_{result.kept.fraction:.2g}": result.lost["lost"] for result in found.results}
    return HeadTable(first.layers, first.heads, columns)


def budgets_by_policy(found: EvictionReport) -> HeadTable:
    """Return the recommended pairs of each key-value head, with a column for each policy."""
    from attnscope.cache import recommend_budgets
    from attnscope.heads import HeadTable

    tables = {name: recommend_budgets(scores, found.later, weight=WEIGHT) for name, scores in found.scores.items()}
    first = next(iter(tables.values()))
    return HeadTable(first.layers, first.heads, {name: table["pairs"] for name, table in tables.items()})


def to_json(result: EvictionResult) -> dict[str, Any]:
    """Return the numbers of one policy and budget."""
    return {
        "policy": result.kept.policy,
        "kept": result.kept.fraction,
        "pairs": result.kept.num_pairs,
        "loss": result.loss,
        "kl": float(result.kl.mean()),
        "lost_weight": float(result.lost["lost"].mean()),
        "needles_found": int(result.found.sum()),
    }


def show(found: EvictionReport) -> None:
    """Print a row for each policy and budget; tab-separated lines if the output is not a terminal."""
    from rich.console import Console
    from rich.table import Table

    has_needles = len(found.found) > 0
    columns = COLUMNS if has_needles else COLUMNS[:-1]
    rows = [("all pairs", "100%", "", f"{found.loss:.3f}", "", "", "", needles(found.found))]
    for result in found.results:
        one = to_json(result)
        change, kl = f"{one['loss'] - found.loss:+.3f}", f"{one['kl']:.3f}"
        share, lost = f"{one['kept']:.1%}", f"{one['lost_weight']:.3f}"
        counted = (one["policy"], share, f"{one['pairs']:,}")
        rows.append((*counted, f"{one['loss']:.3f}", change, kl, lost, needles(result.found)))
    console = Console(highlight=False)
    if not console.is_terminal:
        print("\n".join("\t".join(row[: len(columns)]) for row in (columns, *rows)))
        return
    console.print(
        f"a context of {found.context:,} tokens; nats per token of the {len(found.losses):,} predicted tokens\n"
    )
    shown = Table(*columns, box=None, header_style="bold", padding=(0, 2, 0, 0))
    for row in rows:
        shown.add_row(*row[: len(columns)])
    console.print(shown)


def needles(found: Any) -> str:
    """Return how many needles were found."""
    return f"{int(found.sum())} of {len(found)}"
