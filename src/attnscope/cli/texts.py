"""Loads the MODEL argument and reads the TEXT argument of several commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.commands import Options
from attnscope.cli.progress import stderr_progress
from attnscope.errors import SettingError, UnsupportedError

if TYPE_CHECKING:
    from torch import nn


def load_model(place: str, *, command_name: str) -> tuple[nn.Module, Any]:
    """Load a model and its tokenizer; `command_name` starts error messages."""
    with stderr_progress() as bar:
        task = bar.add_task("loading the model", total=None)
        from attnscope.recording import load  # imports torch, which takes seconds

        model, tokenizer = load(place, progress=lambda done, whole: bar.update(task, completed=done, total=whole))
    if tokenizer is None:
        raise UnsupportedError(f"{command_name}: {place} has no tokenizer, which TEXT needs")
    return model, tokenizer


def to_input_ids(model: nn.Module, tokenizer: Any, text: str, options: Options, *, command_name: str) -> list[int]:
    """Return the first `options.tokens` tokens of a text; raise if they exceed the context length of an encoder."""
    from attnscope.models import Encoder

    ids = tokenizer.encode(text)[: options.tokens]
    longest = model.config.max_position_embeddings if isinstance(model, Encoder) else None
    if longest is not None and len(ids) > longest:
        raise SettingError(
            f"{command_name}: expected at most {longest:,} tokens for {options.model}, got {len(ids):,}; use "
            f"--tokens {longest}"
        )
    return ids


def read_text_argument(given: str, *, command_name: str) -> str:
    """Return the text, or the content of a text file; raise if it looks like a file name and no such file exists."""
    if not given.strip():
        raise SettingError(f"{command_name}: the text is empty")
    path = Path(given)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError:  # too long for a name
        is_file, is_folder = False, False
    text = read_standard_input(command_name) if given == "-" else given
    try:
        text = path.read_text(encoding="utf-8") if is_file else text
    except UnicodeDecodeError as error:
        raise SettingError(
            f"{command_name}: {given} is not UTF-8 text: {error.reason} at byte {error.start:,}; give a text file"
        ) from error
    except OSError as error:
        raise SettingError(f"{command_name}: {given} cannot be read: {error.strerror or error}") from error
    if is_folder:
        raise SettingError(f"{command_name}: {given} is a folder; expected a text or a text file")
    looks_like_a_file = path.suffix or "/" in given
    if not is_file and looks_like_a_file and not any(character.isspace() for character in given):
        raise SettingError(
            f"{command_name}: {given!r} looks like a file name, but no such file exists; a text has more than one word"
        )
    if not text.strip():
        raise SettingError(f"{command_name}: the text of {given!r} is empty")
    return text


def read_standard_input(command_name: str) -> str:
    """Read standard input as text."""
    try:
        text = sys.stdin.read()
        text.encode()  # with another locale, Python accepts any bytes as surrogates
    except UnicodeError as error:
        raise SettingError(f"{command_name}: standard input is not UTF-8 text") from error
    return text
