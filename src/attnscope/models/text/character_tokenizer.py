"""A character tokenizer: each character is a token.

In: text. Out: the index of each character in the vocabulary, which is sorted by code point.
Does not know: models. There are no special tokens.
Memory: O(distinct characters).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from operator import index
from pathlib import Path
from typing import SupportsIndex

from attnscope.errors import CheckpointError, VocabularyError
from attnscope.models.checkpoint.folder_checksums import verified, write_files
from attnscope.models.json_files import dump_json, read_json

FILE = "characters.json"


class CharacterTokenizer:
    """A tokenizer of characters, for small models trained from scratch.

    Args:
        characters: The vocabulary.

    Raises:
        ValueError: If an entry is not one character, or occurs twice.

    >>> tokenizer = CharacterTokenizer.from_text("to be or not")
    >>> tokenizer.encode("robot"), tokenizer.decode([5, 4, 1])
    ([5, 4, 1, 4, 6], 'rob')
    """

    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    pad_token_id: int | None = None
    chat_template: str | None = None

    def __init__(self, characters: Iterable[str]):
        self.characters = tuple(characters)
        self._numbers = {character: number for number, character in enumerate(self.characters)}
        wrong = next((character for character in self.characters if len(character) != 1), None)
        if wrong is not None:
            raise ValueError(f"CharacterTokenizer: expected single characters, got {wrong!r}")
        if len(self._numbers) != len(self.characters):
            raise ValueError("CharacterTokenizer: a character occurs twice; from_text removes duplicates")

    @classmethod
    def from_text(cls, text: str) -> CharacterTokenizer:
        """Make a tokenizer of the characters in a text.

        Args:
            text: A text.

        Returns:
            A tokenizer whose ids are in the order of the characters.
        """
        return cls(sorted(set(text)))

    @classmethod
    def load(cls, folder: str | Path) -> CharacterTokenizer:
        """Load a tokenizer from a folder that `save` wrote.

        Args:
            folder: The folder.

        Returns:
            The tokenizer.

        Raises:
            CheckpointError: The file is missing, damaged or invalid.
        """
        path = Path(folder) / FILE
        with verified(path.parent, [FILE]):
            characters = read_json(path).get("characters")
        if not isinstance(characters, str) or len(set(characters)) != len(characters):
            raise CheckpointError(f"{path}: expected a string of distinct characters under 'characters'")
        return cls(characters)

    def save(self, folder: str | Path) -> None:
        """Write the vocabulary to a folder, which is created if necessary.

        Args:
            folder: The folder.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_files(Path(folder), {FILE: dump_json({"characters": "".join(self.characters)})})

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self.characters)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode a text, one id per character.

        Args:
            text: The text.
            add_special_tokens: Has no effect, since there are no special tokens.

        Raises:
            VocabularyError: If a character is not in the vocabulary.
        """
        try:
            return [self._numbers[character] for character in text]
        except KeyError as error:
            character = error.args[0]
            name = unicodedata.name(character, f"U+{ord(character):04X}")
            raise VocabularyError(
                f"the character {character!r} ({name}) at position {text.index(character)} is none of the "
                f"{self.vocab_size} in the vocabulary; remove it from the text, or make the tokenizer from a text that "
                "has it and train the model again"
            ) from None

    def decode(self, tokens: Iterable[SupportsIndex], *, skip_special_tokens: bool = True) -> str:
        """Decode ids to text; `skip_special_tokens` has no effect, since there are no special tokens.

        Args:
            tokens: The ids.
            skip_special_tokens: As for other tokenizers.

        Returns:
            The text.
        """
        return "".join(self.texts(tokens))

    def texts(self, tokens: Iterable[SupportsIndex]) -> list[str]:
        """The character of each id.

        Args:
            tokens: The ids.

        Returns:
            One character per id.
        """
        return [self._character(token) for token in tokens]

    def stream(self, after: Sequence[int] = ()) -> CharacterStream:
        """Start streaming decoding; `after` has no effect.

        Args:
            after: As for other tokenizers.

        Returns:
            A decoder of one id after the other.
        """
        return CharacterStream(self)

    def _character(self, token: SupportsIndex) -> str:
        number = index(token)
        if not 0 <= number < self.vocab_size:
            raise VocabularyError(f"id {number} is not in the vocabulary, whose ids are 0 to {self.vocab_size - 1}")
        return self.characters[number]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharacterTokenizer) and self.characters == other.characters

    def __hash__(self) -> int:
        return hash(self.characters)

    def __repr__(self) -> str:
        return f"CharacterTokenizer({''.join(self.characters)!r})"


class CharacterStream:
    """Streaming decoding of characters, which are always complete."""

    def __init__(self, tokenizer: CharacterTokenizer):
        self._tokenizer = tokenizer

    def add(self, token: SupportsIndex) -> str:
        """The character of an id."""
        return self._tokenizer.decode([token])

    def finish(self) -> str:
        """Return the empty string: nothing is held back."""
        return ""
