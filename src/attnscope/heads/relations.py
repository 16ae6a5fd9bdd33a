"""`score_relations`: which heads look from a verb to its subject, and from a pronoun to the person it stands for.

In: a model that reads text, and its tokenizer. Out: for each relation, layer and head, the weight on the right word,
how much more that is than the weight on a wrong word of the same kind, and the standard error of the difference.
Does not know: what a head does with what it looks at. Memory: the weights of a few short sentences.

What the numbers show: where a head looks in these sentences, position and favourite words balanced away. What they do
not show: that the model uses it (`ablate` is the experiment), or that the head does the same in other texts: a few
templates are not a language. A head that matches she with names of women looks like one that knows who is meant, and
in a decoder the verb looks when it has been read, which is after it was predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError, VocabularyError
from attnscope.heads.labels import labelled
from attnscope.heads.sentences import Sentence, Word, agreement, coreference
from attnscope.heads.table import HeadTable
from attnscope.models import Seq2Seq
from attnscope.models.text.tokenizer import Span
from attnscope.recording import Trace, read
from attnscope.recording.progress import Progress, report_progress
from attnscope.recording.token_texts import as_tokenizer

BATCH = 32


class Looks(NamedTuple):
    """The heads of a layer, (head,) each."""

    mass: Tensor
    """The weight on the target, mean over all sentences."""
    preference: Tensor
    """The weight on the target less that on the distractor, mean over all sentences: -1 to 1."""
    error: Tensor
    """The standard error of the preference, from how much the balanced groups differ."""


Relation = dict[str, Looks]
"""Layers of self-attention by name, in the order in which they ran."""


class Places(NamedTuple):
    """The ids of a sentence, the row that looks, and the columns of the target and of the distractor."""

    ids: list[int]
    row: int
    target: range
    distractor: range


def score_relations(
    model: nn.Module,
    tokenizer: Any,
    *,
    sentences: Mapping[str, Sequence[Sentence]] | None = None,
    progress: Progress | bool = True,
) -> dict[str, Relation]:
    """How much each head prefers the right word, by relation ("agreement", "coreference") and layer.

    `sentences` are relations of your own instead of ours. A progress bar shows on a terminal unless `progress` is False
    or a function of your own, which is told how many sentences have been read, and how many there are.
    """
    codec = _codec_for(model, tokenizer)
    asked = {"agreement": agreement(), "coreference": coreference()} if sentences is None else sentences
    for relation, some in asked.items():
        _refuse_unbalanced(relation, some)
    # All words are located before anything runs, so that one that cannot be found shows at once.
    places = [places_of(codec, sentence) for some in asked.values() for sentence in some]
    with report_progress(progress, "reading sentences") as tell:
        masses = _masses(model, places, tell)
    found, start = {}, 0
    for relation, some in asked.items():
        groups, these = [sentence.group for sentence in some], slice(start, start + len(some))
        found[relation] = {name: looks(mass[these], groups) for name, mass in masses.items()}
        start += len(some)
    return found


def relation_table(found: Mapping[str, Relation]) -> HeadTable:
    """The preferences of all heads and their errors as a table, to be joined to other scores."""
    if not found:
        raise SettingError("relation_table: no relation was given; give what score_relations returns")
    layers = next(iter(found.values()))
    columns = {}
    for relation, by_layer in found.items():
        columns[relation] = torch.cat([some.preference for some in by_layer.values()]).double()
        columns[f"{relation}_error"] = torch.cat([some.error for some in by_layer.values()]).double()
    rows = [(name, head) for name, some in layers.items() for head in range(len(some.mass))]
    return labelled(HeadTable(tuple(name for name, _ in rows), tuple(head for _, head in rows), columns))


def looks(masses: Tensor, groups: Sequence[int]) -> Looks:
    """Scores from the masses (sentence, head, target and distractor) and the group that each sentence belongs to.

    The error is that of the mean over groups. Within a group, what position and favourite words do adds up to 0, so it
    says nothing of chance; and sentences of a group share their words, so they are no independent trials. Groups have
    one size, and there are two at least.

    >>> masses = torch.tensor([[[0.9, 0.0]], [[0.5, 0.2]], [[0.7, 0.0]], [[0.1, 0.0]]])
    >>> looks(masses, [0, 0, 1, 1])
    Looks(mass=tensor([0.5500]), preference=tensor([0.5000]), error=tensor([0.1000]))
    """
    named = torch.tensor(groups)
    exact = masses.double()  # so that what cancels does so to the last digit that is given back
    preference = exact[..., 0] - exact[..., 1]
    each = torch.stack([preference[named == group].mean(0) for group in named.unique()])
    error = each.std(0) / len(each) ** 0.5
    return Looks(*(score.to(masses.dtype) for score in (exact[..., 0].mean(0), each.mean(0), error)))


def masses_of(weights: Tensor, places: Sequence[Places]) -> Tensor:
    """The masses (sentence, head, target and distractor) of weights (sentence, head, query, key): sums over tokens."""
    inside = weights.new_zeros(len(places), weights.shape[-1], 2)
    for at, place in enumerate(places):
        inside[at, list(place.target), 0] = inside[at, list(place.distractor), 1] = 1.0
    rows = torch.tensor([place.row for place in places], device=weights.device)
    return weights[torch.arange(len(places), device=weights.device), :, rows] @ inside


def places_of(codec: Any, sentence: Sentence) -> Places:
    """Where the tokens of the marked words stand; a word looks from its last token, which has seen the others."""
    spans = codec.offsets(sentence.text)
    looking, target, distractor = (
        _tokens_of(sentence.text, spans, word) for word in (sentence.looking, sentence.target, sentence.distractor)
    )
    return Places([span.token for span in spans], looking[-1], target, distractor)


def _tokens_of(text: str, spans: Sequence[Span], word: Word) -> range:
    """The tokens that share characters with a word; raises unless they are that word and nothing but spaces."""
    inside = [at for at, span in enumerate(spans) if span.start < word.end and span.end > word.start]
    covered = text[spans[inside[0]].start : spans[inside[-1]].end] if inside else ""
    if not inside or covered.strip() != text[word.start : word.end]:
        raise VocabularyError(
            f"score_relations: the word {text[word.start : word.end]!r} was looked for in {text!r}, where the "
            f"tokenizer has {covered!r}; the weight on it cannot be told from that on its neighbours, so use a "
            "tokenizer that cuts between words, or sentences of your own"
        )
    return range(inside[0], inside[-1] + 1)


def _masses(model: nn.Module, places: Sequence[Places], tell: Progress) -> dict[str, Tensor]:
    """The masses (sentence, head, 2) of each layer."""
    found: dict[str, list[Tensor]] = {}
    order: list[int] = []
    for batch in _batches(places):
        some = [places[at] for at in batch]
        trace = read(model, torch.tensor([place.ids for place in some]), progress=False)
        for name, weights in _self_attention(trace, len(some[0].ids)):
            found.setdefault(name, []).append(masses_of(weights, some).cpu())
        order += batch
        tell(len(order), len(places))
    if places and not found:
        raise UnsupportedError(
            f"score_relations: {type(model).__name__} has cross-attention alone, where no word looks at its own text; "
            "give a model with self-attention"
        )
    back = torch.tensor(order).argsort()
    return {name: torch.cat(masses)[back] for name, masses in found.items()}


def _batches(places: Sequence[Places]) -> Iterator[list[int]]:
    """Sentences of the same number of tokens, so that nothing has to be padded."""

    def length(at: int) -> int:
        return len(places[at].ids)

    for _, same in groupby(sorted(range(len(places)), key=length), key=length):
        listed = list(same)
        yield from (listed[start : start + BATCH] for start in range(0, len(listed), BATCH))


def _self_attention(trace: Trace, length: int) -> Iterator[tuple[str, Tensor]]:
    """The weights (batch, head, query, key) of each layer, which are few: sentences are short."""
    for name in trace:
        if trace.layer(name).cross:
            continue
        if trace[name].shape[-2:] != (length, length):
            raise UnsupportedError(
                f"score_relations: {name} looks from {trace[name].shape[-2]} places at {trace[name].shape[-1]} in a "
                f"sentence of {length} tokens, so its rows and columns are no tokens, and there are no "
                "words to find in them"
            )
        yield name, trace[name].to_dense()


def _refuse_unbalanced(relation: str, sentences: Sequence[Sentence]) -> None:
    sizes = Counter(sentence.group for sentence in sentences)
    if len(sizes) < 2 or len(set(sizes.values())) != 1:
        raise SettingError(
            f"score_relations: {relation!r} should have two or more groups of sentences, all of one size, but they "
            f"have {list(sizes.values())}; standard errors are those over groups, so number them in Sentence.group"
        )


def _codec_for(model: nn.Module, tokenizer: Any) -> Any:
    """A tokenizer that can tell where tokens stand, for a model that reads one text."""
    if tokenizer is None:
        raise SettingError("score_relations: a model was given without a tokenizer; give the one it was trained with")
    both = isinstance(model, Seq2Seq) or getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if both and any(name.rpartition(".")[2] == "decoder" for name, _ in model.named_modules()):
        raise UnsupportedError(
            f"score_relations: {type(model).__name__} has an encoder and a decoder, which read two texts, and the "
            "sentences are one; give the encoder alone, such as model.get_encoder()"
        )
    codec = as_tokenizer(tokenizer)
    if not hasattr(codec, "offsets"):
        raise UnsupportedError(
            f"score_relations: {type(tokenizer).__name__} cannot tell where in a text its tokens stand; give a fast "
            "tokenizer of transformers, or that of attnscope.load"
        )
    return codec
