"""The smallest tokenizer: each character is a token.

In: text. Out: the number of each of its characters among the characters it was made from, in the order of their code
points.
Does not know: models. Has no token that begins, ends or pads a text.
Memory: O(distinct characters).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from operator import index
from pathlib import Path
from typing import SupportsIndex

from attnscope.errors import CheckpointError, VocabularyError
from attnscope.models.json_files import read_json, write_json

FILE = "characters.json"


class CharacterTokenizer:
    """Text as its characters, for small models that learn to write from scratch.

    >>> tokenizer = CharacterTokenizer.from_text("to be or not")
    >>> tokenizer.encode("robot"), tokenizer.decode([5, 4, 1])
    ([5, 4, 1, 4, 6], 'rob')
    """

    bos: int | None = None
    eos: frozenset[int] = frozenset()
    pad: int | None = None
    chat_template: str | None = None

    def __init__(self, characters: Iterable[str]):
        self.characters = tuple(characters)
        self._numbers = {character: number for number, character in enumerate(self.characters)}
        wrong = next((character for character in self.characters if len(character) != 1), None)
        if wrong is not None:
            raise ValueError(f"CharacterTokenizer: each entry is one character, got {wrong!r}")
        if len(self._numbers) != len(self.characters):
            raise ValueError("CharacterTokenizer: a character occurs twice; from_text takes each once")

    @classmethod
    def from_text(cls, text: str) -> CharacterTokenizer:
        """A tokenizer of the characters that a text has."""
        return cls(sorted(set(text)))

    @classmethod
    def load(cls, folder: str | Path) -> CharacterTokenizer:
        """Read back what `save` wrote."""
        path = Path(folder) / FILE
        characters = read_json(path).get("characters")
        if not isinstance(characters, str) or len(set(characters)) != len(characters):
            raise CheckpointError(f"{path} should hold a string of different characters under 'characters'")
        return cls(characters)

    def save(self, folder: str | Path) -> None:
        """Write the characters to a folder, which is made if need be."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_json(Path(folder) / FILE, {"characters": "".join(self.characters)})

    @property
    def vocab_size(self) -> int:
        """How many different ids there are."""
        return len(self.characters)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """One id for each character; `special` changes nothing, for there are no special tokens."""
        try:
            return [self._numbers[character] for character in text]
        except KeyError as error:
            character = error.args[0]
            name = unicodedata.name(character, f"U+{ord(character):04X}")
            raise VocabularyError(
                f"the character {character!r} ({name}) at position {text.index(character)} is none of the "
                f"{self.vocab_size} that this tokenizer was made from; take it out of the text, or make the tokenizer "
                "from a text that has it and train the model anew"
            ) from None

    def decode(self, tokens: Iterable[SupportsIndex], *, special: bool = False) -> str:
        """The text of the ids; `special` changes nothing, for there are no special tokens."""
        return "".join(self.texts(tokens))

    def texts(self, tokens: Iterable[SupportsIndex]) -> list[str]:
        """The character of each id."""
        return [self._character(token) for token in tokens]

    def stream(self, after: Sequence[int] = ()) -> CharacterStream:
        """Text from ids that come one after the other; what they come after changes nothing."""
        return CharacterStream(self)

    def _character(self, token: SupportsIndex) -> str:
        number = index(token)
        if not 0 <= number < self.vocab_size:
            raise VocabularyError(f"id {number} was asked of a tokenizer that has the ids 0 to {self.vocab_size - 1}")
        return self.characters[number]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharacterTokenizer) and self.characters == other.characters

    def __hash__(self) -> int:
        return hash(self.characters)

    def __repr__(self) -> str:
        return f"CharacterTokenizer({''.join(self.characters)!r})"


class CharacterStream:
    """Characters are always whole, so each one comes at once."""

    def __init__(self, tokenizer: CharacterTokenizer):
        self._tokenizer = tokenizer

    def add(self, token: SupportsIndex) -> str:
        """The character of an id."""
        return self._tokenizer.decode([token])

    def finish(self) -> str:
        """Nothing, since nothing is held back."""
        return ""
