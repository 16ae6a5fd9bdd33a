"""A conversation as the text that a model was trained to go on with.

In: a chat template, which is a program from the internet, and messages. Out: the text of the conversation.
Does not know: tokenizers or models; pass a tokenizer's special tokens along: `**tokenizer.special_tokens`.
Memory: O(length of the text) here; the template runs in a process of its own, with the limits below.

Jinja's sandbox keeps a template from reaching the machine, but not from computing for ever or filling the memory. So a
template is rendered by a fresh Python that has no environment and can open no file, and whose memory, computing time,
waiting time and length of answer are limited. Where the system cannot limit memory and computing time (Windows; macOS
in part), the waiting time and the length of the answer still are.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnscope.errors import CheckpointError
from attnscope.extras import import_extra
from attnscope.models.text import template_sandbox

MAX_BYTES = 512 * 2**20
MAX_COMPUTING = 2  # seconds of a processor
MAX_WAITING = 20  # seconds until the answer, on a machine that may have other things to do
MAX_CHARACTERS = 16 * 2**20
DEEPEST = 64  # lists and dicts inside each other; json itself fails at a few hundred


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    r"""The text of a conversation, by a template in the manner of Hugging Face's.

    `messages` are dicts with role and content; `tools` are JSON schemas; the template finds `variables` by their names.
    All of these are JSON: strings, numbers, lists, dicts. A template that fails, refuses the messages (as some do when
    roles do not alternate) or goes beyond the limits raises a `CheckpointError`.

    >>> template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    >>> render_chat(template, [{"role": "user", "content": "Hello"}])
    'user: Hello\n'
    """
    given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
    given |= variables
    plain = {name: _plain(value, name) for name, value in given.items()}
    try:
        request = json.dumps({"template": template, "variables": plain})
    except ValueError as error:  # an integer of more digits than Python writes
        raise ValueError(f"render_chat takes what JSON can hold: {error}") from error
    answer = _answer_of(_program(), request.encode("ascii"))
    if "text" in answer:
        return answer["text"]
    message = "".join(character if character.isprintable() else " " for character in str(answer.get("message")))
    raise CheckpointError(
        {
            "refused": f"the chat template refuses these messages: {message}",
            "memory": f"the chat template was stopped: it takes more than {MAX_BYTES:,} bytes of memory",
            "length": f"the chat template was stopped: its text has more than {MAX_CHARACTERS:,} characters",
        }.get(str(answer.get("fault")), f"the chat template fails: {message}")
    )


def _plain(value: object, place: str, depth: int = 0) -> object:
    """The value as JSON knows it, or a refusal that says where in it is what JSON does not know."""
    if depth > DEEPEST:
        raise ValueError(f"render_chat: {place[:80]}... goes more than {DEEPEST} levels deep, or contains itself")
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{place}[{number}]", depth + 1) for number, entry in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _plain(entry, f"{place}[{name!r}]", depth + 1) for name, entry in value.items()}
    raise ValueError(
        f"render_chat takes what JSON can hold, but {place} is {str(value)[:40]!r} ({type(value).__name__}); "
        "turn it into strings, numbers, lists and dicts with strings as keys"
    )


def _program() -> list[str]:
    """The command that renders: isolated from the user's Python settings, with nothing but jinja2 to import."""
    jinja2 = import_extra("jinja2")
    files = (jinja2.__file__, jinja2.utils.markupsafe.__file__)
    folders = {str(Path(file).resolve().parents[1]) for file in files if file}
    limits = map(str, (MAX_BYTES, MAX_COMPUTING, MAX_CHARACTERS))
    return [sys.executable, "-I", "-S", template_sandbox.__file__, *limits, *sorted(folders)]


def _answer_of(program: list[str], request: bytes) -> dict[str, Any]:
    """What the process answers, or why it does not."""
    # A clock needs to know where it is, and Windows where it lies; nothing else is passed on.
    environment = {name: os.environ[name] for name in ("TZ", "SYSTEMROOT") if name in os.environ}
    try:
        done = subprocess.run(
            program,
            input=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=MAX_WAITING,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"the chat template was stopped: it took more than {MAX_WAITING} seconds") from None
    except OSError as error:
        raise CheckpointError(f"no process could be started to render the chat template: {error}") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    if done.returncode == -getattr(signal, "SIGXCPU", 0):
        raise CheckpointError(f"the chat template was stopped: it computed for more than {MAX_COMPUTING} seconds")
    raise CheckpointError(f"the chat template ended its process with status {done.returncode} and without an answer")
