"""`LetterSession`: typed sentences without a trained model, where words attend to words with similar letters.

Each word is the sum of fixed random vectors of its letter pairs and triples, each position a few sines and cosines. One
layer of four heads attends by letters, to the word before, by letters and nearness, and weakly by letters.
In: texts. Out: traces of queries and keys. Does not know: HTTP. Memory: one sentence.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnscope.attention import Full
from attnscope.errors import Cancelled, SettingError, UnsupportedError
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.token_texts import Texts

NAME = "No trained model"
NOTE = "No trained model: words attend to words with similar letters."
PRESETS = (
    ("the cat sat on the mat and the cats chat", "Head 0: words with similar letters, such as “cat” and “cats”."),
    ("each word attends to the word before it", "Head 1: a previous-token head, one bright line below the diagonal."),
    ("she sells seashells by the seashore", "Head 2: similar letters and nearness together."),
)
"""Texts with what to look for; the first is for head 0, and so on."""
MAX_WORDS = 256
MAX_LETTERS = 64  # of a word that count
LETTERS, TURNS = 96, 16  # dimensions of letters, and frequencies of positions
WORD = re.compile(r"\s*(?:\w+|[^\w\s]+)")


class LetterSession(ModelSession):
    """A session without a trained model; it runs texts, and can neither generate nor predict."""

    def __init__(self) -> None:
        super().__init__(nn.Identity(), _Words([]), NAME, max_tokens=MAX_WORDS)
        self.note = NOTE
        self.presets = [
            {"text": text, "note": note, "layer": 0, "head": head} for head, (text, note) in enumerate(PRESETS)
        ]

    def run(self, text: str | Sequence[int], baseline: bool = False, *, cancelled: CancelCheck | None = None) -> Trace:
        """Let the words of a text attend to each other; raises SettingError if it is empty or too long."""
        words = WORD.findall(text) if isinstance(text, str) else []
        if baseline:
            raise UnsupportedError("there is no random-weight baseline without a trained model")
        if not 0 < len(words) <= MAX_WORDS:
            raise SettingError(f"expected 1 to {MAX_WORDS} words, got {len(words):,}")
        if cancelled is not None and cancelled():
            raise Cancelled("the run was cancelled")
        vocabulary = list(dict.fromkeys(words))
        trace = Trace(NAME, _Words(vocabulary))
        query, key = attend_by_letters(words)
        call = Call(query=query[None], key=key[None], value=None, mask=Full(), scale=1.0)
        trace.layers = {"letters": Layer("letters", call, cross=False)}
        trace.texts = [Texts("", torch.tensor([[vocabulary.index(word) for word in words]]))]
        return trace


def attend_by_letters(words: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Compute queries and keys (heads, words, dim) of four heads.

    >>> query, key = attend_by_letters(["cat", "dog", "cats"])
    >>> weights = (query @ key.mT).softmax(-1)
    >>> bool(weights[0, 0, 2] > weights[0, 0, 1]), weights[1].argmax(-1).tolist()[1:]
    (True, [0, 1])
    """
    letters = torch.stack([embed_letters(word) for word in words])
    here, before = (_embed_positions(torch.arange(len(words)) + shift) for shift in (0, -1))
    nothing = torch.zeros_like(here)
    key = torch.cat([letters, here], -1)
    queries = [
        torch.cat([6 * letters, nothing], -1),
        torch.cat([torch.zeros_like(letters), before], -1),
        torch.cat([4 * letters, here / 4], -1),
        torch.cat([2 * letters, nothing], -1),
    ]
    return torch.stack(queries), key.expand(len(queries), -1, -1).contiguous()


def embed_letters(word: str) -> Tensor:
    """Sum fixed random vectors of the letter pairs and triples of a word, scaled to length 1, (dim,)."""
    spelled = f"<{word.strip().casefold()[:MAX_LETTERS]}>"
    parts = [spelled[at : at + size] for size in (2, 3) for at in range(len(spelled) - size + 1)]
    chance = torch.Generator()
    total = torch.zeros(LETTERS)
    for part in parts:
        total += torch.randn(LETTERS, generator=chance.manual_seed(zlib.crc32(part.encode("utf-8", "replace"))))
    return nn.functional.normalize(total, dim=0)


def _embed_positions(positions: Tensor) -> Tensor:
    """Cosines and sines of positions, (positions, dim): their products are largest for equal positions."""
    angles = positions[:, None] * torch.logspace(0, -2, TURNS) * 2
    return torch.cat([angles.cos(), angles.sin()], -1) * 1.2


class _Words:
    """The tokenizer of one text: an id for each distinct word."""

    def __init__(self, vocabulary: list[str]) -> None:
        self._vocabulary, self.vocab_size = vocabulary, len(vocabulary)

    def texts(self, ids: Sequence[int]) -> list[str]:
        return [self._vocabulary[number] for number in ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(self.texts(ids))
