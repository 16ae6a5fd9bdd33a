"""`find_retrieval_heads`: which heads fetch a fact from far back in a long text, and from which distance.

A needle is a fact in a text, and a question at the end asks for it (`needles`). For each query that predicts a token of
the answer, a head scores by where it attends: on that token in the needle (Wu et al., 2024, arXiv 2404.15574), or near
the query and at the start of the text only (Xiao et al., 2024, arXiv 2410.10819).
In: a decoder and a text. Out: `Retrieval`, the scores of each head for each needle.
Does not know: files. Memory: the KV cache, and queries and keys of the questions; no n x n matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError
from attnscope.figures import score_maps
from attnscope.heads.comparison import draw_selections
from attnscope.heads.document_reading import Answers, DocumentReading
from attnscope.heads.interventions import ablate
from attnscope.heads.labels import assign_labels
from attnscope.heads.needles import Document, Question, make_documents, token_needles, word_needles
from attnscope.heads.table import HeadTable
from attnscope.progress import Progress, report_progress
from attnscope.recording import Trace
from attnscope.recording.layers.recorded import Layer

SINK_TOKENS, RECENT_TOKENS = 4, 256
"""What a streaming head keeps: the first and the last tokens."""
MIN_LENGTH = 512  # of the shorter documents
SHORTER = 3  # how often the length is halved
NUM_ABLATED, NUM_DRAWS = 5, 10
SCORES = {
    "retrieval": "share of answer tokens where the key with the largest weight is that token in the needle",
    "weight": "weight on the token of the answer in the needle",
    "streaming": f"weight on the first {SINK_TOKENS} and the last {RECENT_TOKENS} tokens, for needles before these",
}
"""Every score and its definition; each is a mean over the queries that predict the answer."""


class AnswerLoss(NamedTuple):
    """The loss of the answers at the longest length, in nats per token, with some heads ablated."""

    heads: HeadTable
    """The ablated heads: those with the highest retrieval scores."""
    loss: float
    """With all heads."""
    ablated: float
    """Without these heads."""
    random: Tensor
    """Without as many random other heads of the same layers, (draws,)."""

    @property
    def ratio(self) -> float:
        """How many times as much the loss rises as without random heads; infinite if it does not rise without them."""
        other = float(self.random.mean()) - self.loss
        return (self.ablated - self.loss) / other if other > 0 else torch.inf


class Binned(NamedTuple):
    """A score in bins of depth or distance: bin edges (bins + 1,), means and standard errors (bins, heads)."""

    edges: list[float]
    means: Tensor
    errors: Tensor
    counts: list[int]


@dataclass(frozen=True, eq=False)
class Retrieval:
    """The scores of all heads for all needles.

    Attributes:
        layers: The layer name of each head.
        heads: The index of each head in its layer.
        num_kv_heads: The number of key-value heads of each layer.
        lengths: The length of the document of each needle, in tokens, (needles,).
        depths: The depth of each needle in the text, 0 to 1, (needles,).
        distances: The number of tokens between needle and question, (needles,).
        scores: "retrieval", "weight" and "streaming", (needles, heads) each; see `retrieval.SCORES`.
        losses: The loss of each answer in nats per token, (needles,).
        found: Whether the model predicts all tokens of the answer, (needles,).
        ablation: The loss of the answers without the best heads. None if it was left out, or if a layer computes
            attention more than once per pass, so that its heads cannot be ablated one by one.
    """

    layers: tuple[str, ...]
    heads: tuple[int, ...]
    num_kv_heads: Mapping[str, int]
    lengths: Tensor
    depths: Tensor
    distances: Tensor
    scores: Mapping[str, Tensor]
    losses: Tensor
    found: Tensor
    ablation: AnswerLoss | None = None

    def table(self, length: int | None = None) -> HeadTable:
        """Return the mean scores of all heads at a length, with standard errors over needles, and labels.

        Args:
            length: A length of the documents; the longest if None.

        Raises:
            SettingError: No document has this length.
        """
        chosen = self.lengths == (self.lengths.max() if length is None else length)
        if not chosen.any():
            raise SettingError(f"table: expected a length of {self.lengths.unique().tolist()}, got {length}")
        columns = {}
        for name, values in self.scores.items():
            columns[name], columns[f"{name}_error"] = _mean_and_error(values[chosen])
        return assign_labels(HeadTable(self.layers, self.heads, columns))

    def by_depth(self, score: str = "retrieval", *, bins: int = 10, length: int | None = None) -> Binned:
        """Return a score in bins of depth, at a length or at the longest.

        Args:
            score: The name of a score.
            bins: The number of bins.
            length: A length of the documents; the longest if None.

        Returns:
            The edges of the bins; means and standard errors, (bins, heads).
        """
        edges = [at / bins for at in range(bins + 1)]
        chosen = self.lengths == (self.lengths.max() if length is None else length)
        return self._bin(score, self.depths, edges, chosen)

    def by_distance(self, score: str = "retrieval") -> Binned:
        """Return a score of all lengths in bins of distance, which double from 256 tokens on.

        Args:
            score: The name of a score.

        Returns:
            The edges of the bins; means and standard errors, (bins, heads).
        """
        edges, last = [0.0, 256.0], int(self.distances.max())
        while edges[-1] <= last:
            edges.append(2 * edges[-1])
        return self._bin(score, self.distances, edges, torch.ones_like(self.lengths, dtype=torch.bool))

    def _bin(self, score: str, places: Tensor, edges: list[float], chosen: Tensor) -> Binned:
        values = self.scores[score]
        means, errors, counts = [], [], []
        for low, high in pairwise(edges):
            inside = chosen & (places >= low) & (places < high)
            mean, error = _mean_and_error(values[inside])
            means.append(mean)
            errors.append(error)
            counts.append(int(inside.sum()))
        return Binned(edges, torch.stack(means), torch.stack(errors), counts)

    def column(self, layer: str, head: int) -> int:
        """Return the index of a head among all heads.

        Args:
            layer: The name of a layer.
            head: The index of a head in it.

        Returns:
            The index.
        """
        return list(zip(self.layers, self.heads, strict=True)).index((layer, head))

    def figure(self, *, top: int = 10, bins: int = 10, score: str = "retrieval") -> Any:
        """Draw a score of the best heads by sequence length and depth, as a matplotlib figure.

        Args:
            top: How many heads are drawn.
            bins: The number of bins of depth.
            score: The name of a score.

        Returns:
            A matplotlib figure.
        """
        best = self.table().top(score, top)
        columns = [self.column(layer, head) for layer, head in zip(best.layers, best.heads, strict=True)]
        lengths = self.lengths.unique().tolist()
        means = torch.stack([self.by_depth(score, bins=bins, length=length).means[:, columns] for length in lengths])
        return score_maps(
            means.permute(2, 1, 0).numpy(),
            titles=best.head_names,
            rows=[f"{100 * (at + 0.5) / bins:.0f}%" for at in range(bins)],
            columns=[f"{length:,}" for length in lengths],
            ylabel="depth of the needle",
            xlabel="sequence length in tokens",
            colour_label=f"{score} score",
        )

    def full_attention_heads(self) -> Tensor:
        """Return the retrieval score of each key-value head, (layers, key-value heads): the highest of its group.

        DuoAttention and kvpress read this as `full_attention_heads.tsv`. Heads with a high score keep the whole KV
        cache, the others only the first and the last tokens.

        Raises:
            UnsupportedError: The layers do not have the same number of key-value heads.
        """
        table = self.table()
        rows = []
        for layer in dict.fromkeys(self.layers):
            scores = table["retrieval"][[at for at, name in enumerate(self.layers) if name == layer]]
            rows.append(scores.unflatten(0, (self.num_kv_heads[layer], -1)).amax(1))
        if len({len(row) for row in rows}) > 1:
            raise UnsupportedError(
                "full_attention_heads: the layers have different numbers of key-value heads, which the format cannot "
                "express; use table().to_csv instead"
            )
        return torch.stack(rows)


def find_retrieval_heads(
    model: nn.Module,
    text: str | Sequence[int] | Tensor,
    tokenizer: Any = None,
    *,
    length: int = 8192,
    needles: int = 40,
    ablations: int = NUM_DRAWS,
    seed: int = 0,
    progress: Progress | bool = True,
) -> Retrieval:
    """Score how much each head attends to a fact that is asked for at the end of a long text.

    Args:
        model: A decoder in eval mode.
        text: The text around the needles, or its token ids; at least `length` tokens.
        tokenizer: Makes needles of words. Without it, needles are random ids, and `text` must be ids.
        length: The length of the longest documents, in tokens. Documents of a half, a quarter and an eighth of it are
            read, too, down to 512 tokens.
        needles: The number of needles for each length, at even depths.
        ablations: Ablate the best heads, and this many random draws of other heads; 0 leaves this out.
        seed: Seeds the needles, the order of questions, and the draws.
        progress: False for no progress bar, or a function called with the number of read and of all documents.

    Returns:
        Scores of each head for each needle, and the losses of ablations.

    Raises:
        SettingError: An argument is invalid, or the text is too short.
        UnsupportedError: The model does not predict next tokens.
    """
    if needles < 2:
        raise SettingError(f"find_retrieval_heads: standard errors need at least 2 needles, got {needles}")
    documents = list(_documents(model, text, tokenizer, length=length, needles=needles, seed=seed))
    longest = [document for document in documents if len(document.ids) == length]
    parts: list[Retrieval] = []
    reading: DocumentReading | None = None
    total = len(documents) + (len(longest) * (ablations + 2) if ablations else 0)
    with torch.no_grad(), report_progress(progress, "asking for needles") as report:
        for document in documents:
            reading = None  # frees the KV cache of the document before
            reading = DocumentReading(model, document, caller="find_retrieval_heads")
            parts.append(score_document(reading, *reading.record()))
            report(len(parts), total)
        found = _concat(parts)
        if ablations and reading is not None and set(found.layers) <= {name for name, _ in model.named_modules()}:
            done = iter(range(len(parts) + 1, total + 1))
            rereadings = (DocumentReading(model, some, caller="find_retrieval_heads") for some in longest[:-1])
            ablation = _ablate_best(
                chain([reading], rereadings), found, ablations, seed, lambda: report(next(done), total)
            )
            found = replace(found, ablation=ablation)
    return found


def _documents(
    model: nn.Module, text: str | Sequence[int] | Tensor, tokenizer: Any, *, length: int, needles: int, seed: int
) -> Iterator[Document]:
    """Yield the documents of all lengths, the shortest first."""
    if tokenizer is None:
        vocab_size = getattr(getattr(model, "config", None), "vocab_size", 0)
        drawn, prefix = token_needles(vocab_size, needles, seed=seed), []
    else:
        drawn, prefix = word_needles(tokenizer, needles, seed=seed), _prefix(tokenizer)
    if not isinstance(text, str):
        ids = torch.as_tensor(text).tolist()
    elif tokenizer is not None:
        ids = tokenizer.encode(text, add_special_tokens=False)
    else:
        raise SettingError("find_retrieval_heads: a text needs a tokenizer; give one, or give ids")
    lengths = [length >> halvings for halvings in range(SHORTER, -1, -1)]
    for some in lengths:
        if some >= MIN_LENGTH or some == length:
            yield from make_documents(ids, drawn, some, prefix=prefix, seed=seed)


def _prefix(tokenizer: Any) -> list[int]:
    """The special tokens that a tokenizer puts before a text."""
    bare, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    return whole[: len(whole) - len(bare)] if whole[len(whole) - len(bare) :] == bare else []


def score_document(reading: DocumentReading, answers: Answers, trace: Trace) -> Retrieval:
    """Score all heads on all questions of a document, from what `reading.record` returned."""
    ids, _, questions = reading.document
    names = [name for name in trace if not trace.layer(name).cross]
    scores = [score_answers(trace, names, ids, question) for question in questions]
    return Retrieval(
        layers=tuple(name for name in names for _ in trace.layer(name).heads),
        heads=tuple(head for name in names for head in trace.layer(name).heads),
        num_kv_heads={name: _num_kv_heads(trace, name) for name in names},
        lengths=torch.full((len(questions),), len(ids)),
        depths=torch.tensor([question.depth for question in questions], dtype=torch.float64),
        distances=torch.tensor([question.distance for question in questions]),
        scores={name: torch.stack([score[name] for score in scores]) for name in SCORES},
        losses=answers.losses,
        found=answers.found,
    )


def score_answers(trace: Trace, names: Sequence[str], ids: Tensor, question: Question) -> dict[str, Tensor]:
    """Score all heads of some layers on one question, (heads,) each, from the rows that predict its answer."""
    parts: dict[str, list[Tensor]] = {name: [] for name in SCORES}
    written = ids[question.answer.start : question.answer.stop]
    is_far = question.distance >= RECENT_TOKENS  # a streaming head, too, could attend to a needle that is near
    for name in names:
        layer = trace.layer(name)
        if not isinstance(layer, Layer):
            raise SettingError("score_answers: this trace has no queries and keys; record it with keep='matrix'")
        first_row, first_key = layer.rows.start, layer.columns.start
        rows = slice(question.rows.start - first_row, question.rows.stop - first_row)
        weights = layer.matrix().batch(0)[:, rows, :].double().cpu()
        is_answer = torch.zeros(weights.shape[1:], dtype=torch.bool)
        for key in question.needle:
            if key >= first_key:  # a sliding-window cache has dropped the others
                is_answer[:, key - first_key] = ids[key] == written
        top = weights.argmax(-1, keepdim=True)
        hits = is_answer.expand_as(weights).gather(-1, top)[..., 0] & (weights.gather(-1, top)[..., 0] > 0)
        parts["retrieval"].append(hits.double().mean(-1))
        parts["weight"].append((weights * is_answer).sum(-1).mean(-1))
        streamed = (weights * _is_streamed(question.rows, layer.columns)).sum(-1).mean(-1)
        parts["streaming"].append(streamed if is_far else torch.full_like(streamed, torch.nan))
    return {name: torch.cat(values) for name, values in parts.items()}


def _is_streamed(rows: range, columns: range) -> Tensor:
    """Whether a key is among the first or the last tokens of each row, (rows, keys)."""
    row, key = torch.tensor(rows)[:, None], torch.tensor(columns)[None]
    return (key < SINK_TOKENS) | ((key > row - RECENT_TOKENS) & (key <= row))


def _num_kv_heads(trace: Trace, name: str) -> int:
    layer = trace.layer(name)
    assert isinstance(layer, Layer)
    return layer.merge_calls().key.shape[1]


def _mean_and_error(values: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over needles (needles, heads) that have a score, and its standard error; NaN for too few needles."""
    known = values[~values.isnan().any(1)]
    return known.mean(0), known.std(0) / len(known) ** 0.5 if len(known) > 1 else known.mean(0) * torch.nan


def _concat(parts: Sequence[Retrieval]) -> Retrieval:
    joined = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("lengths", "depths", "distances", "losses", "found")
    }
    scores = {name: torch.cat([part.scores[name] for part in parts]) for name in SCORES}
    return replace(parts[0], **joined, scores=scores)


def _ablate_best(
    readings: Iterable[DocumentReading], found: Retrieval, draws: int, seed: int, report: Any
) -> AnswerLoss:
    """Ask the questions of the longest documents again, without the best heads and without random others."""
    table = found.table()
    best = best_heads(table, "retrieval")
    selections = draw_selections(best, table, draws, seed, caller="find_retrieval_heads")
    parts = []
    for reading in readings:
        losses = []
        for selection in ({}, best.heads_by_layer, *selections):
            with ablate(reading.model, selection):
                losses.append(reading.ask().losses)
            report()
        parts.append(torch.stack(losses))
    loss, ablated, *others = torch.cat(parts, dim=1).mean(1)
    return AnswerLoss(best, float(loss), float(ablated), torch.stack(others))


def best_heads(table: HeadTable, score: str) -> HeadTable:
    """The heads with the highest scores, at most half of each layer, so that as many others are left to compare."""
    room = {layer: len(heads) // 2 for layer, heads in table.heads_by_layer.items()}
    order = table.top(score)
    chosen = []
    for at, layer in enumerate(order.layers):
        if room[layer] and len(chosen) < NUM_ABLATED:
            chosen.append(at)
            room[layer] -= 1
    return order.rows(chosen)
