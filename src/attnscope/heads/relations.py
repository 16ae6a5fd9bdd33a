"""`score_relations`: heads that attend from a verb to its subject, or from a pronoun to the person it refers to.

In: a model that reads text, and its tokenizer. Out: for each relation, layer and head, the attention weight on the
correct word, how much larger it is than the weight on a wrong word of the same kind, and its standard error.
Does not know: what a head does with the attended word. Memory: the attention weights of a few short sentences.

The scores show where a head attends in these sentences, with position and single words balanced out. They do not show
that the model uses it (`ablate` tests that), or that the head does the same in other texts: a few templates are a small
part of a language. A head that matches "she" with female names scores like one that resolves the reference. In a
decoder, the verb attends after it has been predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError, VocabularyError
from attnscope.heads.effects import is_encoder_decoder
from attnscope.heads.labels import assign_labels
from attnscope.heads.sentences import Sentence, Word, agreement, coreference
from attnscope.heads.table import HeadTable
from attnscope.models.text.tokenizer import Span
from attnscope.progress import Progress, report_progress
from attnscope.recording import Trace, read
from attnscope.recording.token_texts import as_tokenizer

BATCH_SIZE = 32


class RelationScores(NamedTuple):
    """Scores of the heads of a layer, (heads,) each."""

    target_weight: Tensor
    """The attention weight on the target, mean over all sentences."""
    preference: Tensor
    """The weight on the target minus the weight on the distractor, mean over all sentences: -1 to 1."""
    standard_error: Tensor
    """The standard error of the preference, from the differences between balanced groups."""


Relation = dict[str, RelationScores]
"""Scores by name of the self-attention layer, in the order of execution."""


class SentenceTokens(NamedTuple):
    """The token ids of a sentence, the position of the query, and the positions of the target and the distractor."""

    ids: list[int]
    query: int
    target: range
    distractor: range


def score_relations(
    model: nn.Module,
    tokenizer: Any,
    *,
    sentences: Mapping[str, Sequence[Sentence]] | None = None,
    progress: Progress | bool = True,
) -> dict[str, Relation]:
    """Score how much each head attends to the correct word rather than to a wrong one of the same kind.

    Args:
        model: A model that reads one text.
        tokenizer: The tokenizer of the model; it must report where its tokens are in a text.
        sentences: Balanced sentences by relation, instead of the built-in "agreement" and "coreference".
        progress: False for no progress bar, or a function called with the number of read and of all sentences.

    Returns:
        Scores by relation and layer.

    Raises:
        VocabularyError: The tokenizer splits a sentence inside a marked word.
        UnsupportedError: The model or the tokenizer is unsupported.
    """
    codec = _check_tokenizer(model, tokenizer)
    relations = {"agreement": agreement(), "coreference": coreference()} if sentences is None else sentences
    for relation, some in relations.items():
        _check_balance(relation, some)
    # All words are located before the model runs, so that a missing one raises at once.
    located = [locate_words(codec, sentence) for some in relations.values() for sentence in some]
    with report_progress(progress, "reading sentences") as report:
        weights = _read_weights(model, located, report)
    found, start = {}, 0
    for relation, some in relations.items():
        groups, part = [sentence.group for sentence in some], slice(start, start + len(some))
        found[relation] = {name: compute_scores(layer[part], groups) for name, layer in weights.items()}
        start += len(some)
    return found


def relation_table(relations: Mapping[str, Relation]) -> HeadTable:
    """Convert the result of `score_relations` to a labelled table, which other tables can join.

    Args:
        relations: Scores by relation and layer.

    Returns:
        A table with two columns per relation: the preference `NAME`, and its standard error `NAME_error`.

    Raises:
        SettingError: There is no relation.
    """
    if not relations:
        raise SettingError("relation_table: expected the result of score_relations, got no relation")
    layers = next(iter(relations.values()))
    columns = {}
    for relation, by_layer in relations.items():
        columns[relation] = torch.cat([some.preference for some in by_layer.values()]).double()
        columns[f"{relation}_error"] = torch.cat([some.standard_error for some in by_layer.values()]).double()
    rows = [(name, head) for name, some in layers.items() for head in range(len(some.target_weight))]
    return assign_labels(HeadTable(tuple(name for name, _ in rows), tuple(head for _, head in rows), columns))


def compute_scores(weights: Tensor, groups: Sequence[int]) -> RelationScores:
    """Compute scores from weights (sentences, heads, 2) on target and distractor, and the group of each sentence.

    The standard error is taken over groups. Within a group, the effects of position and of single words cancel, and the
    sentences share words, so they are not independent. There are at least two groups, all of the same size.

    >>> weights = torch.tensor([[[0.9, 0.0]], [[0.5, 0.2]], [[0.7, 0.0]], [[0.1, 0.0]]])
    >>> compute_scores(weights, [0, 0, 1, 1])
    RelationScores(target_weight=tensor([0.5500]), preference=tensor([0.5000]), standard_error=tensor([0.1000]))
    """
    group_ids = torch.tensor(groups)
    exact = weights.cpu().double()  # so that what cancels does so exactly
    preference = exact[..., 0] - exact[..., 1]
    by_group = torch.stack([preference[group_ids == group].mean(0) for group in group_ids.unique()])
    error = by_group.std(0) / len(by_group) ** 0.5
    return RelationScores(*(score.to(weights.dtype) for score in (exact[..., 0].mean(0), by_group.mean(0), error)))


def sum_weights(weights: Tensor, sentences: Sequence[SentenceTokens]) -> Tensor:
    """Sum attention weights (sentences, heads, queries, keys) over target and distractor: (sentences, heads, 2)."""
    inside = weights.new_zeros(len(sentences), weights.shape[-1], 2)
    for at, sentence in enumerate(sentences):
        inside[at, list(sentence.target), 0] = inside[at, list(sentence.distractor), 1] = 1.0
    queries = torch.tensor([sentence.query for sentence in sentences], device=weights.device)
    return weights[torch.arange(len(sentences), device=weights.device), :, queries] @ inside


def locate_words(codec: Any, sentence: Sentence) -> SentenceTokens:
    """Find the tokens of the marked words; the query is the last token of its word."""
    spans = codec.offsets(sentence.text)
    query, target, distractor = (
        _find_tokens(sentence.text, spans, word) for word in (sentence.query, sentence.target, sentence.distractor)
    )
    return SentenceTokens([span.token for span in spans], query[-1], target, distractor)


def _find_tokens(text: str, spans: Sequence[Span], word: Word) -> range:
    """Return the tokens that overlap a word, which must cover that word and spaces only."""
    inside = [at for at, span in enumerate(spans) if span.start < word.end and span.end > word.start]
    covered = text[spans[inside[0]].start : spans[inside[-1]].end] if inside else ""
    if not inside or covered.strip() != text[word.start : word.end]:
        raise VocabularyError(
            f"score_relations: expected tokens for the word {text[word.start : word.end]!r} in {text!r}, got "
            f"{covered!r}; its weight cannot be separated from its neighbours, so use a tokenizer that splits between "
            "words, or other sentences"
        )
    return range(inside[0], inside[-1] + 1)


def _read_weights(model: nn.Module, sentences: Sequence[SentenceTokens], report: Progress) -> dict[str, Tensor]:
    """Run the model on all sentences, and return weights (sentences, heads, 2) by layer."""
    found: dict[str, list[Tensor]] = {}
    order: list[int] = []
    for batch in _batches(sentences):
        some = [sentences[at] for at in batch]
        trace = read(model, torch.tensor([sentence.ids for sentence in some]), progress=False)
        for name, weights in _self_attention(trace, len(some[0].ids)):
            found.setdefault(name, []).append(sum_weights(weights, some).cpu())
        order += batch
        report(len(order), len(sentences))
    if sentences and not found:
        raise UnsupportedError(
            f"score_relations: {type(model).__name__} has no self-attention; use a model with self-attention"
        )
    original_order = torch.tensor(order).argsort()
    return {name: torch.cat(parts)[original_order] for name, parts in found.items()}


def _batches(sentences: Sequence[SentenceTokens]) -> Iterator[list[int]]:
    """Yield batches of sentences with the same number of tokens, which need no padding."""

    def length(at: int) -> int:
        return len(sentences[at].ids)

    for _, group in groupby(sorted(range(len(sentences)), key=length), key=length):
        indices = list(group)
        yield from (indices[start : start + BATCH_SIZE] for start in range(0, len(indices), BATCH_SIZE))


def _self_attention(trace: Trace, length: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the dense attention weights (batch, heads, queries, keys) of each self-attention layer."""
    for name in trace:
        if trace.layer(name).cross:
            continue
        if trace[name].shape[-2:] != (length, length):
            raise UnsupportedError(
                f"score_relations: the queries and keys of {name} are not tokens: expected {length} of each, got "
                f"{trace[name].shape[-2]} and {trace[name].shape[-1]}"
            )
        yield name, trace[name].to_dense()


def _check_balance(relation: str, sentences: Sequence[Sentence]) -> None:
    sizes = Counter(sentence.group for sentence in sentences)
    if len(sizes) < 2 or len(set(sizes.values())) != 1:
        raise SettingError(
            f"score_relations: expected two groups of equal size or more for {relation!r}, got {list(sizes.values())}; "
            "standard errors are taken over groups, so number them in Sentence.group"
        )


def _check_tokenizer(model: nn.Module, tokenizer: Any) -> Any:
    """Return a tokenizer with offsets, for a model that reads one text."""
    if tokenizer is None:
        raise SettingError("score_relations: expected the tokenizer of the model, got None")
    if is_encoder_decoder(model) and any(name.rpartition(".")[2] == "decoder" for name, _ in model.named_modules()):
        raise UnsupportedError(
            f"score_relations: {type(model).__name__} has an encoder and a decoder, which read two texts; pass the "
            "encoder alone, such as model.get_encoder()"
        )
    codec = as_tokenizer(tokenizer)
    if not hasattr(codec, "offsets"):
        raise UnsupportedError(
            f"score_relations: {type(tokenizer).__name__} does not report token offsets; use a fast tokenizer of "
            "transformers, or the one that attnscope.load returns"
        )
    return codec
