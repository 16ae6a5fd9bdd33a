"""`attnscope generate MODEL PROMPT`: text as it is written, and nothing else, on standard output."""

from __future__ import annotations

import argparse
import io
import sys
import time
from typing import TYPE_CHECKING

from attnscope.cli.parsers import add_command
from attnscope.cli.progress import progress_on_standard_error
from attnscope.cli.texts import given_text
from attnscope.errors import SettingError, UnsupportedError

if TYPE_CHECKING:
    from rich.progress import Progress

    from attnscope.models import Decoder, Sampling
    from attnscope.models.text.codec import Codec

DTYPES = ("auto", "float32", "bfloat16", "float16")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "generate",
        about="let a model go on with a text",
        description="Print what a model writes, as it comes. Only that goes to standard output, so it can be piped.",
        examples=['attnscope generate HuggingFaceTB/SmolLM2-135M-Instruct "Name a river." --chat'],
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a name on the hub, or a GGUF file")
    parser.add_argument("prompt", metavar="PROMPT", help="the text to go on with; - reads it from standard input")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="at most so many (default: 128)")
    parser.add_argument("--chat", action="store_true", help="take the prompt as a message, by the chat template")
    parser.add_argument("--system", metavar="TEXT", help="with --chat: what the model is told before the message")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    group = parser.add_argument_group("sampling", "without any of these, the likeliest token is always taken")
    group.add_argument("--temperature", type=float, metavar="T", help="below 1 is safer, above 1 is bolder")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest that have probability P")
    group.add_argument("--min-p", type=float, metavar="P", help="draw from those with a share P of the likeliest's")
    group.add_argument("--seed", type=int, default=0, help="the same seed writes the same text (default: 0)")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="compute in it (default: as in the file)")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> None:
    """Load, read the prompt, and print pieces of text as they come."""
    from attnscope.models import stream

    if options.system is not None and not options.chat:
        raise SettingError("generate: --system goes with --chat")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot write a character still shows the rest
    sampling = sampling_of(options)
    prompt = given_text("generate") if options.prompt == "-" else options.prompt
    with progress_on_standard_error() as bar:
        model, tokenizer = open_model(options, bar)
        text = chat_text(tokenizer, prompt, options.system) if options.chat else prompt
        reading = bar.add_task("reading the prompt", total=None)
        pieces = stream(
            model,
            tokenizer,
            [text],
            max_new_tokens=options.max_new_tokens,
            sampling=sampling,
            stop=options.stop,
            special=not options.chat,
            progress=lambda done, whole: bar.update(reading, completed=done, total=whole),
        )
        first = next(pieces, None)
    started, count = time.perf_counter(), 0
    if first is not None:
        print(first[1], end="", flush=True)
    for _, piece in pieces:
        count += 1
        print(piece, end="", flush=True)
    print(flush=True)
    if sys.stderr.isatty() and count:
        speed = count / (time.perf_counter() - started)
        print(f"[{speed:.1f} pieces of text a second]", file=sys.stderr)


def sampling_of(options: argparse.Namespace) -> Sampling:
    """Greedy unless something is said about sampling."""
    from attnscope.models import GREEDY, Sampling

    asked = (options.temperature, options.top_k, options.top_p, options.min_p)
    if all(value is None for value in asked):
        return GREEDY
    return Sampling(
        temperature=1.0 if options.temperature is None else options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
    )


def open_model(options: argparse.Namespace, bar: Progress) -> tuple[Decoder, Codec]:
    """The decoder and tokenizer of what was given as MODEL."""
    import torch

    from attnscope.models import Decoder, load, load_tokenizer
    from attnscope.models.checkpoint import locate

    place = locate(options.model)
    loading = bar.add_task("loading the model", total=None)
    dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
    model = load(place, dtype=dtype, progress=lambda done, whole: bar.update(loading, completed=done, total=whole))
    if not isinstance(model, Decoder):
        raise UnsupportedError(f"generate: {options.model} is an encoder, which reads text and writes none")
    return model, load_tokenizer(place)


def chat_text(tokenizer: Codec, prompt: str, system: str | None) -> str:
    """The prompt as the message of a user, in the form that the model was trained on."""
    from attnscope.models import Tokenizer, render_chat

    if not isinstance(tokenizer, Tokenizer) or tokenizer.chat_template is None:
        raise UnsupportedError("generate: this model has no chat template; leave out --chat")
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": prompt})
    return render_chat(tokenizer.chat_template, messages, **tokenizer.special_tokens)
