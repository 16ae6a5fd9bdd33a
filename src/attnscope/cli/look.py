"""`attnscope look MODEL [TEXT]`: open the explorer on a model and a text."""

from __future__ import annotations

import sys
from pathlib import Path

from attnscope.cli.commands import Options, argument, command, option
from attnscope.cli.explore import address_of, address_options
from attnscope.cli.texts import load_model, read_text_argument, to_input_ids
from attnscope.errors import SettingError
from attnscope.extras import require

MIN_ESTIMATED = 2048  # tokens from which on an estimate is printed


@command(
    "look",
    about="show what a model attends to, in the browser",
    description="Show in the browser what a model attends to, in TEXT and in text that you type. Ctrl-C stops it.",
    examples=[
        "attnscope look HuggingFaceTB/SmolLM2-135M-Instruct report.txt",
        "attnscope look smollm2-135m report.txt",
    ],
)
@argument("model", about="a folder, a GGUF file, a name on the hub, or a downloaded model such as smollm2-135m")
@argument("text", required=False, about="a text, a text file, or - for standard input")
@option("--tokens", type=int, metavar="N", about="read only the first N tokens of the text")
@address_options
def look(options: Options) -> None:
    """Record the text, open the explorer and wait."""
    if options.tokens is not None and (options.text is None or options.tokens < 1):
        raise SettingError("look: --tokens needs a TEXT and a number of at least 1")
    if (Path(options.model) / "trace.json").is_file():
        raise SettingError(f"look: {options.model} is a saved trace; open it with: attnscope explore {options.model}")
    text = None if options.text is None else read_text_argument(options.text, command_name="look")
    require("explore", "starlette", "uvicorn", "safetensors")
    from attnscope.explorer import look as open_explorer
    from attnscope.recording import estimate

    model, tokenizer = load_model(options.model, command_name="look")
    ids = None if text is None else to_input_ids(model, tokenizer, text, options, command_name="look")
    if ids is not None and len(ids) >= MIN_ESTIMATED:
        print(estimate(model, len(ids)), file=sys.stderr)
    open_explorer(model, tokenizer, ids, name=Path(options.model).name, **address_of(options))
