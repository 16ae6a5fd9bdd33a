"""`load`: a model and its tokenizer, from a folder, a name on the hub, or a GGUF file.

In: the path or name. Out: a model of AttnScope if it implements the checkpoint, otherwise of transformers, in eval
mode; and a tokenizer, or None if there is none (as for image models). transformers is used only after an
`UnsupportedModelError`: damaged or malicious files raise an error.
Does not know: recording. Memory: the model.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from attnscope import models
from attnscope.errors import CheckpointError, MissingExtraError, SettingError, UnsupportedModelError
from attnscope.models.checkpoint import locate
from attnscope.models.checkpoint.families import FAMILIES
from attnscope.models.json_files import read_json
from attnscope.models.text.any_tokenizer import tokenizer_files
from attnscope.progress import Progress, report_progress
from attnscope.recording.transformers_models import load_transformers_model
from attnscope.recording.transformers_tokenizers import has_vocabulary, load_transformers_tokenizer


def load(
    place: str | Path,
    *,
    dtype: torch.dtype | None = None,
    using: Literal["auto", "attnscope", "transformers"] = "auto",
    progress: Progress | bool = True,
) -> tuple[nn.Module, Any]:
    """The model and tokenizer at a place: (model, tokenizer).

    Nothing but safetensors and GGUF is read, and no code.

    Args:
        place: A folder, a name on the hub, a GGUF file, or a model that `attnscope download` has fetched.
        dtype: The dtype of the parameters; None for that of the file.
        using: One of the two libraries; "auto" takes transformers for models that AttnScope does not implement, with a
            warning if it has the family.
        progress: True for a progress bar on a terminal, False for none, or a function called with the bytes read so far
            and the total, for models of AttnScope.

    Returns:
        The model in eval mode, and its tokenizer or None.

    Raises:
        CheckpointError: The files are missing, damaged, malicious, or of a model that neither library implements.

    >>> import tempfile
    >>> from attnscope.models import save
    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Decoder(config), folder)
    ...     model, tokenizer = load(folder, progress=False)
    >>> type(model).__name__, tokenizer
    ('Decoder', None)
    """
    if using not in ("auto", "attnscope", "transformers"):
        raise SettingError(f"load: using={using!r}; it is 'auto', 'attnscope' or 'transformers'")
    path = locate(place)
    if path.is_file() and using == "transformers":
        raise CheckpointError(f"load: {path} is a GGUF file, which is read by AttnScope's own models only")
    with report_progress(progress, "loading") as report:
        model = _load_model(path, dtype, using, report)
    return model, models.load_tokenizer(path) if path.is_file() else _tokenizer_at(path)


def _load_model(path: Path, dtype: torch.dtype | None, using: str, report: Progress) -> nn.Module:
    """The model by one of the two libraries."""
    if using == "transformers":
        return load_transformers_model(path, dtype)
    try:
        return models.load(path, dtype=dtype, progress=report)
    except UnsupportedModelError as error:
        if using == "attnscope" or path.is_file():
            raise
        return _load_instead(path, dtype, error)


def _load_instead(path: Path, dtype: torch.dtype | None, reason: UnsupportedModelError) -> nn.Module:
    """The model by transformers, because AttnScope does not implement it."""
    try:
        model = load_transformers_model(path, dtype)
    except MissingExtraError as missing:
        raise CheckpointError(f"{reason}. transformers may know it: {missing}") from reason
    if read_json(path / "config.json").get("model_type") in FAMILIES:
        warnings.warn(f"load: opened by transformers, because {reason}", stacklevel=4)
    return model


def _tokenizer_at(path: Path) -> Any:
    """The tokenizer in a folder, or None if there is none; transformers reads only formats that AttnScope does not."""
    if tokenizer_files(path):
        return models.load_tokenizer(path)
    return load_transformers_tokenizer(path) if has_vocabulary(path) else None
