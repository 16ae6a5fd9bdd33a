"""Locate a checkpoint: a folder, a GGUF file, a downloaded model, or a name on the hub, which is downloaded or cached.

In: the path or name. Out: an existing path; links do not lead out of the folder. Does not know: what is in the files.
Memory: O(1).
"""

from __future__ import annotations

import re
from pathlib import Path

from attnscope.downloads import MODELS, find_download
from attnscope.errors import CheckpointError
from attnscope.extras import import_extra

HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)

NEEDED = (
    "attnscope-checksums.json",
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
    "characters.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
"""The files that are downloaded from the hub; other formats and pickles are not."""


def locate(source: str | Path, revision: str | None = None) -> Path:
    """The folder or the GGUF file of a source; a name on the hub is downloaded first.

    Names of `attnscope download`, such as "smollm2-135m", refer to the downloaded file or folder.

    Args:
        source: A folder, a GGUF file, a name on the hub, or a name of `attnscope download`.
        revision: A branch, tag or commit on the hub.

    Returns:
        The path on this machine.

    >>> locate("no/such/place")
    Traceback (most recent call last):
    attnscope.errors.CheckpointError: 'no/such/place' is neither a folder, nor a .gguf file, nor a name on the hub ...
    """
    try:
        path = Path(source).expanduser()
        if path.is_dir():
            return _without_links_out(path)
    except (OSError, RuntimeError, ValueError) as error:  # a name too long for a file, or of a user who is not there
        raise CheckpointError(f"{str(source)[:80]!r} cannot be the place of a model: {error}") from error
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return path
        raise CheckpointError(
            f"{path} is a file that is not named .gguf; give the folder that holds config.json and model.safetensors"
        )
    if isinstance(source, str) and source in MODELS:
        if found := find_download(source):
            return found
        raise CheckpointError(f"model {source!r} is not downloaded yet. Run: attnscope download {source}")
    if isinstance(source, str) and HUB_NAME.fullmatch(source):
        return _without_links_out(_fetch(source, revision))
    raise CheckpointError(
        f"{str(source)!r} is neither a folder, nor a .gguf file, nor a name on the hub such as "
        f'"HuggingFaceTB/SmolLM2-135M-Instruct", nor one of {", ".join(MODELS)}, which `attnscope download` gets'
    )


def _without_links_out(folder: Path) -> Path:
    """The folder, unless a file in it is a link to elsewhere; in the hub's cache, files are links into its `blobs`."""
    place = folder.resolve()
    allowed = [place, place.parent.parent / "blobs"] if place.parent.name == "snapshots" else [place]
    for path in folder.iterdir():
        if not path.is_symlink() or path.is_dir():
            continue
        target = path.resolve()
        if not any(target.is_relative_to(root) for root in allowed):
            raise CheckpointError(f"{path} is a link that leads out of the folder; put the file itself there")
    return folder


def _fetch(name: str, revision: str | None) -> Path:
    hub = import_extra("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=list(NEEDED)))
    except Exception as error:  # missing, gated, offline, no such revision: the hub's errors have no common root
        wanted = name if revision is None else f"{name} at {revision}"
        raise CheckpointError(
            f"{wanted!r} is not a folder, is not in the local cache of the hub, and could not be downloaded: "
            f"{_reason(error)}. Check the name and the network, or give a folder or a .gguf file"
        ) from error


REASONS = {
    "GatedRepoError": "access to it is restricted; ask for it on the hub and log in",
    "RepositoryNotFoundError": "the hub has no such model, or it is private",
    "RevisionNotFoundError": "the model has no such revision",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set",
    "LocalEntryNotFoundError": "the hub cannot be reached",
    "ConnectError": "the hub cannot be reached",
    "HfHubHTTPError": "the hub answered with an error",
}
"""Errors of the hub by the names of their classes, the more specific first."""


def _reason(error: Exception) -> str:
    """What went wrong at the hub, in words."""
    classes = {kind.__name__ for kind in type(error).__mro__}
    return next((words for name, words in REASONS.items() if name in classes), str(error).strip().partition("\n")[0])
