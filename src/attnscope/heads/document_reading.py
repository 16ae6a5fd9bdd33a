"""`DocumentReading`: a model that has read a document, and is asked its questions as often as needed.

In: a decoder and a document with questions at its end. Out: the loss of each answer, what the model predicts instead,
and a trace of the questions. Does not know: scores. Memory: the KV cache, and queries and keys of recorded questions.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError
from attnscope.heads.effects import predicts_next_token
from attnscope.heads.needles import Document
from attnscope.recording import Trace, record
from attnscope.recording.chunks import cached_run
from attnscope.recording.reading import CHUNK_SIZE


class Answers(NamedTuple):
    """What a model predicts where the answers of a document are."""

    losses: Tensor
    """The loss of each answer in nats per token, (questions,)."""
    predicted: list[Tensor]
    """The most probable tokens of each answer, given the tokens of the answer before."""
    found: Tensor
    """Whether these are the tokens of the answer, (questions,)."""


class DocumentReading:
    """A decoder in eval mode that has read a document up to its questions."""

    def __init__(self, model: nn.Module, document: Document, *, caller: str) -> None:
        """`caller` is the function that error messages name."""
        if not predicts_next_token(model):
            raise UnsupportedError(f"{caller}: {type(model).__name__} does not predict the next token of a text")
        if model.training:
            raise SettingError(f"{caller}: the model is in training mode; call model.eval()")
        self.model, self.document = model, document
        device = next((parameter.device for parameter in model.parameters()), None)
        ids = document.ids[None].to(device)
        self._run = cached_run(model, capacity=len(document.ids))
        start = 0
        if self._run is not None:  # models without a KV cache read the whole document each time
            start = document.start
            for some in ids[:, :start].split(CHUNK_SIZE, 1):
                self._run(some, logits=False)
        self._first, self._questions = start, ids[:, start:]

    def ask(self) -> Answers:
        """Ask all questions."""
        with nullcontext() if self._run is None else self._run.branch():
            output = self.model(self._questions) if self._run is None else self._run(self._questions, logits=True)
        logits = getattr(output, "logits", output)[0].float()
        losses, predicted, found = [], [], []
        for question in self.document.questions:
            rows = logits[question.rows.start - self._first : question.rows.stop - self._first].cpu()
            answer = self.document.ids[question.answer.start : question.answer.stop]
            losses.append(F.cross_entropy(rows, answer))
            predicted.append(rows.argmax(-1))
            found.append((predicted[-1] == answer).all())
        return Answers(torch.stack(losses), predicted, torch.stack(found))

    def record(self) -> tuple[Answers, Trace]:
        """Ask all questions, and record the attention of their queries."""
        with record(self.model) as trace:
            answers = self.ask()
        return answers, trace
