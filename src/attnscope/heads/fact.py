"""`explain_fact`: why a model finds or misses a fact of a text.

In: a decoder, a text with a fact, and a question that the fact answers. Out: a `FactReport`: which heads attend to the
fact from the queries that predict the answer, what ablating them costs, and where their attention goes instead.
Does not know: files. Memory: the KV cache, and queries and keys of the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError
from attnscope.heads.comparison import draw_selections
from attnscope.heads.document_reading import DocumentReading
from attnscope.heads.interventions import ablate
from attnscope.heads.needles import Document, Question
from attnscope.heads.retrieval import best_heads, score_document
from attnscope.heads.table import HeadTable
from attnscope.progress import Progress, report_progress
from attnscope.recording import Trace
from attnscope.recording.token_texts import as_tokenizer

NUM_PLACES, CONTEXT_TOKENS = 8, 6
NUM_DRAWS = 5
LARGE_WEIGHT = 0.1
"""A head attends to the fact if this much of its weight is on it."""


class Place(NamedTuple):
    """A token that the best heads attend to, outside of the fact."""

    position: int
    weight: float
    """The mean weight of the best heads."""
    before: str
    token: str
    after: str


class Ablation(NamedTuple):
    """The change of the loss of the answer without some heads, in nats per token."""

    heads: list[str]
    change: float


@dataclass(frozen=True, eq=False)
class FactReport:
    """Why a model finds or misses a fact.

    Attributes:
        question: The question.
        answer: The answer, as it is in the text.
        predicted: What the model predicts at the tokens of the answer.
        num_tokens: The length of text, question and answer, in tokens.
        position: The position of the first token of the fact.
        loss: The loss of the answer in nats per token.
        loss_without_fact: The same if the fact is cut out of the text.
        heads: All heads, those with the largest weight on the fact first: `weight` on the token of the answer in the
            fact, `retrieval` and `streaming`, as in `find_retrieval_heads`.
        places: The tokens outside of the fact that the best heads attend to most.
        ablations: The best heads one by one, and together.
        random_changes: The change of the loss without as many random other heads of the same layers, (draws,).
    """

    question: str
    answer: str
    predicted: str
    num_tokens: int
    position: int
    loss: float
    loss_without_fact: float
    heads: HeadTable
    places: list[Place]
    ablations: list[Ablation]
    random_changes: Tensor

    @property
    def is_found(self) -> bool:
        """Whether the model predicts the answer."""
        return self.predicted == self.answer

    @property
    def why_missed(self) -> str | None:
        """A sentence that tells apart why the answer is missed; None if it is found."""
        if self.is_found:
            return None
        largest, change = float(self.heads["weight"][0]), self.ablations[-1].change
        if not largest >= LARGE_WEIGHT:
            return f"No head attends to the fact: the largest weight on it is {largest:.3f}."
        others = float(self.random_changes.max())
        if change <= others:
            return (
                "The fact is read but not used: ablating the heads that attend to it changes the loss by "
                f"{change:+.3f}, and a draw of other heads by {others:+.3f}."
            )
        if self.loss >= self.loss_without_fact:
            return "The fact is read, and the loss changes without the heads that read it, but it does not help."
        return "The fact is read and lowers the loss, but the model still prefers another answer."


def explain_fact(
    model: nn.Module, tokenizer: Any, text: str, *, fact: str, question: str, progress: Progress | bool = True
) -> FactReport:
    """Ask for a fact after a text, and find out which heads attend to it.

    Args:
        model: A decoder in eval mode.
        tokenizer: Its tokenizer, which must report where its tokens are in a text.
        text: The text.
        fact: The words of the text that answer the question; their last occurrence counts.
        question: The text that the answer continues, such as "The password is".
        progress: False for no progress bar, or a function called with the number of finished and of all runs.

    Returns:
        The weights of all heads from the question to the fact, and what the model predicts.

    Raises:
        SettingError: The fact is not in the text, or its tokens after the question are not those of the text.
        UnsupportedError: The model does not predict next tokens.
    """
    codec = as_tokenizer(tokenizer)
    document, without = _documents(codec, text, fact, question)
    with torch.no_grad(), report_progress(progress, "asking for the fact") as report:
        absent = DocumentReading(model, without, caller="explain_fact").ask().losses[0]
        reading = DocumentReading(model, document, caller="explain_fact")
        answers, trace = reading.record()
        table = score_document(reading, answers, trace).table().top("weight")
        best = best_heads(table, "weight")
        singles = [best.rows([at]) for at in range(len(best))]
        draws = draw_selections(best, table, NUM_DRAWS, 0, caller="explain_fact")
        changes: list[float] = []
        for selection in (*(one.heads_by_layer for one in (*singles, best)), *draws):
            with ablate(model, selection):
                changes.append(float(reading.ask().losses[0] - answers.losses[0]))
            report(2 + len(changes), 3 + len(singles) + len(draws))
    named = [one.head_names for one in (*singles, best)]
    return FactReport(
        question=question,
        answer=fact.strip(),
        predicted=codec.decode(answers.predicted[0].tolist()).strip(),
        num_tokens=len(document.ids),
        position=document.questions[0].needle.start,
        loss=float(answers.losses[0]),
        loss_without_fact=float(absent),
        heads=table,
        places=_places(codec, trace, best, document),
        ablations=[Ablation(*pair) for pair in zip(named, changes, strict=False)],
        random_changes=torch.tensor(changes[len(named) :]),
    )


def _documents(codec: Any, text: str, fact: str, question: str) -> tuple[Document, Document]:
    """The document with the question and its answer after the text, and the same without the fact."""
    at = text.rfind(fact.strip())
    if not fact.strip() or at < 0:
        raise SettingError(f"explain_fact: {fact!r} is not in the text")
    spans = codec.offsets(text)
    end = at + len(fact.strip())
    inside = [token for token, span in enumerate(spans) if span.start < end and span.end > at]
    ids = [span.token for span in spans]
    asked = codec.encode(f"\n\n{question.rstrip()}", add_special_tokens=False)
    answer = codec.encode(f" {fact.strip()}", add_special_tokens=False)
    needle = range(inside[0], inside[-1] + 1)
    if not set(answer) <= {ids[key] for key in needle}:
        raise SettingError(
            f"explain_fact: the tokens of {fact!r} are others after the question than in the text; choose whole words"
        )
    found = []
    for before, keys in ((ids, needle), ([*ids[: needle.start], *ids[needle.stop :]], range(0))):
        start = len(before) + len(asked)
        depth = needle.start / len(ids)
        whole = torch.tensor([*before, *asked, *answer])
        found.append(Document(whole, len(before), [Question(keys, range(start, start + len(answer)), depth)]))
    return found[0], found[1]


def _places(codec: Any, trace: Trace, best: HeadTable, document: Document) -> list[Place]:
    """The tokens outside of the fact with the largest mean weight of the best heads, from the answer's queries."""
    (question,), ids = document.questions, document.ids
    total = torch.zeros(len(ids), dtype=torch.float64)
    for name, heads in best.heads_by_layer.items():
        layer = trace.layer(name)
        rows = slice(
            question.rows.start - (len(ids) - layer.shape[2]), question.rows.stop - (len(ids) - layer.shape[2])
        )
        weights = layer.matrix().batch(0)[:, rows, :][[layer.heads.index(head) for head in heads]]
        total[len(ids) - layer.shape[3] :] += weights.double().mean(1).sum(0).cpu()
    total /= len(best)
    total[question.needle.start : question.needle.stop] = 0
    places = []
    for at in total.topk(min(NUM_PLACES, len(ids))).indices.tolist():
        before, token, after = (
            "".join(_texts(codec, ids, part))
            for part in (
                range(max(at - CONTEXT_TOKENS, 0), at),
                range(at, at + 1),
                range(at + 1, at + 1 + CONTEXT_TOKENS),
            )
        )
        places.append(Place(at, float(total[at]), before, token, after))
    return places


def _texts(codec: Any, ids: Tensor, positions: range) -> Sequence[str]:
    return codec.texts(ids[positions.start : positions.stop].tolist())
