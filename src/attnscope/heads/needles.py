"""Needles in a haystack: documents that state facts, and ask for them again at their end.

A needle is a cue followed by an answer. Needles stand at even depths of a text. At the end of the document, each cue
comes again, in random order, with its answer (teacher forcing), so that one pass over a document asks for all of them.
In: ids of a text, and a tokenizer or a vocabulary. Out: documents, with the positions of needles and answers.
Does not know: models. Memory: O(n).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.errors import SettingError

TOKENS_PER_NEEDLE = 128  # of a document, at least
WORDS_PER_ANSWER = 5
IDS_PER_PART = 5  # of a cue or an answer of random ids
OWNERS = (
    "baker", "banker", "captain", "carpenter", "doctor", "driver", "farmer", "gardener", "guard", "hunter", "judge",
    "lawyer", "miner", "nurse", "painter", "pilot", "poet", "sailor", "singer", "teacher",
)  # fmt: skip
PLACES = (
    "Berlin", "Boston", "Cairo", "Chicago", "Delhi", "Dublin", "Geneva", "Lima", "Lisbon", "London", "Madrid", "Moscow",
    "Oslo", "Paris", "Prague", "Rome", "Sydney", "Tokyo", "Toronto", "Vienna",
)  # fmt: skip
WORDS = (
    "apple", "arrow", "basket", "bell", "bird", "boat", "bottle", "brick", "bridge", "candle", "castle", "chair",
    "cloud", "coat", "copper", "corn", "cup", "desert", "diamond", "door", "eagle", "engine", "feather", "fire", "fish",
    "flag", "flower", "forest", "garden", "glass", "gold", "grass", "hammer", "hat", "honey", "horse", "island", "key",
    "ladder", "lamp", "leaf", "lemon", "lion", "mirror", "moon", "mountain", "needle", "ocean", "orange", "paper",
    "pepper", "piano", "river", "rope", "salt", "silver", "snow", "stone", "sugar", "table", "tiger", "tower", "train",
    "wheel", "window", "wood",
)  # fmt: skip


class Needle(NamedTuple):
    """A fact as token ids: after the cue comes the answer."""

    cue: list[int]
    answer: list[int]


class Question(NamedTuple):
    """A needle of a document, and where its answer is asked for. All numbers are token positions."""

    needle: range
    """The cue and the answer in the text."""
    answer: range
    """The tokens to predict, at the end of the document."""
    depth: float
    """Where the needle is: 0 for the start of the text, 1 for its end."""

    @property
    def rows(self) -> range:
        """The queries that predict the answer."""
        return range(self.answer.start - 1, self.answer.stop - 1)

    @property
    def distance(self) -> int:
        """The number of tokens from the answer in the needle to the query that predicts it."""
        return self.rows.stop - self.needle.stop


class Document(NamedTuple):
    """Token ids (tokens,), the position of the first question, and the questions by depth."""

    ids: Tensor
    start: int
    questions: list[Question]


def word_needles(tokenizer: Any, count: int, *, seed: int = 0) -> list[Needle]:
    """Draw needles such as "The code of the baker in Oslo is river lamp stone gold moon", each with another cue."""
    generator = random.Random(seed)
    owners = [(owner, place) for owner in OWNERS for place in PLACES]
    if count > len(owners):
        raise SettingError(f"word_needles: expected at most {len(owners)} needles, got {count}")
    found = []
    for owner, place in generator.sample(owners, count):
        cue = tokenizer.encode(f"\nThe code of the {owner} in {place} is", add_special_tokens=False)
        words = generator.sample(WORDS, WORDS_PER_ANSWER)
        found.append(Needle(cue, tokenizer.encode("".join(f" {word}" for word in words), add_special_tokens=False)))
    return found


def token_needles(vocab_size: int, count: int, *, seed: int = 0) -> list[Needle]:
    """Draw needles of random ids, for models without a tokenizer."""
    if vocab_size < 2 * IDS_PER_PART:
        raise SettingError(f"token_needles: expected a vocabulary of at least {2 * IDS_PER_PART}, got {vocab_size}")
    generator = random.Random(seed)
    drawn = (generator.sample(range(vocab_size), 2 * IDS_PER_PART) for _ in range(count))
    return [Needle(ids[:IDS_PER_PART], ids[IDS_PER_PART:]) for ids in drawn]


def make_documents(
    text: Sequence[int], needles: Sequence[Needle], length: int, *, prefix: Sequence[int] = (), seed: int = 0
) -> list[Document]:
    """Make documents of a length in tokens that ask for all needles; short documents have only some of them each.

    Args:
        text: The ids between the needles.
        needles: The needle with index i stands at depth (i + 0.5) / count.
        length: The tokens of a document, with its questions.
        prefix: Special tokens at the start of a document.
        seed: Seeds the order of the questions.

    Raises:
        SettingError: The text or the length is too short.

    >>> document, = make_documents([0] * 199, [Needle([1, 2], [3, 4])], 200)
    >>> document.questions[0]
    Question(needle=range(96, 100), answer=range(198, 200), depth=0.5)
    >>> document.ids[96:100], document.ids[196:]
    (tensor([1, 2, 3, 4]), tensor([1, 2, 3, 4]))
    """
    room = max(TOKENS_PER_NEEDLE, 4 * max(len(cue) + len(answer) for cue, answer in needles))  # twice, in half of it
    if length < room:
        raise SettingError(
            f"make_documents: expected a length of at least {room} tokens for these needles, got {length}"
        )
    count = -(-len(needles) // (length // room))
    documents, begin = [], 0
    for first in range(count):
        indices = range(first, len(needles), count)
        tokens = length - len(prefix) - 2 * sum(len(needles[at].cue) + len(needles[at].answer) for at in indices)
        if len(text) < tokens:
            raise SettingError(
                f"make_documents: expected a text of at least {tokens:,} tokens, got {len(text):,}; use a longer text, "
                "or a shorter length"
            )
        begin = begin if begin + tokens <= len(text) else 0
        some = {(at + 0.5) / len(needles): needles[at] for at in indices}
        documents.append(insert_needles(text[begin : begin + tokens], some, prefix=prefix, seed=seed + first))
        begin += tokens
    return documents


def insert_needles(
    text: Sequence[int], needles: Mapping[float, Needle], *, prefix: Sequence[int] = (), seed: int = 0
) -> Document:
    """Insert needles at their depths into a text, and ask for them after it, in random order."""
    ids, places, done = list(prefix), {}, 0
    for depth, needle in needles.items():
        until = int(depth * len(text))
        ids += text[done:until]
        places[depth] = range(len(ids), len(ids) + len(needle.cue) + len(needle.answer))
        ids += needle.cue + needle.answer
        done = until
    ids += text[done:]
    start, questions = len(ids), []
    for depth in random.Random(seed).sample(list(needles), len(needles)):
        cue, answer = needles[depth]
        questions.append(Question(places[depth], range(len(ids) + len(cue), len(ids) + len(cue) + len(answer)), depth))
        ids += cue + answer
    return Document(torch.tensor(ids), start, sorted(questions, key=lambda question: question.depth))
