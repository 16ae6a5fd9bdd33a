"""Where a checkpoint is: a folder, a GGUF file, or a name on the hub, which is fetched or found in the hub's cache.

In: what a person writes. Out: a path that exists. Does not know: what is inside. Memory: O(1).
"""

from __future__ import annotations

import re
from pathlib import Path

from attnscope.errors import CheckpointError
from attnscope.extras import import_extra

HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)

NEEDED = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
"""The files that are fetched from the hub: a model may lie there in ten formats, and pickles never come here."""


def locate(source: str | Path, revision: str | None = None) -> Path:
    """The folder or the GGUF file that a source means; a name on the hub is fetched first.

    >>> locate("no/such/place")
    Traceback (most recent call last):
    attnscope.errors.CheckpointError: 'no/such/place' is neither a folder, nor a .gguf file, nor a name on the hub ...
    """
    try:
        path = Path(source).expanduser()
        if path.is_dir():
            return path
    except (OSError, RuntimeError, ValueError) as error:  # a name too long for a file, or of a user who is not there
        raise CheckpointError(f"{str(source)[:80]!r} cannot be the place of a model: {error}") from error
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return path
        raise CheckpointError(
            f"{path} is a file that is not named .gguf; give the folder that holds config.json and model.safetensors"
        )
    if isinstance(source, str) and HUB_NAME.fullmatch(source):
        return _fetch(source, revision)
    raise CheckpointError(
        f"{str(source)!r} is neither a folder, nor a .gguf file, nor a name on the hub such as "
        '"HuggingFaceTB/SmolLM2-135M"'
    )


def _fetch(name: str, revision: str | None) -> Path:
    hub = import_extra("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=list(NEEDED)))
    except Exception as error:  # missing, gated, offline, no such revision: the hub's errors have no common root
        wanted = name if revision is None else f"{name} at {revision}"
        raise CheckpointError(
            f"{wanted!r} is no folder here, not in the local cache of the hub, and could not be fetched: "
            f"{_first_line(error)}. Look at the spelling and the network, or give a folder or a .gguf file"
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
