"""The tokenizer of a trained model: text to ids and back.

In: a folder with tokenizer.json and what usually lies beside it, or the key/values of a GGUF file. Out: a `Tokenizer`.
Does not know: models. What is added around a text (`special=True`) is what tokenizer.json says; truncation and padding
that it may ask for are left out.
Memory: O(vocabulary), some hundred bytes for each token.
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
from attnscope.models.json_files import read_optional_json, read_text, write_json
from attnscope.models.text.gguf_tokenizer import backend_from_gguf, special_tokens_from_gguf

FILE = "tokenizer.json"
CONFIG, SPECIAL_TOKENS, GENERATION = "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"
TEMPLATE = "chat_template.jinja"
MAX_BYTES = 256 * 2**20  # the largest known vocabularies take about 40 MB
MAX_GROWTH = 4096  # of a text by replacements; real tokenizers double it at most a few times
MAX_AROUND = 4096  # special tokens around a text; real tokenizers put one or two there
CONTEXT = 8  # tokens before a stream that tell how its first one is written
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Span(NamedTuple):
    """A token and the characters of the text it was made from: `text[start:end]`."""

    token: int
    start: int
    end: int


class Tokenizer:
    """Text to ids and back, by the tokenizers library.

    `special_tokens` holds the names and texts that chat templates ask for, such as bos_token. `bos` and `pad` are ids
    or None; `eos` are all ids that end a text. Mostly made by `load` or `from_gguf`.

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
        eos: Iterable[int] = (),
        chat_template: str | None = None,
    ):
        """Take a `tokenizers.Tokenizer`, the content of tokenizer_config.json and further ids that end a text."""
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.config = {name: value for name, value in (config or {}).items() if name != "chat_template"}
        self.chat_template = chat_template
        # Any, and not str: that is what lets a type checker pass it on as `render_chat(..., **special_tokens)`.
        self.special_tokens: dict[str, Any] = {
            name: text for name in NAMES if (text := _content(name, self.config.get(name)))
        }
        self.bos = self._id_of("bos_token")
        self.pad = self._id_of("pad_token")
        end = self._id_of("eos_token")
        self.eos = frozenset(eos) | ({end} if end is not None else set())
        # Ids may have holes, and a model needs a row up to the last one.
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._added = {number: token.content for number, token in backend.get_added_tokens_decoder().items()}
        decoder = _state(backend.decoder)
        self._decoders = {step.get("type") for step in decoder.get("decoders", [decoder])}
        if backend.num_special_tokens_to_add(False) > MAX_AROUND:
            raise CheckpointError(f"{FILE} puts more than {MAX_AROUND:,} special tokens around every text")
        for step in (_state(backend.normalizer), decoder):
            if _growth(step) > MAX_GROWTH:
                raise CheckpointError(
                    f"{FILE} has a {step['type']} of replacements that can make a text more than {MAX_GROWTH:,} times "
                    "as long, which no tokenizer needs"
                )

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read tokenizer.json, and if they are there its configuration, the chat template and the ends of a text."""
        folder = Path(folder)
        text = read_text(folder / FILE, MAX_BYTES)
        config = read_optional_json(folder / SPECIAL_TOKENS) | read_optional_json(folder / CONFIG)
        generation = read_optional_json(folder / GENERATION)
        with _faults_of(folder / FILE):
            backend = import_extra("tokenizers").Tokenizer.from_str(text)
        template = folder / TEMPLATE
        chat_template = read_text(template) if template.exists() else _template_of(config.get("chat_template"))
        try:
            ends = _ids(generation.get("eos_token_id"))
        except TypeError as error:
            raise CheckpointError(f"{folder / GENERATION}: eos_token_id should be ids, {error}") from None
        return cls(backend, config=config, eos=ends, chat_template=chat_template)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build the tokenizer that the key/values of a GGUF file describe; kinds that are not known are refused."""
        with _faults_of("the tokenizer in the GGUF file"):
            backend = backend_from_gguf(metadata)
        special_tokens, ends = special_tokens_from_gguf(metadata)
        template = metadata.get("tokenizer.chat_template")
        config = {"tokenizer_class": "PreTrainedTokenizerFast"} | special_tokens
        return cls(backend, config=config, eos=ends, chat_template=template if isinstance(template, str) else None)

    def save(self, folder: str | Path) -> None:
        """Write a folder that `load` reads back to the same, and that transformers opens, too."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(self.backend.to_str(), encoding="utf-8")
        # Names that are not in use are written as null, lest a special_tokens_map.json in the folder supplies them.
        config = {"tokenizer_class": "PreTrainedTokenizerFast"} | dict.fromkeys(NAMES) | self.config
        config.pop("auto_map", None)  # it names code of the original repository, which is not saved along
        write_json(folder / CONFIG, config)
        if self.chat_template is not None:
            (folder / TEMPLATE).write_text(self.chat_template, encoding="utf-8", newline="")
        else:
            (folder / TEMPLATE).unlink(missing_ok=True)
        generation = read_optional_json(folder / GENERATION)
        if generation or self.eos - {self._id_of("eos_token")}:
            write_json(folder / GENERATION, generation | {"eos_token_id": sorted(self.eos)})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text, with those that the tokenizer puts around it unless `special` is False.

        The text of a special token, such as `<|im_end|>`, becomes that token wherever it stands.
        """
        return self._encoding(text, special).ids

    def offsets(self, text: str, *, special: bool = True) -> list[Span]:
        """The ids of a text, each with the characters it was made from; special tokens around it have none."""
        encoding = self._encoding(text, special)
        return [Span(token, *span) for token, span in zip(encoding.ids, encoding.offsets, strict=True)]

    def decode(self, tokens: Iterable[SupportsIndex], *, special: bool = False) -> str:
        """The text of ids, without special tokens unless `special` is True."""
        return self.backend.decode([self._checked(token) for token in tokens], skip_special_tokens=not special)

    def texts(self, tokens: Iterable[SupportsIndex]) -> list[str]:
        r"""Each token as a reader would write it: " the" for "Ġthe" or "▁the", "\xe2" for a byte of a character."""
        return [self._text(self._checked(token)) for token in tokens]

    def stream(self, after: Sequence[int] = ()) -> TokenStream:
        """Text from ids that come one after the other, without special tokens.

        Tell it the ids `after` which they come: some tokenizers drop the space before the first word of a text.
        """
        return TokenStream(self, after)

    def _encoding(self, text: str, special: bool) -> Any:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise VocabularyError(
                f"the text has half a character ({text[error.start]!r}) at position {error.start}, which no tokenizer "
                "can read; decode the text it came from with errors='replace'"
            ) from None
        with _faults_of("the tokenizer"):
            return self.backend.encode(text, add_special_tokens=special)

    def _checked(self, token: SupportsIndex) -> int:
        number = index(token)
        if not 0 <= number < self.vocab_size or self.backend.id_to_token(number) is None:
            raise VocabularyError(
                f"id {number} is not in the vocabulary, whose ids are 0 to {self.vocab_size - 1}; it comes from "
                "another tokenizer, or from a model with more rows than its tokenizer has tokens"
            )
        return number

    def _text(self, token: int) -> str:
        if token in self._added:
            return self._added[token]
        text: str = self.backend.id_to_token(token)
        if "ByteLevel" in self._decoders:
            return _bytes_of(text).decode("utf-8", errors="backslashreplace")
        if "ByteFallback" in self._decoders and len(text) == 6 and text.startswith("<0x"):
            return bytes.fromhex(text[3:5]).decode("utf-8", errors="backslashreplace")
        return text.replace("▁", " ") if self._decoders & {"Metaspace", "Replace"} else text

    def _id_of(self, name: str) -> int | None:
        if name not in self.special_tokens:
            return None
        text = self.special_tokens[name]
        number = self.backend.token_to_id(text)
        if number is None:
            raise CheckpointError(
                f"{CONFIG} names {text!r} as {name}, but {FILE} has no such token; fetch the files again from one place"
            )
        return number

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, bos={self.bos}, eos={sorted(self.eos)}, pad={self.pad})"


class TokenStream:
    """Text from ids one by one: a character that takes several tokens is held back until it is whole."""

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()):
        self._tokenizer = tokenizer
        before = list(after)[-CONTEXT:]
        decoders = import_extra("tokenizers.decoders")
        self._stream = decoders.DecodeStream(ids=before, skip_special_tokens=True)
        self._tokens = before
        self._length = len(tokenizer.decode(before))

    def add(self, token: SupportsIndex) -> str:
        """Take the next id, and give back the text that has become whole."""
        self._tokens.append(self._tokenizer._checked(token))
        with _faults_of("the tokenizer"):
            text = self._stream.step(self._tokenizer.backend, self._tokens[-1]) or ""
        self._length += len(text)
        return text

    def finish(self) -> str:
        """No id will come any more: give back what is left, broken characters as U+FFFD."""
        text = self._tokenizer.decode(self._tokens)[self._length :]
        self._length += len(text)
        return text


@contextmanager
def _faults_of(what: object) -> Iterator[None]:
    """Raise the bare exceptions, and the panics, of the tokenizers library as errors of ours."""
    try:
        yield
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # of Rust, and no Exception
        if not panic and type(error) is not Exception:
            raise
        raise CheckpointError(f"{what} is damaged or not understood: {error}") from error


def _content(name: str, token: object) -> str | None:
    """The text of a special token, which is written as text or as an object with its settings."""
    text = token.get("content") if isinstance(token, dict) else token
    if text is None or isinstance(text, str):
        return text
    raise CheckpointError(f"{CONFIG}: {name} should be text, but is {token!r}")


def _ids(found: object) -> list[int]:
    """One id, several or none, as a list."""
    listed: list[Any] = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(number) is int and number >= 0 for number in listed):  # True is not an id
        raise TypeError(f"but is {found!r}")
    return listed


def _template_of(found: object) -> str | None:
    """The chat template of a configuration: its text, or the one named default of several."""
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    if found is None or isinstance(found, str):
        return found
    raise CheckpointError(f"{CONFIG}: chat_template should be text or a list of named texts, but is {type(found)}")


def _state(step: Any) -> dict[str, Any]:
    """The settings of a normalizer or decoder, as tokenizer.json writes them."""
    return {} if step is None else json.loads(step.__getstate__())


def _growth(step: Mapping[str, Any]) -> int:
    """How many times as long a text can become: a few replacements in a row can fill any memory."""
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


def _bytes_of(text: str) -> bytes:
    """The bytes of a token that was written in GPT-2's alphabet, where every byte has a character that can be seen."""
    return bytes(_BYTES[character] for character in text) if _BYTES.keys() >= set(text) else text.encode()


def _alphabet() -> dict[str, int]:
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(unseen)}


_BYTES = _alphabet()
