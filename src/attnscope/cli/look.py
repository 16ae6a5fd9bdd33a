"""`attnscope look MODEL [TEXT]`: what a model attends to, in the browser, and sentences to type."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attnscope.cli.explore import add_where, where_of
from attnscope.cli.parsers import add_command
from attnscope.cli.texts import ids_of, model_at, text_of
from attnscope.errors import SettingError
from attnscope.extras import require

ESTIMATED = 2048  # tokens from which on it is worth saying how long it will take


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "look",
        about="show what a model attends to in the browser",
        description="Show in the browser what a model attends to, in a text and in what you type, until Ctrl-C.",
        examples=["attnscope look HuggingFaceTB/SmolLM2-135M-Instruct report.txt"],
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a name on the hub, or a GGUF file")
    parser.add_argument("text", metavar="TEXT", nargs="?", help="a text or a file of it; - reads standard input")
    parser.add_argument("--tokens", type=int, metavar="N", help="read no more than the first N tokens of the text")
    add_where(parser)
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> None:
    """Read, open and wait."""
    if options.tokens is not None and (options.text is None or options.tokens < 1):
        raise SettingError("look: --tokens is about a text, and at least 1")
    if (Path(options.model) / "trace.json").is_file():
        raise SettingError(f"look: {options.model} is a saved trace; open it with: attnscope explore {options.model}")
    text = None if options.text is None else text_of(options.text, asked_by="look")
    require("explore", "starlette", "uvicorn", "safetensors")
    from attnscope.explore import look
    from attnscope.record import estimate

    model, tokenizer = model_at(options.model, asked_by="look")
    ids = None if text is None else ids_of(model, tokenizer, text, options, asked_by="look")
    if ids is not None and len(ids) >= ESTIMATED:
        print(estimate(model, len(ids)), file=sys.stderr)
    look(model, tokenizer, ids, name=Path(options.model).name, **where_of(options))
