"""Train a byte-level BPE tokenizer.

In: texts, and the vocabulary size. Out: a `Tokenizer` that encodes any text without loss, because all 256 bytes are
tokens. The same texts give the same tokens, on any number of threads.
Does not know: files, models. Memory: O(distinct words); texts are read once, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from attnscope.errors import SettingError, VocabularyError
from attnscope.extras import import_extra
from attnscope.models.text.tokenizer import Tokenizer

SMALLEST = 256 + 1  # the bytes and the end


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    end: str = "<|endoftext|>",
    progress: Callable[[int], object] | None = None,
) -> Tokenizer:
    """Learn a byte-level BPE of at most `vocab_size` tokens, the last of which is `end` and ends a text.

    Pairs that occur only once are not merged, so few texts give fewer tokens. `progress` is called with the number of
    characters read so far.

    Args:
        texts: The texts to learn from.
        vocab_size: The largest number of tokens.
        end: The special token that ends a text.
        progress: Called with the number of characters read so far.

    Returns:
        The tokenizer.

    >>> tokenizer = train_bpe(["to be or not to be", "to be"], 259)
    >>> tokenizer.texts(tokenizer.encode("to be")), tokenizer.eos_token_ids
    (['to', ' ', 'be'], frozenset({258}))
    """
    if vocab_size < SMALLEST:
        raise SettingError(
            f"train_bpe: expected a vocab_size of at least {SMALLEST}, for the 256 bytes and the end of a text, got "
            f"{vocab_size}"
        )
    if isinstance(texts, str):
        raise SettingError("train_bpe: expected a list of texts, got one string; pass [text]")
    if not end:
        raise SettingError("train_bpe: end is empty; pass the text of the end token, such as '<|endoftext|>'")
    pre = import_extra("tokenizers.pre_tokenizers")
    backend = import_extra("tokenizers").Tokenizer(import_extra("tokenizers.models").BPE())
    backend.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    backend.decoder = import_extra("tokenizers.decoders").ByteLevel()
    trainer = import_extra("tokenizers.trainers").BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,
        initial_alphabet=sorted(pre.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_check_texts(texts, progress), trainer=trainer)
    # Added after training: otherwise the trainer may learn it as a word, and plain text is encoded as it.
    if backend.token_to_id(end) is not None:
        raise SettingError(
            f"train_bpe: end is {end!r}, which occurs in words of these texts; choose a string that does not occur"
        )
    backend.add_special_tokens([import_extra("tokenizers").AddedToken(end, special=True, normalized=False)])
    return Tokenizer(backend, config={"eos_token": end})


def _check_texts(texts: Iterable[str], progress: Callable[[int], object] | None) -> Iterator[str]:
    """Yield the texts; raises for invalid Unicode, and if there are none."""
    characters, number = 0, -1
    for number, text in enumerate(texts):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise VocabularyError(
                f"train_bpe: text {number} has half a character ({text[error.start]!r}) at position {error.start}; "
                "decode the text it came from with errors='replace'"
            ) from None
        yield text
        characters += len(text)
        if progress is not None:
            progress(characters)
    if number < 0:
        raise SettingError("train_bpe: there are no texts to learn from; an iterator can be read only once")
