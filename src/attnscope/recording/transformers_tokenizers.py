"""Tokenizers of transformers, for vocabularies in formats that AttnScope does not read.

In: a folder. Out: a tokenizer, or None and a warning if transformers cannot build one. transformers is given a copy of
the vocabulary and of the settings, without fields that name code or files, and has no network.
Does not know: models. Memory: O(vocabulary).
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

from attnscope.errors import MissingExtraError
from attnscope.extras import import_extra
from attnscope.models.json_files import read_bytes, read_json, read_optional_json, write_json
from attnscope.models.text.tokenizer import CONFIG, SPECIAL_TOKENS
from attnscope.models.text.tokenizer import MAX_BYTES as MAX_VOCABULARY_BYTES
from attnscope.recording.offline import no_network
from attnscope.recording.token_texts import as_tokenizer

VOCABULARIES = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm")
"""Files of vocabularies that transformers can read and AttnScope cannot."""

OTHERS = ("merges.txt", "bpe.codes", "target.spm")
"""Files that may belong to a vocabulary."""

OBJECTS = (CONFIG, SPECIAL_TOKENS, "added_tokens.json")
"""Settings in JSON."""


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder has a vocabulary; without one, transformers would make up an empty tokenizer."""
    return any((folder / name).exists() for name in VOCABULARIES)


def load_transformers_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder as transformers builds it, or None with a warning that has the reason.

    Raises:
        CheckpointError: If a file is too large, or is not valid JSON.
        MissingExtraError: If transformers is not installed.
    """
    auto = import_extra("transformers").AutoTokenizer
    with tempfile.TemporaryDirectory(prefix="attnscope-tokenizer-") as name:
        scratch = Path(name)
        _copy(folder, scratch)
        try:
            with no_network(f"the tokenizer of {folder} names something on the network"):
                found = auto.from_pretrained(scratch, local_files_only=True, trust_remote_code=False)
                return as_tokenizer(found)
        except (MissingExtraError, MemoryError):
            raise
        except Exception as error:  # its errors have no common root
            first = str(error).strip().partition("\n")[0]
            reason = f"transformers cannot build its tokenizer: {type(error).__name__}: {first}"
            warnings.warn(f"load: {folder} has a vocabulary, but {reason}; the tokenizer is None", stacklevel=4)
            return None


def _copy(folder: Path, scratch: Path) -> None:
    """Copy what describes a tokenizer; of config.json only the names of the kind of model and of the tokenizer."""
    config = read_json(folder / "config.json")
    kinds = {name: config[name] for name in ("model_type", "tokenizer_class") if name in config}
    write_json(scratch / "config.json", kinds)
    for name in VOCABULARIES + OTHERS:
        if (folder / name).exists():
            (scratch / name).write_bytes(read_bytes(folder / name, MAX_VOCABULARY_BYTES))
    for name in OBJECTS:
        if (folder / name).exists():
            write_json(scratch / name, _harmless(read_optional_json(folder / name)))


def _harmless(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without those that name code or files."""
    return {
        name: value for name, value in settings.items() if name != "auto_map" and not name.endswith(("_file", "_files"))
    }
