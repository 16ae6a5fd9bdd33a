"""What models ask of a tokenizer, and how to open one without knowing its kind.

In: a folder or a GGUF file. Out: a `AnyTokenizer`, which is all that generating and training need to know.
Does not know: how text is cut.
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
    """Ids in one after the other, text out as soon as its characters are whole."""

    def add(self, token: SupportsIndex) -> str: ...

    def finish(self) -> str: ...


class AnyTokenizer(Protocol):
    """Text to ids and back: `Tokenizer` and `CharacterTokenizer` both have this."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        ...

    @property
    def bos(self) -> int | None:
        """The id that texts begin with, if they do."""
        ...

    @property
    def eos(self) -> frozenset[int]:
        """The ids that a text ends with."""
        ...

    @property
    def pad(self) -> int | None:
        """The id that fills up a batch, if there is one."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text, with those that the tokenizer puts around it unless `special` is False."""
        ...

    def decode(self, tokens: Iterable[SupportsIndex], *, special: bool = False) -> str:
        """The text of ids; of special ones only if `special` says so."""
        ...

    def texts(self, tokens: Iterable[SupportsIndex]) -> list[str]:
        """The text of each id, to be shown on its own."""
        ...

    def stream(self, after: Sequence[int] = ()) -> TextStream:
        """Text from ids that come one after the other, behind those that were there before."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write it to a folder, from which `load_tokenizer` reads it."""
        ...


def load_tokenizer(place: str | Path) -> AnyTokenizer:
    """The tokenizer that lies beside a model: in its folder, here or on the hub, or inside its GGUF file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     CharacterTokenizer.from_text("to be").save(folder)
    ...     load_tokenizer(folder).encode("bet")
    [1, 2, 4]
    """
    place = locate(place)
    if place.suffix.lower() == ".gguf":
        return Tokenizer.from_gguf(read_metadata(place))
    kinds = {TOKENIZER: Tokenizer, CHARACTERS: CharacterTokenizer}
    there = [name for name in kinds if (place / name).exists()]
    if len(there) != 1:
        found = " and ".join(there) or "neither"
        raise CheckpointError(
            f"a tokenizer was asked of {place}, which should hold {TOKENIZER} or {CHARACTERS}, but holds {found}"
        )
    return kinds[there[0]].load(place)
