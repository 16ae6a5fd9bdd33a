"""Tokenizers as GGUF files describe them: a vocabulary, and the name of what cuts text before it is looked up.

In: the key/values of a GGUF file under `tokenizer.ggml`. Out: a `tokenizers.Tokenizer` that gives the ids of the one
the file was made from.
Does not know: files. A kind, or a way of cutting, of which the exact rules are not known is refused by its name.
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
"""What `token_type` says of a token."""

SPACE = "▁"  # stands for a space in the vocabularies of SentencePiece
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDING = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{ENDING}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{ENDING}"


class Cut(NamedTuple):
    """How text becomes words before they are looked up."""

    pattern: str | None = None
    """What a word looks like; None is GPT-2's own, which the tokenizers library has built in."""
    digits: bool = False
    """Whether each digit is a word of its own, before anything else."""
    composed: bool = False
    """Whether characters are brought to composed form (NFC) first."""
    whole_words: bool = False
    """Whether a word that is in the vocabulary is taken whole, without going through its merges."""
    begins: bool = False
    """Whether a text begins with the bos token when the file does not say."""


CUTS: dict[str, Cut] = {
    "gpt-2": Cut(),
    "phi-2": Cut(),
    "smollm": Cut(digits=True),
    "starcoder": Cut(digits=True),
    "refact": Cut(digits=True),
    "command-r": Cut(digits=True, composed=True),
    "llama-bpe": Cut(LLAMA3, whole_words=True, begins=True),
    "llama3": Cut(LLAMA3, whole_words=True, begins=True),
    "llama-v3": Cut(LLAMA3, whole_words=True, begins=True),
    "qwen2": Cut(QWEN2, composed=True),
}
"""The values of `tokenizer.ggml.pre` that are known."""


def backend_from_gguf(metadata: Mapping[str, object]) -> Any:
    """The `tokenizers.Tokenizer` of a GGUF file: byte-level BPE, SentencePiece BPE or WordPiece."""
    kinds = {"gpt2": _byte_level, "llama": _sentence_piece, "bert": _word_piece}
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in kinds:
        raise CheckpointError(
            f"tokenizer.ggml.model is {kind!r}, and AttnScope knows {', '.join(kinds)}; "
            "load the tokenizer from the folder that the file was made from"
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
    if metadata.get("tokenizer.ggml.model") == "bert":  # there the first and last token have other names
        names |= {"cls_token": "bos_token_id", "bos_token": "", "sep_token": "seperator_token_id", "eos_token": ""}
    found = {name: vocabulary.special(key) for name, key in names.items() if key}
    tokens = {name: vocabulary.tokens[number] for name, number in found.items() if number is not None}
    ends = [
        vocabulary.special(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id") if "eos_token" in tokens
    ]
    return tokens, [number for number in ends if number is not None]


class _Vocabulary:
    """The lists and numbers under `tokenizer.ggml`, checked."""

    def __init__(self, metadata: Mapping[str, object]):
        self._metadata = metadata
        self.tokens: list[str] = self.listed("tokens", str)
        self.types: list[int] = self.listed("token_type", int, [NORMAL] * len(self.tokens))
        if len(self.types) != len(self.tokens):
            raise CheckpointError(f"tokenizer.ggml has {len(self.tokens)} tokens and {len(self.types)} token types")
        self.numbers = {token: number for number, token in enumerate(self.tokens)}
        if len(self.numbers) != len(self.tokens):
            twice = next(token for number, token in enumerate(self.tokens) if self.numbers[token] != number)
            raise CheckpointError(f"tokenizer.ggml.tokens has {twice!r} twice, so its id is not known")

    def listed(self, key: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        """A list of the file, every entry of one kind."""
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
        """The id under a key, if there is one."""
        found = self._metadata.get(f"tokenizer.ggml.{key}")
        if found is None:
            return None
        if not isinstance(found, int) or not 0 <= found < len(self.tokens):
            raise CheckpointError(f"tokenizer.ggml.{key} is {found!r}, and the ids are 0 to {len(self.tokens) - 1}")
        return found

    def of_type(self, *types: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]


def _byte_level(vocabulary: _Vocabulary) -> Any:
    """GPT-2's kind: words are cut by a pattern, written as bytes, and merged in the order of a list."""
    name = vocabulary.name("pre")
    if name not in CUTS:
        raise CheckpointError(
            f"tokenizer.ggml.pre is {name!r}, and the ways of cutting text that AttnScope knows are "
            f"{', '.join(CUTS)}; load the tokenizer from the folder that the file was made from"
        )
    if vocabulary.flag("add_space_prefix", False):
        raise CheckpointError(f"tokenizer.ggml.add_space_prefix is set, which is not known to go with {name!r}")
    cut = CUTS[name]
    merges = [tuple(merge.split(" ")) for merge in vocabulary.listed("merges", str)]
    if any(len(merge) != 2 for merge in merges):
        raise CheckpointError("tokenizer.ggml.merges: each should be two tokens with a space between them")
    pre, tokenizers = import_extra("tokenizers.pre_tokenizers"), import_extra("tokenizers")
    model = import_extra("tokenizers.models").BPE(
        vocab=vocabulary.numbers, merges=merges, ignore_merges=cut.whole_words
    )
    backend = tokenizers.Tokenizer(model)
    steps = [pre.Digits(individual_digits=True)] if cut.digits else []
    if cut.pattern is not None:
        steps.append(pre.Split(tokenizers.Regex(cut.pattern), behavior="isolated"))
    steps.append(pre.ByteLevel(add_prefix_space=False, use_regex=cut.pattern is None))
    backend.pre_tokenizer = pre.Sequence(steps)
    if cut.composed:
        backend.normalizer = import_extra("tokenizers.normalizers").NFC()
    backend.decoder = import_extra("tokenizers.decoders").ByteLevel()
    _add_tokens(backend, vocabulary)
    _add_ends(backend, vocabulary, begins=cut.begins)
    return backend


def _sentence_piece(vocabulary: _Vocabulary) -> Any:
    """Llama 2's kind: pieces with scores, the best merged first, and bytes for characters that are no piece."""
    if vocabulary.flag("remove_extra_whitespaces", False):
        raise CheckpointError("tokenizer.ggml.remove_extra_whitespaces is set, and no exact way to do so is known")
    scores = vocabulary.listed("scores", float)
    if len(scores) != len(vocabulary.tokens):
        raise CheckpointError(f"tokenizer.ggml has {len(vocabulary.tokens)} tokens and {len(scores)} scores")
    if not all(map(math.isfinite, scores)):
        raise CheckpointError("tokenizer.ggml.scores has an entry that is no finite number, so pieces have no order")
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
    _add_ends(backend, vocabulary, begins=True)
    return backend


def _word_piece(vocabulary: _Vocabulary) -> Any:
    """BERT's kind. GGUF marks the pieces that begin a word, where WordPiece marks those that go on with one."""
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
    """Tokens that are found in a text before it is cut: control tokens are special, the user's own are not."""
    added = import_extra("tokenizers").AddedToken
    backend.add_special_tokens([added(token, normalized=False) for token in vocabulary.of_type(CONTROL, UNKNOWN)])
    backend.add_tokens([added(token, normalized=False) for token in vocabulary.of_type(USER_DEFINED)])


def _add_ends(backend: Any, vocabulary: _Vocabulary, *, begins: bool) -> None:
    """Put the first and the last token around a text, if the file wants that."""
    asked = {
        "bos_token_id": vocabulary.flag("add_bos_token", begins),
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
