"""The tokenizer inside a GGUF file: a vocabulary, and the name of a pre-tokenizer.

In: the metadata of a GGUF file under `tokenizer.ggml`. Out: a `tokenizers.Tokenizer` with the same ids as the one the
file was converted from.
Does not know: files. Kinds and pre-tokenizers whose exact rules are not known raise an error with their name.
Memory: O(vocabulary).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from attnscope.errors import CheckpointError
from attnscope.extras import import_extra
from attnscope.models.text.sentencepiece_merges import merges_from_scores

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""The values of `token_type`."""

SPACE = "▁"  # a space in SentencePiece vocabularies
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDING = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{ENDING}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{ENDING}"


class PreTokenizer(NamedTuple):
    """How text is normalized and split into words before BPE."""

    pattern: str | None = None
    """The pattern of a word; None for GPT-2's, which the tokenizers library has built in."""
    digits: bool = False
    """Whether each digit is a word of its own."""
    nfc: bool = False
    """Whether text is normalized to NFC first."""
    ignore_merges: bool = False
    """Whether a word in the vocabulary becomes one token without merges."""
    add_bos: bool = False
    """Whether a text starts with the bos token if the file does not say."""


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(),
    "phi-2": PreTokenizer(),
    "smollm": PreTokenizer(digits=True),
    "starcoder": PreTokenizer(digits=True),
    "refact": PreTokenizer(digits=True),
    "command-r": PreTokenizer(digits=True, nfc=True),
    "llama-bpe": PreTokenizer(LLAMA3, ignore_merges=True, add_bos=True),
    "llama3": PreTokenizer(LLAMA3, ignore_merges=True, add_bos=True),
    "llama-v3": PreTokenizer(LLAMA3, ignore_merges=True, add_bos=True),
    "qwen2": PreTokenizer(QWEN2, nfc=True),
}
"""The values of `tokenizer.ggml.pre` that are known."""


def backend_from_gguf(metadata: Mapping[str, object]) -> Any:
    """Build the `tokenizers.Tokenizer` of a GGUF file: byte-level BPE, SentencePiece BPE or WordPiece."""
    kinds = {"gpt2": _byte_level, "llama": _sentence_piece, "bert": _word_piece}
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in kinds:
        raise CheckpointError(
            f"tokenizer.ggml.model: expected one of {', '.join(kinds)}, got {kind!r}; "
            "load the tokenizer from the folder that the file was converted from"
        )
    return kinds[kind](_Vocabulary(metadata))


def special_tokens_from_gguf(metadata: Mapping[str, object]) -> tuple[dict[str, str], list[int]]:
    """The special tokens of a GGUF file by transformers' names, and all ids that end a text."""
    vocabulary = _Vocabulary(metadata)
    names = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "sep_token": "seperator_token_id",  # the format's own spelling
        "pad_token": "padding_token_id",
        "cls_token": "cls_token_id",
        "mask_token": "mask_token_id",
    }
    if metadata.get("tokenizer.ggml.model") == "bert":  # BERT calls its first and last token cls and sep
        names |= {"cls_token": "bos_token_id", "bos_token": "", "sep_token": "seperator_token_id", "eos_token": ""}
    found = {name: vocabulary.special(key) for name, key in names.items() if key}
    tokens = {name: vocabulary.tokens[number] for name, number in found.items() if number is not None}
    ends = [
        vocabulary.special(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id") if "eos_token" in tokens
    ]
    return tokens, [number for number in ends if number is not None]


class _Vocabulary:
    """The validated lists and numbers under `tokenizer.ggml`."""

    def __init__(self, metadata: Mapping[str, object]):
        self._metadata = metadata
        self.tokens: list[str] = self.list_of("tokens", str)
        self.types: list[int] = self.list_of("token_type", int, [NORMAL] * len(self.tokens))
        if len(self.types) != len(self.tokens):
            raise CheckpointError(f"tokenizer.ggml has {len(self.tokens)} tokens and {len(self.types)} token types")
        self.numbers = {token: number for number, token in enumerate(self.tokens)}
        if len(self.numbers) != len(self.tokens):
            twice = next(token for number, token in enumerate(self.tokens) if self.numbers[token] != number)
            raise CheckpointError(f"tokenizer.ggml.tokens has {twice!r} twice, so its id is not known")

    def list_of(self, key: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        """A list with entries of one type."""
        found = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if found is None:
            raise CheckpointError(f"tokenizer.ggml.{key} is not in the file; it is needed to build the tokenizer")
        entries = list(found) if isinstance(found, Iterable) and not isinstance(found, str) else [None]
        numbers = {str: str, int: Integral, float: Real}  # also those of numpy
        if not all(isinstance(entry, numbers[kind]) for entry in entries):
            raise CheckpointError(f"tokenizer.ggml.{key} should be a list of {kind.__name__}, but is {str(found)[:80]}")
        return [kind(entry) for entry in entries]

    def flag(self, key: str, default: bool) -> bool:
        found = self._metadata.get(f"tokenizer.ggml.{key}")
        return default if found is None else bool(found)

    def name(self, key: str) -> str | None:
        found = self._metadata.get(f"tokenizer.ggml.{key}")
        return found if isinstance(found, str) else None

    def special(self, key: str) -> int | None:
        """The id of a special token, if there is one."""
        found = self._metadata.get(f"tokenizer.ggml.{key}")
        if found is None:
            return None
        if not isinstance(found, int) or not 0 <= found < len(self.tokens):
            raise CheckpointError(f"tokenizer.ggml.{key} is {found!r}, and the ids are 0 to {len(self.tokens) - 1}")
        return found

    def of_type(self, *types: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]


def _byte_level(vocabulary: _Vocabulary) -> Any:
    """Byte-level BPE, as of GPT-2."""
    name = vocabulary.name("pre")
    if name not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"tokenizer.ggml.pre: expected one of {', '.join(PRE_TOKENIZERS)}, got {name!r}; "
            "load the tokenizer from the folder that the file was converted from"
        )
    if vocabulary.flag("add_space_prefix", False):
        raise CheckpointError(f"tokenizer.ggml.add_space_prefix is set, which is not known to go with {name!r}")
    pre_tokenizer = PRE_TOKENIZERS[name]
    merges = [tuple(merge.split(" ")) for merge in vocabulary.list_of("merges", str)]
    if any(len(merge) != 2 for merge in merges):
        raise CheckpointError("tokenizer.ggml.merges: each should be two tokens with a space between them")
    pre, tokenizers = import_extra("tokenizers.pre_tokenizers"), import_extra("tokenizers")
    model = import_extra("tokenizers.models").BPE(
        vocab=vocabulary.numbers, merges=merges, ignore_merges=pre_tokenizer.ignore_merges
    )
    backend = tokenizers.Tokenizer(model)
    steps = [pre.Digits(individual_digits=True)] if pre_tokenizer.digits else []
    if pre_tokenizer.pattern is not None:
        steps.append(pre.Split(tokenizers.Regex(pre_tokenizer.pattern), behavior="isolated"))
    steps.append(pre.ByteLevel(add_prefix_space=False, use_regex=pre_tokenizer.pattern is None))
    backend.pre_tokenizer = pre.Sequence(steps)
    if pre_tokenizer.nfc:
        backend.normalizer = import_extra("tokenizers.normalizers").NFC()
    backend.decoder = import_extra("tokenizers.decoders").ByteLevel()
    _add_tokens(backend, vocabulary)
    _add_template(backend, vocabulary, add_bos=pre_tokenizer.add_bos)
    return backend


def _sentence_piece(vocabulary: _Vocabulary) -> Any:
    """SentencePiece BPE with byte fallback, as of Llama 2."""
    if vocabulary.flag("remove_extra_whitespaces", False):
        raise CheckpointError("tokenizer.ggml.remove_extra_whitespaces is set, and no exact way to do so is known")
    scores = vocabulary.list_of("scores", float)
    if len(scores) != len(vocabulary.tokens):
        raise CheckpointError(f"tokenizer.ggml has {len(vocabulary.tokens)} tokens and {len(scores)} scores")
    if not all(map(math.isfinite, scores)):
        raise CheckpointError("tokenizer.ggml.scores has an entry that is not finite, so pieces have no order")
    mergeable = {
        token: score
        for token, kind, score in zip(vocabulary.tokens, vocabulary.types, scores, strict=True)
        if kind in (NORMAL, UNUSED)
    }
    merges = merges_from_scores(mergeable, unused=set(vocabulary.of_type(UNUSED)))
    unknown = next(iter(vocabulary.of_type(UNKNOWN)), None)
    model = import_extra("tokenizers.models").BPE(
        vocab=vocabulary.numbers, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    backend = import_extra("tokenizers").Tokenizer(model)
    normalizers, decoders = import_extra("tokenizers.normalizers"), import_extra("tokenizers.decoders")
    prefix = vocabulary.flag("add_space_prefix", True)
    first = [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    _add_tokens(backend, vocabulary)
    _add_template(backend, vocabulary, add_bos=True)
    return backend


def _word_piece(vocabulary: _Vocabulary) -> Any:
    """WordPiece, as of BERT. GGUF marks pieces that start a word, WordPiece those that continue one."""
    tokens = [_as_word_piece(token) for token in vocabulary.tokens]
    numbers = {token: number for number, token in enumerate(tokens)}
    if len(numbers) != len(tokens):
        raise CheckpointError("tokenizer.ggml.tokens has two entries that are the same piece of a word")
    ends = [vocabulary.special(key) for key in ("bos_token_id", "seperator_token_id")]
    first, last = (tokens[number] if number is not None else None for number in ends)
    unknown = vocabulary.special("unknown_token_id")
    if first is None or last is None or unknown is None:
        raise CheckpointError(
            "a tokenizer of kind bert needs tokenizer.ggml.bos_token_id, seperator_token_id and unknown_token_id"
        )
    # The file does not say whether case matters: it does where the vocabulary has what lower case would change. The
    # mathematical ℝ, which even uncased vocabularies have, has no lower case.
    lowercase = all(token.lower() == token for token in vocabulary.of_type(NORMAL))
    model = import_extra("tokenizers.models").WordPiece(vocab=numbers, unk_token=tokens[unknown])
    backend = import_extra("tokenizers").Tokenizer(model)
    backend.normalizer = import_extra("tokenizers.normalizers").BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = import_extra("tokenizers.pre_tokenizers").BertPreTokenizer()
    backend.decoder = import_extra("tokenizers.decoders").WordPiece()
    added = import_extra("tokenizers").AddedToken
    special = {tokens[number] for number, kind in enumerate(vocabulary.types) if kind in (UNKNOWN, CONTROL)}
    keys = ("bos", "seperator", "unknown", "padding", "mask", "cls")
    named = (vocabulary.special(f"{key}_token_id") for key in keys)
    special |= {tokens[number] for number in named if number is not None}
    backend.add_special_tokens([added(token, normalized=False) for token in sorted(special, key=numbers.__getitem__)])
    backend.post_processor = import_extra("tokenizers.processors").TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, numbers[token]) for token in {first, last}],
    )
    return backend


def _as_word_piece(token: str) -> str:
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[1:] if token.startswith(SPACE) else f"##{token}"


def _add_tokens(backend: Any, vocabulary: _Vocabulary) -> None:
    """Add the tokens that are matched before pre-tokenization; user-defined ones are not special."""
    added = import_extra("tokenizers").AddedToken
    backend.add_special_tokens([added(token, normalized=False) for token in vocabulary.of_type(CONTROL, UNKNOWN)])
    backend.add_tokens([added(token, normalized=False) for token in vocabulary.of_type(USER_DEFINED)])


def _add_template(backend: Any, vocabulary: _Vocabulary, *, add_bos: bool) -> None:
    """Add the bos and eos tokens around a text, if the file says so."""
    asked = {
        "bos_token_id": vocabulary.flag("add_bos_token", add_bos),
        "eos_token_id": vocabulary.flag("add_eos_token", False),
    }
    ends = [vocabulary.special(key) if wanted else None for key, wanted in asked.items()]
    first, last = ([vocabulary.tokens[number]] if number is not None else [] for number in ends)
    if not first and not last:
        return
    pair = [*first, "$A", *last, *(f"{token}:1" for token in first), "$B:1", *(f"{token}:1" for token in last)]
    backend.post_processor = import_extra("tokenizers.processors").TemplateProcessing(
        single=[*first, "$A", *last],
        pair=pair,
        special_tokens=[(token, vocabulary.numbers[token]) for token in {*first, *last}],
    )
