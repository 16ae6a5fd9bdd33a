"""The tokenizer of a trained model: text to ids and back.

In: a folder with tokenizer.json and its configuration files, or the metadata of a GGUF file. Out: a `Tokenizer`.
Does not know: models. Special tokens are added as tokenizer.json specifies; its truncation and padding are not applied.
Memory: O(vocabulary), some hundred bytes per token.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

from attnscope.errors import CheckpointError, VocabularyError
from attnscope.extras import import_extra
from attnscope.models.checkpoint.folder_checksums import verified, write_files
from attnscope.models.json_files import dump_json, read_optional_json, read_text
from attnscope.models.text.gguf_tokenizer import backend_from_gguf, special_tokens_from_gguf

FILE = "tokenizer.json"
CONFIG, SPECIAL_TOKENS, GENERATION = "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"
TEMPLATE = "chat_template.jinja"
MAX_BYTES = 256 * 2**20  # the largest known vocabularies take about 40 MB
MAX_GROWTH = 4096  # of the length of a text by replacements; real tokenizers at most double it a few times
MAX_SPECIAL_TOKENS = 4096  # added around a text; real tokenizers add one or two
CONTEXT = 8  # tokens before a stream, which determine how its first token is decoded
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Span(NamedTuple):
    """A token and the characters of the text it was made from: `text[start:end]`."""

    token: int
    start: int
    end: int


class Tokenizer:
    """Text to ids and back, by the tokenizers library. Usually made by `load_tokenizer`.

    `special_tokens` has the texts of special tokens by name (`bos_token`, ...), which chat templates use.
    `bos_token_id` and `pad_token_id` are ids or None; `eos_token_ids` are all ids that end a text.

    Args:
        backend: A `tokenizers.Tokenizer`.
        config: The content of tokenizer_config.json.
        eos_token_ids: Further ids that end a text.
        chat_template: The chat template, in Jinja.

    Raises:
        CheckpointError: If the special tokens are unknown, or the tokenizer can expand a text without limit.

    >>> from tokenizers import Tokenizer as Backend, models, pre_tokenizers
    >>> backend = Backend(models.WordLevel({"to": 0, "be": 1, "?": 2}, unk_token="?"))
    >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = Tokenizer(backend)
    >>> tokenizer.encode("to be or"), tokenizer.texts([1, 0])
    ([0, 1, 2], ['be', 'to'])
    """

    def __init__(
        self,
        backend: Any,
        *,
        config: Mapping[str, Any] | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_template: str | None = None,
    ):
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.config = {name: value for name, value in (config or {}).items() if name != "chat_template"}
        self.chat_template = chat_template
        # Any, not str, so that type checkers accept `render_chat(..., **special_tokens)`.
        self.special_tokens: dict[str, Any] = {
            name: text for name in NAMES if (text := _content(name, self.config.get(name)))
        }
        self.bos_token_id = self._id_of("bos_token")
        self.pad_token_id = self._id_of("pad_token")
        eos_token_id = self._id_of("eos_token")
        self.eos_token_ids = frozenset(eos_token_ids) | ({eos_token_id} if eos_token_id is not None else set())
        # Ids may have gaps, and a model needs an embedding up to the last one.
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._added = {number: token.content for number, token in backend.get_added_tokens_decoder().items()}
        decoder = _state(backend.decoder)
        self._decoders = {step.get("type") for step in decoder.get("decoders", [decoder])}
        if backend.num_special_tokens_to_add(False) > MAX_SPECIAL_TOKENS:
            raise CheckpointError(f"{FILE} adds more than {MAX_SPECIAL_TOKENS:,} special tokens around every text")
        for step in (_state(backend.normalizer), decoder):
            if _growth(step) > MAX_GROWTH:
                raise CheckpointError(
                    f"{FILE} has a {step['type']} of replacements that can make a text more than {MAX_GROWTH:,} times "
                    "as long"
                )

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Load tokenizer.json from a folder, with its configuration and chat template if there are any.

        Args:
            folder: The folder.

        Returns:
            The tokenizer.

        Raises:
            CheckpointError: If a file is missing or invalid.
        """
        folder = Path(folder)
        template = folder / TEMPLATE
        with verified(folder, (FILE, CONFIG, GENERATION, TEMPLATE)):
            text = read_text(folder / FILE, MAX_BYTES)
            config = read_optional_json(folder / SPECIAL_TOKENS) | read_optional_json(folder / CONFIG)
            generation = read_optional_json(folder / GENERATION)
            chat_template = read_text(template) if template.exists() else None
        with _convert_errors(folder / FILE):
            backend = import_extra("tokenizers").Tokenizer.from_str(text)
        if chat_template is None:
            chat_template = _parse_chat_template(config.get("chat_template"))
        try:
            eos_token_ids = _parse_ids(generation.get("eos_token_id"))
        except TypeError as error:
            raise CheckpointError(f"{folder / GENERATION}: eos_token_id: expected ids, {error}") from None
        return cls(backend, config=config, eos_token_ids=eos_token_ids, chat_template=chat_template)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build the tokenizer from the metadata of a GGUF file.

        Args:
            metadata: What `read_metadata` returns.

        Returns:
            The tokenizer.

        Raises:
            CheckpointError: If the kind of tokenizer is not supported, or the metadata are invalid.
        """
        with _convert_errors("the tokenizer in the GGUF file"):
            backend = backend_from_gguf(metadata)
        special_tokens, eos_token_ids = special_tokens_from_gguf(metadata)
        template = metadata.get("tokenizer.chat_template")
        config = {"tokenizer_class": "PreTrainedTokenizerFast"} | special_tokens
        return cls(
            backend,
            config=config,
            eos_token_ids=eos_token_ids,
            chat_template=template if isinstance(template, str) else None,
        )

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer to a folder, for `load` and for transformers.

        Args:
            folder: The folder.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Unused names are written as null, so that a special_tokens_map.json in the folder does not supply them.
        config = {"tokenizer_class": "PreTrainedTokenizerFast"} | dict.fromkeys(NAMES) | self.config
        config.pop("auto_map", None)  # it names code of the original repository, which is not saved
        files = {
            FILE: self.backend.to_str().encode("utf-8"),
            CONFIG: dump_json(config),
            TEMPLATE: None if self.chat_template is None else self.chat_template.encode("utf-8"),
        }
        generation = read_optional_json(folder / GENERATION)
        if generation or self.eos_token_ids - {self._id_of("eos_token")}:
            files[GENERATION] = dump_json(generation | {"eos_token_id": sorted(self.eos_token_ids)})
        write_files(folder, files)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode a text.

        Args:
            text: The text. The text of a special token, such as `<|im_end|>`, becomes that token.
            add_special_tokens: Whether to add the special tokens that the tokenizer puts around a text.

        Raises:
            VocabularyError: If the text is not valid Unicode.
        """
        return self._encode(text, add_special_tokens).ids

    def offsets(self, text: str, *, add_special_tokens: bool = True) -> list[Span]:
        """Encode a text to ids with their character spans; special tokens around it have empty spans.

        Args:
            text: A text.
            add_special_tokens: Whether to add them.

        Returns:
            The id, start and end of each token.
        """
        encoding = self._encode(text, add_special_tokens)
        return [Span(token, *span) for token, span in zip(encoding.ids, encoding.offsets, strict=True)]

    def decode(self, tokens: Iterable[SupportsIndex], *, skip_special_tokens: bool = True) -> str:
        """Decode ids to text, by default without special tokens.

        Args:
            tokens: The ids.
            skip_special_tokens: Whether to leave out special tokens.

        Returns:
            The text.

        Raises:
            VocabularyError: If an id is not in the vocabulary.
        """
        return self.backend.decode([self._check_id(token) for token in tokens], skip_special_tokens=skip_special_tokens)

    def texts(self, tokens: Iterable[SupportsIndex]) -> list[str]:
        r"""The text of each id, for display: " the" for "Ġthe" or "▁the", "\xe2" for a byte of a character.

        Args:
            tokens: The ids.

        Returns:
            One text per id.
        """
        return [self._text(self._check_id(token)) for token in tokens]

    def stream(self, after: Sequence[int] = ()) -> TokenStream:
        """Start streaming decoding, without special tokens.

        Args:
            after: The ids before, because some tokenizers drop the space before the first word of a text.

        Returns:
            A decoder of one id after the other.
        """
        return TokenStream(self, after)

    def _encode(self, text: str, add_special_tokens: bool) -> Any:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise VocabularyError(
                f"the text has half a character ({text[error.start]!r}) at position {error.start}; "
                "decode the bytes it came from with errors='replace'"
            ) from None
        with _convert_errors("the tokenizer"):
            return self.backend.encode(text, add_special_tokens=add_special_tokens)

    def _check_id(self, token: SupportsIndex) -> int:
        number = index(token)
        if not 0 <= number < self.vocab_size or self.backend.id_to_token(number) is None:
            raise VocabularyError(
                f"id {number} is not in the vocabulary, whose ids are 0 to {self.vocab_size - 1}; it comes from "
                "another tokenizer, or from a model with more embeddings than its tokenizer has tokens"
            )
        return number

    def _text(self, token: int) -> str:
        if token in self._added:
            return self._added[token]
        text: str = self.backend.id_to_token(token)
        if "ByteLevel" in self._decoders:
            return _decode_bytes(text).decode("utf-8", errors="backslashreplace")
        if "ByteFallback" in self._decoders and len(text) == 6 and text.startswith("<0x"):
            return bytes.fromhex(text[3:5]).decode("utf-8", errors="backslashreplace")
        return text.replace("▁", " ") if self._decoders & {"Metaspace", "Replace"} else text

    def _id_of(self, name: str) -> int | None:
        if name not in self.special_tokens:
            return None
        text = self.special_tokens[name]
        try:
            number = self.backend.token_to_id(text)
        except UnicodeEncodeError:  # half of a surrogate pair
            number = None
        if number is None:
            raise CheckpointError(
                f"{CONFIG} names {text!r} as {name}, but {FILE} has no such token; download both files again"
            )
        return number

    def __repr__(self) -> str:
        return (
            f"Tokenizer(vocab_size={self.vocab_size}, bos_token_id={self.bos_token_id}, "
            f"eos_token_ids={sorted(self.eos_token_ids)}, pad_token_id={self.pad_token_id})"
        )


class TokenStream:
    """Streaming decoding: a character of several tokens is held back until it is complete."""

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()):
        self._tokenizer = tokenizer
        before = list(after)[-CONTEXT:]
        decoders = import_extra("tokenizers.decoders")
        self._stream = decoders.DecodeStream(ids=before, skip_special_tokens=True)
        self._tokens = before
        self._length = len(tokenizer.decode(before))

    def add(self, token: SupportsIndex) -> str:
        """Add the next id, and return the text that is complete."""
        self._tokens.append(self._tokenizer._check_id(token))
        with _convert_errors("the tokenizer"):
            text = self._stream.step(self._tokenizer.backend, self._tokens[-1]) or ""
        self._length += len(text)
        return text

    def finish(self) -> str:
        """Return the rest, with incomplete characters as U+FFFD; no ids follow."""
        text = self._tokenizer.decode(self._tokens)[self._length :]
        self._length += len(text)
        return text


@contextmanager
def _convert_errors(what: object) -> Iterator[None]:
    """Raise the bare exceptions and the panics of the tokenizers library as CheckpointError."""
    try:
        yield
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # of Rust, and no Exception
        if not panic and type(error) is not Exception:
            raise
        raise CheckpointError(f"{what} is invalid or not supported: {error}") from error


def _content(name: str, token: object) -> str | None:
    """The text of a special token, which is a string or an object with its settings."""
    text = token.get("content") if isinstance(token, dict) else token
    if text is None or isinstance(text, str):
        return text
    raise CheckpointError(f"{CONFIG}: {name}: expected a string, got {token!r}")


def _parse_ids(found: object) -> list[int]:
    """One id, several or none, as a list."""
    listed: list[Any] = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(number) is int and number >= 0 for number in listed):  # True is not an id
        raise TypeError(f"got {found!r}")
    return listed


def _parse_chat_template(found: object) -> str | None:
    """The chat template of a configuration, or the one named "default" of several."""
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    if found is None or isinstance(found, str):
        return found
    raise CheckpointError(f"{CONFIG}: chat_template: expected a string or a list of named strings, got {type(found)}")


def _state(step: Any) -> dict[str, Any]:
    """The settings of a normalizer or decoder, as tokenizer.json writes them."""
    return {} if step is None else json.loads(step.__getstate__())


def _growth(step: Mapping[str, Any]) -> int:
    """The factor by which a text can grow: a few replacements in sequence can fill any memory."""
    if "content" in step:
        replaced = step.get("pattern", {}).get("String")
        return max(1, -(-len(step["content"]) // len(replaced))) if replaced else 1 + len(step["content"])
    if "prepend" in step:
        return 1 + len(step["prepend"])
    if "precompiled_charsmap" in step:  # the size of a search tree, the tree, and what it leads to, ended by zeros
        content = base64.b64decode(step["precompiled_charsmap"])
        leads_to = content[4 + int.from_bytes(content[:4], "little") :]
        return max(1, *map(len, leads_to.split(b"\0")))
    return math.prod(_growth(inner) for inner in step.get("normalizers", step.get("decoders", [])))


def _decode_bytes(text: str) -> bytes:
    """The bytes of a token in GPT-2's alphabet, where every byte has a printable character."""
    return bytes(_BYTES[character] for character in text) if _BYTES.keys() >= set(text) else text.encode()


def _byte_alphabet() -> dict[str, int]:
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(unseen)}


_BYTES = _byte_alphabet()
