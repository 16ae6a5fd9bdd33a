"""Chat templates: a conversation as the text that a model was trained on.

In: a chat template, which is an untrusted program, and messages. Out: the text of the conversation.
Does not know: tokenizers or models; pass a tokenizer's special tokens: `**tokenizer.special_tokens`.
Memory: O(length of the text) here; the template runs in a separate process, with the limits below.

Jinja's sandbox keeps a template from accessing the machine, but not from running forever or filling the memory. So a
template is rendered by a new Python process without environment variables and files, with limits on memory, CPU time,
wall time and output length. Where the system cannot limit memory and CPU time (Windows; macOS in part), the limits on
wall time and output length remain.
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
MAX_CPU_SECONDS = 2
MAX_SECONDS = 20  # of wall time, on a machine that may be busy
MAX_CHARACTERS = 16 * 2**20
MAX_DEPTH = 64  # of nested lists and dicts; json itself fails at a few hundred


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    r"""Render a conversation with a chat template of Hugging Face.

    Args:
        template: The template, in Jinja.
        messages: Dicts with `role` and `content`.
        add_generation_prompt: Whether to end with the start of the assistant's message.
        tools: JSON schemas of tools.
        variables: Further variables of the template, such as `bos_token`. All values must be JSON: strings, numbers,
            lists, dicts.

    Returns:
        The text of the conversation, special tokens included.

    Raises:
        CheckpointError: If the template fails, rejects the messages, or exceeds the limits.
        ValueError: If a value is not JSON.

    >>> template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    >>> render_chat(template, [{"role": "user", "content": "Hello"}])
    'user: Hello\n'
    """
    given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
    given |= variables
    plain = {name: _to_json(value, name) for name, value in given.items()}
    try:
        request = json.dumps({"template": template, "variables": plain})
    except ValueError as error:  # an integer of more digits than Python writes
        raise ValueError(f"render_chat takes what JSON can hold: {error}") from error
    answer = _run_process(_command(), request.encode("ascii"))
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


def _to_json(value: object, place: str, depth: int = 0) -> object:
    """The value as JSON; an error names the place of what JSON does not support."""
    if depth > MAX_DEPTH:
        raise ValueError(f"render_chat: {place[:80]}... goes more than {MAX_DEPTH} levels deep, or contains itself")
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [_to_json(entry, f"{place}[{number}]", depth + 1) for number, entry in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _to_json(entry, f"{place}[{name!r}]", depth + 1) for name, entry in value.items()}
    raise ValueError(
        f"render_chat takes what JSON can hold, but {place} is {str(value)[:40]!r} ({type(value).__name__}); "
        "turn it into strings, numbers, lists and dicts with strings as keys"
    )


def _command() -> list[str]:
    """The command of the process: isolated from the user's Python settings, with only jinja2 to import."""
    jinja2 = import_extra("jinja2")
    files = (jinja2.__file__, jinja2.utils.markupsafe.__file__)
    folders = {str(Path(file).resolve().parents[1]) for file in files if file}
    limits = map(str, (MAX_BYTES, MAX_CPU_SECONDS, MAX_CHARACTERS))
    return [sys.executable, "-I", "-S", template_sandbox.__file__, *limits, *sorted(folders)]


def _run_process(program: list[str], request: bytes) -> dict[str, Any]:
    """Run the process, and return its parsed output."""
    # The time zone for strftime, and the system folder for Python on Windows; nothing else is passed on.
    environment = {name: os.environ[name] for name in ("TZ", "SYSTEMROOT") if name in os.environ}
    try:
        done = subprocess.run(
            program,
            input=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=MAX_SECONDS,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"the chat template was stopped: it took more than {MAX_SECONDS} seconds") from None
    except OSError as error:
        raise CheckpointError(f"no process could be started to render the chat template: {error}") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    if done.returncode == -getattr(signal, "SIGXCPU", 0):
        raise CheckpointError(f"the chat template was stopped: it computed for more than {MAX_CPU_SECONDS} seconds")
    raise CheckpointError(f"the chat template ended its process with status {done.returncode} and without an answer")
