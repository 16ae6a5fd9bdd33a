"""`load`: a model and its tokenizer from what a person calls it: a folder, a name on the hub, or a GGUF file.

In: the name. Out: one of AttnScope's own models where the family is known, else one of transformers, in eval mode; and
a tokenizer, or None where there is none (as with models of pictures).
Does not know: recording. Memory: the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from attnscope import models
from attnscope.errors import CheckpointError, MissingExtraError, SettingError
from attnscope.extras import import_extra
from attnscope.models.checkpoint import locate
from attnscope.models.json_files import read_json
from attnscope.recording.token_texts import as_tokenizer

VOCABULARIES = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm")
"""Files of tokenizers that transformers can read and we cannot."""


def load(
    place: str | Path,
    *,
    dtype: torch.dtype | None = None,
    using: Literal["auto", "attnscope", "transformers"] = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[nn.Module, Any]:
    """The model and tokenizer at a place: (model, tokenizer).

    `using` insists on one of the two libraries; "auto" takes transformers for families that AttnScope does not know.
    Weights have the dtype of the file unless you choose one. Nothing but safetensors and GGUF is read, and no code.
    """
    if using not in ("auto", "attnscope", "transformers"):
        raise SettingError(f"load: using={using!r}; it is 'auto', 'attnscope' or 'transformers'")
    path = locate(place)
    if using == "transformers":
        return _from_transformers(path, dtype)
    try:
        return models.load(path, dtype=dtype, progress=progress), models.load_tokenizer(path)
    except CheckpointError as error:
        if using == "attnscope" or path.is_file():
            raise
        try:
            return _from_transformers(path, dtype)
        except MissingExtraError as missing:
            raise CheckpointError(f"{error}. transformers may know it: {missing}") from error


def _from_transformers(path: Path, dtype: torch.dtype | None) -> tuple[nn.Module, Any]:
    if path.is_file():
        raise CheckpointError(f"load: {path} is a GGUF file, which is read by AttnScope's own models only")
    transformers = import_extra("transformers")
    named = read_json(path / "config.json").get("architectures") or [None]
    kind = getattr(transformers, str(named[0]), None)
    auto = kind if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel) else transformers.AutoModel
    try:
        model = auto.from_pretrained(
            path, dtype=dtype or "auto", local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except Exception as error:  # its errors have no common root
        first = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"load: transformers could not open {path}: {type(error).__name__}: {first}") from error
    return model.eval(), _tokenizer_at(path)


def _tokenizer_at(path: Path) -> Any:
    try:
        return models.load_tokenizer(path)
    except CheckpointError:
        pass
    if not any((path / name).exists() for name in VOCABULARIES):  # it would make up an empty one
        return None
    auto = import_extra("transformers").AutoTokenizer
    try:  # unless told, it asks on the terminal whether to run code that lies in the folder
        return as_tokenizer(auto.from_pretrained(path, local_files_only=True, trust_remote_code=False))
    except (OSError, ValueError):
        return None
