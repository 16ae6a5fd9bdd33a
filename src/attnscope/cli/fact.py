"""`attnscope fact MODEL TEXT`: why a model finds or misses a fact of a text, as a page."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from attnscope.cli.commands import Options, argument, command, option
from attnscope.cli.output_paths import check_output_file, report_write_errors
from attnscope.cli.texts import load_model, read_text_argument

PAGE = "fact.html"
MIN_ESTIMATED = 2048  # tokens from which on an estimate is printed


@command(
    "fact",
    about="find out why a model finds or misses a fact of a text",
    description="Ask for a fact after a text, and write a page: which heads attend to the fact, what ablating them "
    "costs, and where their attention goes instead.",
    examples=['attnscope fact smollm2-135m report.txt --fact cobalt --question "The code is"'],
)
@argument("model", about="a folder, a GGUF file, a name on the hub, or a downloaded model such as smollm2-135m")
@argument("text", about="a text, a text file, or - for standard input")
@option("--fact", required=True, metavar="WORDS", about="words of the text that answer the question")
@option("--question", required=True, metavar="TEXT", about="the text that the answer continues")
@option("--out", type=click.Path(), default=PAGE, metavar="FILE", about=f"the page to write (default: {PAGE})")
def fact(options: Options) -> None:
    """Ask for the fact, print a line, and write the page."""
    from attnscope.heads import explain_fact
    from attnscope.heads.fact_page import fact_page
    from attnscope.recording import estimate

    check_output_file(options.out, command_name="fact")
    text = read_text_argument(options.text, command_name="fact")
    model, tokenizer = load_model(options.model, command_name="fact")
    length = len(tokenizer.encode(text))
    if length >= MIN_ESTIMATED:
        print(estimate(model, length), file=sys.stderr)
    report = explain_fact(model, tokenizer, text, fact=options.fact, question=options.question)
    verdict = "found" if report.is_found else f"missed (predicted {report.predicted!r})"
    print(f"{verdict}; loss {report.loss:.3f}, without the fact {report.loss_without_fact:.3f} nats per token")
    print(f"attended by {', '.join(report.ablations[-1].heads)}")
    if report.why_missed:
        print(report.why_missed)
    with report_write_errors(options.out, command_name="fact"):
        Path(options.out).write_text(fact_page(report, model=Path(options.model).name), encoding="utf-8")
    print(options.out, file=sys.stderr)
