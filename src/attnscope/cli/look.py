"""`attnscope look MODEL [TEXT]`: what a model attends to, in the browser, and sentences to type."""

from __future__ import annotations

import sys
from pathlib import Path

from attnscope.cli.commands import Options, argument, command, option
from attnscope.cli.explore import address_of, address_options
from attnscope.cli.texts import model_at, text_of, to_input_ids
from attnscope.errors import SettingError
from attnscope.extras import require

ESTIMATED = 2048  # tokens from which on it is worth saying how long it will take


@command(
    "look",
    about="show what a model attends to, in the browser",
    description="Show in the browser what a model attends to, in TEXT and in sentences that you type. Ctrl-C ends it.",
    examples=["attnscope look HuggingFaceTB/SmolLM2-135M-Instruct report.txt"],
)
@argument("model", about="a folder, a name on the hub, or a GGUF file")
@argument("text", required=False, about="a text, a text file, or - for standard input")
@option("--tokens", type=int, metavar="N", about="read only the first N tokens of the text")
@address_options
def look(options: Options) -> None:
    """Read, open and wait."""
    if options.tokens is not None and (options.text is None or options.tokens < 1):
        raise SettingError("look: --tokens needs a TEXT, and is at least 1")
    if (Path(options.model) / "trace.json").is_file():
        raise SettingError(f"look: {options.model} is a saved trace; open it with: attnscope explore {options.model}")
    text = None if options.text is None else text_of(options.text, asked_by="look")
    require("explore", "starlette", "uvicorn", "safetensors")
    from attnscope.explorer import look as open_explorer
    from attnscope.recording import estimate

    model, tokenizer = model_at(options.model, asked_by="look")
    ids = None if text is None else to_input_ids(model, tokenizer, text, options, asked_by="look")
    if ids is not None and len(ids) >= ESTIMATED:
        print(estimate(model, len(ids)), file=sys.stderr)
    open_explorer(model, tokenizer, ids, name=Path(options.model).name, **address_of(options))
