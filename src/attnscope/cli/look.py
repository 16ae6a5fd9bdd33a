"""`attnscope look MODEL [TEXT | PHOTO [QUESTION]]`: open the explorer on a model and a text or a photo."""

from __future__ import annotations

import sys
from pathlib import Path

from attnscope.cli.commands import Options, argument, command, option
from attnscope.cli.explore import address_of, address_options
from attnscope.cli.photos import is_photo, record_photo
from attnscope.cli.texts import load_model, read_text_argument, to_input_ids
from attnscope.errors import SettingError
from attnscope.extras import require

MIN_ESTIMATED = 2048  # tokens from which on an estimate is printed


@command(
    "look",
    about="show what a model attends to, in the browser",
    description="Show in the browser what a model attends to, in TEXT and in text that you type, or on a photo. Ctrl-C "
    "stops it.",
    examples=[
        "attnscope look HuggingFaceTB/SmolLM2-135M-Instruct report.txt",
        "attnscope look smollm2-135m report.txt",
        "attnscope look facebook/dinov2-small photo.jpg",
        'attnscope look llava-hf/llava-1.5-7b-hf photo.jpg "What is this?" --answer 20',
    ],
)
@argument("model", about="a folder, a GGUF file, a name on the hub, or a downloaded model such as smollm2-135m")
@argument("text", required=False, about="a text, a text file, an image file, or - for standard input")
@argument("question", required=False, about="a question about the image, for vision-language models")
@option("--tokens", type=int, metavar="N", about="read only the first N tokens of the text")
@option(
    "--answer",
    type=int,
    default=0,
    metavar="N",
    about="let a vision-language model write an answer of at most N tokens, and show it with the question",
)
@address_options
def look(options: Options) -> None:
    """Record the text, open the explorer and wait."""
    if options.tokens is not None and (options.text is None or options.tokens < 1):
        raise SettingError("look: --tokens needs a TEXT and a number of at least 1")
    if (Path(options.model) / "trace.json").is_file():
        raise SettingError(f"look: {options.model} is a saved trace; open it with: attnscope explore {options.model}")
    if options.text is not None and is_photo(options.text):
        look_at_photo(options)
        return
    if options.question is not None or options.answer:
        part = "--answer" if options.question is None else "a QUESTION"
        raise SettingError(f"look: {part} needs an image file, and {options.text} is none")
    text = None if options.text is None else read_text_argument(options.text, command_name="look")
    require("explore", "starlette", "uvicorn", "safetensors")
    model, tokenizer = load_model(options.model, command_name="look")
    from attnscope.explorer import look as open_explorer
    from attnscope.recording import estimate

    ids = None if text is None else to_input_ids(model, tokenizer, text, options, command_name="look")
    if ids is not None and len(ids) >= MIN_ESTIMATED:
        print(estimate(model, len(ids)), file=sys.stderr)
    open_explorer(model, tokenizer, ids, name=Path(options.model).name, **address_of(options))


def look_at_photo(options: Options) -> None:
    """Record the photo, open the explorer on its picture and wait."""
    if options.tokens is not None:
        raise SettingError("look: --tokens is for a text, not for an image")
    if options.answer < 0:
        raise SettingError(f"look: --answer needs a number of at least 0, got {options.answer}")
    require("explore", "starlette", "uvicorn", "safetensors")
    from attnscope.explorer import explore as open_explorer

    trace = record_photo(options.model, options.text, options.question, max_new_tokens=options.answer)
    open_explorer(trace, name=Path(options.model).name, **address_of(options))
