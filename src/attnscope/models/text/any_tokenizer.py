"""The tokenizer interface that generation and training need, and how to load a tokenizer of any kind.

In: a folder or a GGUF file. Out: an `AnyTokenizer`. Does not know: how text is split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, SupportsIndex

from attnscope.errors import CheckpointError
from attnscope.models.checkpoint.gguf_file import read_metadata
from attnscope.models.checkpoint.source import locate
from attnscope.models.text.character_tokenizer import FILE as CHARACTERS
from attnscope.models.text.character_tokenizer import CharacterTokenizer
from attnscope.models.text.tokenizer import FILE as TOKENIZER
from attnscope.models.text.tokenizer import Tokenizer


class TextStream(Protocol):
    """Streaming decoding: ids in one by one, text out as soon as its characters are complete."""

    def add(self, token: SupportsIndex) -> str: ...

    def finish(self) -> str: ...


class AnyTokenizer(Protocol):
    """The interface of `Tokenizer` and `CharacterTokenizer`: text to ids and back."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The id that starts a text, if there is one."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The ids that end a text."""
        ...

    @property
    def pad_token_id(self) -> int | None:
        """The padding id, if there is one."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode a text, with the special tokens that the tokenizer adds around it.

        Args:
            text: A text.
            add_special_tokens: Whether to add them.

        Returns:
            The ids.
        """
        ...

    def decode(self, tokens: Iterable[SupportsIndex], *, skip_special_tokens: bool = True) -> str:
        """Decode ids to text.

        Args:
            tokens: The ids.
            skip_special_tokens: Whether to leave out special tokens.

        Returns:
            The text.
        """
        ...

    def texts(self, tokens: Iterable[SupportsIndex]) -> list[str]:
        """The text of each id, for display.

        Args:
            tokens: The ids.

        Returns:
            One text per id.
        """
        ...

    def stream(self, after: Sequence[int] = ()) -> TextStream:
        """Start streaming decoding, of ids that follow the ids `after`.

        Args:
            after: The ids before.

        Returns:
            A decoder of one id after the other.
        """
        ...

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer to a folder, for `load_tokenizer`.

        Args:
            folder: The folder.
        """
        ...


def load_tokenizer(source: str | Path) -> AnyTokenizer:
    """Load the tokenizer of a model.

    Args:
        source: A folder, a GGUF file, a name on the Hub, or a model that `attnscope download` has fetched.

    Returns:
        A `Tokenizer` or a `CharacterTokenizer`.

    Raises:
        CheckpointError: If there is no tokenizer, or it is invalid.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     CharacterTokenizer.from_text("to be").save(folder)
    ...     load_tokenizer(folder).encode("bet")
    [1, 2, 4]
    """
    path = locate(source)
    if path.suffix.lower() == ".gguf":
        return Tokenizer.from_gguf(read_metadata(path))
    there = tokenizer_files(path)
    if len(there) != 1:
        found = " and ".join(there) or "neither"
        raise CheckpointError(f"load_tokenizer: expected {TOKENIZER} or {CHARACTERS} in {path}, found {found}")
    return KINDS[there[0]].load(path)


KINDS = {TOKENIZER: Tokenizer, CHARACTERS: CharacterTokenizer}
"""The tokenizers by the file they are in."""


def tokenizer_files(folder: Path) -> list[str]:
    """The names of the files in a folder that `load_tokenizer` reads a tokenizer from; a sound folder has one."""
    return [name for name in KINDS if (folder / name).exists()]
