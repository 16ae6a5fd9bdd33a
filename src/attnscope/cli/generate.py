"""`attnscope generate MODEL PROMPT`: generate text and stream it to standard output."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING

from attnscope.cli.commands import Name, Options, argument, command, option
from attnscope.cli.progress import stderr_progress
from attnscope.cli.texts import read_standard_input
from attnscope.errors import SettingError, UnsupportedError

if TYPE_CHECKING:
    from rich.progress import Progress

    from attnscope.models import Decoder, Sampling
    from attnscope.models.text.any_tokenizer import AnyTokenizer

DTYPES = ("auto", "float32", "bfloat16", "float16")
SAMPLING = "Sampling options (without any of them, generation is greedy)"


@command(
    "generate",
    about="generate text from a prompt",
    description="Generate text from a prompt and print it token by token. Standard output holds nothing else.",
    examples=['attnscope generate HuggingFaceTB/SmolLM2-135M-Instruct "Name a river." --chat'],
)
@argument("model", about="a folder, a GGUF file, a name on the hub, or a downloaded model such as smollm2-135m")
@argument("prompt", type=str, about="the text to continue; - reads it from standard input")
@option("--max-new-tokens", type=int, default=128, metavar="N", about="generate at most N tokens (default: 128)")
@option("--chat", is_flag=True, about="send the prompt as a user message, with the model's chat template")
@option("--system", metavar="TEXT", about="with --chat: the system message")
@option("--stop", multiple=True, metavar="TEXT", about="stop before this text; repeatable")
@option(
    "--dtype",
    type=Name("dtype", DTYPES),
    default="auto",
    metavar="DTYPE",
    about=f"{', '.join(DTYPES)} (default: auto, as in the file)",
)
@option("--temperature", type=float, metavar="T", section=SAMPLING, about="divide logits by T (default: 1)")
@option("--top-k", type=int, metavar="K", section=SAMPLING, about="sample from the K most probable tokens")
@option(
    "--top-p",
    type=float,
    metavar="P",
    section=SAMPLING,
    about="sample from the most probable tokens whose probabilities sum to P",
)
@option(
    "--min-p",
    type=float,
    metavar="P",
    section=SAMPLING,
    about="sample from tokens with at least P times the largest probability",
)
@option("--seed", type=int, default=0, metavar="N", section=SAMPLING, about="random seed (default: 0)")
def generate(options: Options) -> None:
    """Load the model, generate, and print text as it is generated."""
    from attnscope.models import stream

    if options.system is not None and not options.chat:
        raise SettingError("generate: --system needs --chat")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot write a character still shows the rest
    sampling = sampling_of(options)
    prompt = read_standard_input("generate") if options.prompt == "-" else options.prompt
    with stderr_progress() as bar:
        model, tokenizer = open_model(options, bar)
        text = chat_text(tokenizer, prompt, options.system) if options.chat else prompt
        reading = bar.add_task("reading the prompt", total=None)
        pieces = stream(
            model,
            tokenizer,
            [text],
            max_new_tokens=options.max_new_tokens,
            sampling=sampling,
            stop=list(options.stop),
            add_special_tokens=not options.chat,
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
        print(f"[{speed:.1f} tokens per second]", file=sys.stderr)


def sampling_of(options: Options) -> Sampling:
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


def open_model(options: Options, bar: Progress) -> tuple[Decoder, AnyTokenizer]:
    """The decoder and tokenizer of what was given as MODEL."""
    import torch

    from attnscope.models import Decoder, load, load_tokenizer
    from attnscope.models.checkpoint import locate

    place = locate(options.model)
    loading = bar.add_task("loading the model", total=None)
    dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
    model = load(place, dtype=dtype, progress=lambda done, whole: bar.update(loading, completed=done, total=whole))
    if not isinstance(model, Decoder):
        raise UnsupportedError(f"generate: {options.model} is an encoder, which cannot generate text")
    return model, load_tokenizer(place)


def chat_text(tokenizer: AnyTokenizer, prompt: str, system: str | None) -> str:
    """The prompt as the message of a user, in the form that the model was trained on."""
    from attnscope.models import Tokenizer, render_chat

    if not isinstance(tokenizer, Tokenizer) or tokenizer.chat_template is None:
        raise UnsupportedError("generate: this model has no chat template; leave out --chat")
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": prompt})
    return render_chat(tokenizer.chat_template, messages, **tokenizer.special_tokens)
