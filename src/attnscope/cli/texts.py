"""What several commands ask for: a model by its name, and a text or a file of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.commands import Options
from attnscope.cli.progress import progress_on_standard_error
from attnscope.errors import SettingError, UnsupportedError

if TYPE_CHECKING:
    from torch import nn


def model_at(place: str, *, asked_by: str) -> tuple[nn.Module, Any]:
    """A model and its tokenizer, which it has to have; `asked_by` is the command that errors speak of."""
    from attnscope.recording import load

    with progress_on_standard_error() as bar:
        task = bar.add_task("loading the model", total=None)
        model, tokenizer = load(place, progress=lambda done, whole: bar.update(task, completed=done, total=whole))
    if tokenizer is None:
        raise UnsupportedError(f"{asked_by}: {place} has no tokenizer, so that it can read no text")
    return model, tokenizer


def to_input_ids(model: nn.Module, tokenizer: Any, text: str, options: Options, *, asked_by: str) -> list[int]:
    """The first `options.tokens` tokens of a text; more than the model can read are refused."""
    from attnscope.models import Encoder

    ids = tokenizer.encode(text)[: options.tokens]
    longest = model.config.max_position_embeddings if isinstance(model, Encoder) else None
    if longest is not None and len(ids) > longest:
        raise SettingError(
            f"{asked_by}: {options.model} reads {longest:,} tokens at most, and the text has {len(ids):,}; give "
            f"--tokens {longest}"
        )
    return ids


def text_of(given: str, *, asked_by: str) -> str:
    """The text itself, or that of a file; what looks like a file and is none is refused."""
    if not given.strip():
        raise SettingError(f"{asked_by}: the text is empty")
    path = Path(given)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError:  # too long for a name
        is_file, is_folder = False, False
    text = given_text(asked_by) if given == "-" else given
    try:
        text = path.read_text(encoding="utf-8") if is_file else text
    except UnicodeDecodeError as error:
        raise SettingError(
            f"{asked_by}: {given} is no text in UTF-8: {error.reason} at byte {error.start:,}; give a text file"
        ) from error
    except OSError as error:
        raise SettingError(f"{asked_by}: {given} cannot be read: {error.strerror or error}") from error
    if is_folder:
        raise SettingError(f"{asked_by}: {given} is a folder; give a text or a file of it")
    looks_like_a_file = path.suffix or "/" in given
    if not is_file and looks_like_a_file and not any(character.isspace() for character in given):
        raise SettingError(f"{asked_by}: {given!r} looks like a file, and there is none; a text has more than one word")
    if not text.strip():
        raise SettingError(f"{asked_by}: the text of {given!r} is empty")
    return text


def given_text(asked_by: str) -> str:
    """What comes from standard input, as text."""
    try:
        text = sys.stdin.read()
        text.encode()  # where the system has no UTF-8, Python lets any bytes in and marks them
    except UnicodeError as error:
        raise SettingError(f"{asked_by}: what came from standard input is no text in UTF-8; send a text") from error
    return text
