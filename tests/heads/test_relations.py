"""Heads that look from a verb to its subject, and from a pronoun to a person: balanced sentences, and real models."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from torch import Tensor, nn

import attnscope.heads.relations as module
from attnscope.errors import SettingError, UnsupportedError, VocabularyError
from attnscope.heads.relations import (
    Relation,
    RelationScores,
    SentenceTokens,
    compute_scores,
    locate_words,
    score_relations,
    sum_weights,
)
from attnscope.heads.sentences import MEN, WOMEN, Sentence, Word, agreement, coreference
from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig, Seq2Seq, Seq2SeqConfig, load_tokenizer
from attnscope.models.text.tokenizer import Span, Tokenizer
from attnscope.recording import load
from tests.models.smollm2 import FOLDER, own_model
from tests.recording.zoo import EXHIBITS

MINILM = FOLDER.parent / "minilm-l6"
RELATIONS = {"agreement": agreement(), "coreference": coreference()}
HALF = {name: [one for one in sentences if one.group % 8 < 4] for name, sentences in RELATIONS.items()}
FEW = {name: sentences[:8] for name, sentences in RELATIONS.items()}


class Cut:
    """A tokenizer that cuts where an expression says, with a special token at each end."""

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def offsets(self, text: str) -> list[Span]:
        found = [Span(1, match.start(), match.end()) for match in re.finditer(self._expression, text)]
        return [Span(0, 0, 0), *found, Span(0, 0, 0)]


WORDS = Cut(r"\w+|[^\w\s]")
PIECES = Cut(r" ?\w{1,2}|[^\w\s]")


@cache
def codec(name: str) -> Any:
    return {"words": WORDS}.get(name) or load_tokenizer({"smollm2": FOLDER, "minilm": MINILM}[name])


def scored(
    sentences: list[Sentence], tokenizer: Any, look: Callable[[Sentence, SentenceTokens], range]
) -> RelationScores:
    """The scores of a single head that looks at some tokens, at all of them alike."""
    masses = []
    for sentence in sentences:
        places = locate_words(tokenizer, sentence)
        weights = torch.zeros(1, len(places.ids), len(places.ids))
        at = look(sentence, places)
        weights[0, places.query, at.start : at.stop] = 1 / max(len(at), 1)
        masses.append(sum_weights(weights[None], [places]))
    return compute_scores(torch.cat(masses), [sentence.group for sentence in sentences])


def word_of(sentence: Sentence, word: Word) -> str:
    return sentence.text[word.start : word.end]


def chosen(better: Callable[[str, Word], Any]) -> Callable[[Sentence, SentenceTokens], range]:
    """A head that looks at one of both nouns: the one of which something is larger, or at none if it is the same."""

    def look(sentence: Sentence, places: SentenceTokens) -> range:
        mine, theirs = (better(word_of(sentence, word), word) for word in (sentence.target, sentence.distractor))
        return places.target if mine > theirs else places.distractor if mine < theirs else range(0)

    return look


def strongest(relation: Relation, count: int) -> list[tuple[str, int]]:
    heads = [(float(score), name, head) for name, one in relation.items() for head, score in enumerate(one.preference)]
    return [(name, head) for _, name, head in sorted(heads, reverse=True)[:count]]


def joined(relation: Relation) -> RelationScores:
    return RelationScores(*(torch.cat(scores) for scores in zip(*relation.values(), strict=True)))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", ["words", "smollm2", "minilm"])
def test_a_head_that_looks_at_a_distance_or_a_place_scores_nothing(name: str, relation: str):
    hits = 0.0
    for step in range(1, 14):
        back = scored(
            RELATIONS[relation], codec(name), lambda _, at, step=step: range(at.query - step, at.query - step + 1)
        )
        place = scored(RELATIONS[relation], codec(name), lambda _, at, step=step: range(step - 1, step))
        assert back.preference == place.preference == back.standard_error == place.standard_error == 0
        hits += float(back.target_weight + place.target_weight)
    assert hits > 0.5, "some of them do look at targets"


LIKINGS: dict[str, Callable[[str, Word], Any]] = {
    "near": lambda _, word: word.start,
    "far": lambda _, word: -word.start,
    "plural": lambda text, _: text.endswith("s") and text not in WOMEN + MEN,
    "women": lambda text, _: text in WOMEN,
    "long": lambda text, _: len(text),
    "alphabet": lambda text, _: text,
}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("liking", LIKINGS)
def test_a_head_with_a_favourite_word_or_the_nearest_scores_nothing(liking: str, relation: str):
    score = scored(RELATIONS[relation], WORDS, chosen(LIKINGS[liking]))
    assert score.preference == score.standard_error == 0
    assert bool(score.target_weight > 0) == (
        (liking, relation) not in {("plural", "coreference"), ("women", "agreement")}
    )


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_head_that_looks_at_the_target_scores_one_and_at_the_distractor_minus_one(relation: str):
    for tokenizer in (WORDS, PIECES):
        right = scored(RELATIONS[relation], tokenizer, lambda _, at: at.target)
        wrong = scored(RELATIONS[relation], tokenizer, lambda _, at: at.distractor)
        torch.testing.assert_close(torch.stack(right), torch.tensor([[1.0], [1.0], [0.0]]))
        torch.testing.assert_close(torch.stack(wrong), torch.tensor([[0.0], [-1.0], [0.0]]))


def test_a_head_that_matches_numbers_scores_one_half():
    def look(sentence: Sentence, places: SentenceTokens) -> range:
        many = word_of(sentence, sentence.query) in {"are", "were", "have", "look", "need"}
        return chosen(lambda text, _: text.endswith("s") == many)(sentence, places)

    assert scored(agreement(), WORDS, look).preference == 0.5


@pytest.mark.parametrize("relation", RELATIONS)
def test_sentences_are_as_they_are_described(relation: str):
    sentences = RELATIONS[relation]
    assert len(sentences) == len({sentence.text for sentence in sentences}) == 96
    assert [sentence.group for sentence in sentences] == [at // 4 for at in range(96)]
    groups = [{word_of(one, word) for one in sentences[at : at + 4] for word in one[2:4]} for at in range(0, 96, 4)]
    assert len(set.union(*groups)) == 48, "no word is a target in two groups"
    for sentence in sentences:
        assert max(sentence.target.end, sentence.distractor.end) < sentence.query.start, "decoders look back"
        assert min(sentence.target.start, sentence.distractor.start) > 0, "many heads look at the first token"


def test_the_mass_on_a_word_is_that_on_its_tokens_and_its_last_token_looks():
    text = "the elephants near Ann arrived"
    sentence = Sentence(text, Word(23, 30), Word(4, 13), Word(19, 22), 0)
    places = locate_words(PIECES, sentence)
    tokens = [text[span.start : span.end] for span in PIECES.offsets(text)]
    assert [tokens[at] for at in places.target] == [" el", "ep", "ha", "nt", "s"]
    assert [tokens[at] for at in places.distractor] == [" An", "n"]
    assert (tokens[places.query], places.query) == ("d", len(tokens) - 2)
    weights = torch.zeros(2, len(tokens), len(tokens))
    weights[1, places.query] = torch.arange(len(tokens))
    torch.testing.assert_close(
        sum_weights(weights[None], [places])[0], torch.tensor([[0.0, 0.0], [3 + 4 + 5 + 6 + 7.0, 10 + 11.0]])
    )


@pytest.mark.parametrize("expression", [r"key near|\w+", r"\w+ \w+", r"nothing", r"\w+ is|\w+"])
def test_a_word_that_has_no_tokens_of_its_own_raises(expression: str):
    with pytest.raises(VocabularyError, match=r"'I think the key near the doors is here again\.'"):
        locate_words(Cut(expression), agreement()[0])


def test_spaces_may_belong_to_a_word():
    assert locate_words(Cut(r"\w+ ?"), agreement()[0])[1:] == locate_words(WORDS, agreement()[0])[1:]


def test_the_error_is_that_over_groups_and_what_cancels_within_them_adds_nothing():
    groups = [group for group in range(100) for _ in range(2)]
    signal, bias = torch.randn(100).repeat_interleave(2), torch.tensor([0.5, -0.5]).repeat(100)
    found = compute_scores(torch.stack([signal + 30 * bias, torch.zeros(200)], dim=-1)[:, None], groups)
    torch.testing.assert_close(found.standard_error, signal[::2].std()[None] / 10)
    shuffled = torch.randperm(200)
    again = compute_scores(
        torch.stack([signal, torch.zeros(200)], dim=-1)[shuffled, None], [groups[at] for at in shuffled]
    )
    torch.testing.assert_close(again.preference, found.preference)


def test_groups_of_other_sizes_are_refused():
    for wrong in ([], agreement()[:4], agreement()[:7]):
        with pytest.raises(SettingError, match="two groups of equal size or more for 'mine'"):
            score_relations(nn.Identity(), unknown_words(), sentences={"mine": wrong})
    assert score_relations(nn.Identity(), unknown_words(), sentences={}, progress=False) == {}


@cache
def smollm2() -> tuple[nn.Module, Any, dict[str, Relation]]:
    model, tokenizer = own_model()
    return model, tokenizer, score_relations(model, tokenizer, sentences=HALF, progress=False)


@cache
def minilm() -> tuple[nn.Module, Any, dict[str, Relation]]:
    model, tokenizer = load(MINILM, dtype=torch.float32)
    return model, tokenizer, score_relations(model, tokenizer, progress=False)


def test_heads_of_a_trained_decoder_look_at_subjects_and_persons():
    found = smollm2()[2]
    assert list(found["agreement"]) == [f"blocks.{layer}.attention" for layer in range(30)]
    assert strongest(found["agreement"], 1) == [("blocks.13.attention", 8)]
    assert strongest(found["coreference"], 2) == [("blocks.9.attention", 4), ("blocks.9.attention", 2)]
    subject, person = found["agreement"]["blocks.13.attention"], found["coreference"]["blocks.9.attention"]
    assert subject.preference[8] > max(0.5, float(15 * subject.standard_error[8]))
    assert person.preference[4] > max(0.25, float(10 * person.standard_error[4]))
    assert person.preference[3] < -0.4, "a neighbour looks at the other person"


def test_heads_of_a_trained_encoder_look_at_persons_and_a_little_at_subjects():
    found = minilm()[2]
    assert strongest(found["coreference"], 2) == [("blocks.2.attention", 4), ("blocks.1.attention", 3)]
    assert strongest(found["agreement"], 1) == [("blocks.3.attention", 1)]
    for relation, name, head, least in (
        ("coreference", "blocks.2.attention", 4, 0.2),
        ("coreference", "blocks.1.attention", 3, 0.2),
        ("agreement", "blocks.3.attention", 1, 0.1),
    ):
        score = found[relation][name]
        assert score.preference[head] > max(least, float(4 * score.standard_error[head]))


def shuffled_minilm(seed: int) -> nn.Module:
    """Its trained numbers, each table in another order."""
    model, order = load(MINILM, dtype=torch.float32)[0], torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for table in model.parameters():
            table.copy_(table.flatten()[torch.randperm(table.numel(), generator=order)].view_as(table))
    return model


def sharp_decoder(seed: int) -> nn.Module:
    """Random weights, with queries and keys so large that heads look at single tokens."""
    torch.manual_seed(seed)
    model = Decoder(
        DecoderConfig(
            vocab_size=49152,
            hidden_size=96,
            num_layers=6,
            num_heads=12,
            intermediate_size=128,
            max_position_embeddings=64,
        )
    ).eval()
    with torch.no_grad():
        for name, table in model.named_parameters():
            table.mul_(8 if "query" in name else 1)
    return model


@pytest.mark.parametrize(
    ("build", "folder", "seed"), [(shuffled_minilm, MINILM, 0), (sharp_decoder, FOLDER, 0), (sharp_decoder, FOLDER, 1)]
)
def test_heads_with_random_weights_stay_within_their_errors(build: Callable[[int], nn.Module], folder: Any, seed: int):
    found = score_relations(build(seed), load_tokenizer(folder), progress=False)
    for relation in found.values():
        mass, preference, error = joined(relation)
        times = preference / error
        assert times.abs().max() < 5
        assert 0.75 < times.std() < 1.3, "the errors are as large as chance is"
        assert mass.mean() > 0.02


@pytest.mark.parametrize("folder", [FOLDER, MINILM], ids=["decoder", "encoder"])
def test_a_transformers_model_and_ours_have_the_same_numbers(folder: Any):
    from transformers import AutoTokenizer

    ours = score_relations(*(smollm2() if folder is FOLDER else minilm())[:2], sentences=FEW, progress=False)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = load(folder, dtype=torch.float32, using="transformers")[0]
    theirs = score_relations(model, tokenizer, sentences=FEW, progress=False)
    for relation in FEW:
        assert len(ours[relation]) == len(theirs[relation])
        for mine, other in zip(joined(ours[relation]), joined(theirs[relation]), strict=True):
            torch.testing.assert_close(mine, other, atol=1e-4, rtol=0)


def test_batches_change_nothing_and_progress_is_told(monkeypatch: pytest.MonkeyPatch):
    model, tokenizer, _ = minilm()
    reports: list[tuple[int, int]] = []
    together = score_relations(model, tokenizer, sentences=FEW, progress=lambda *done: reports.append(done))
    assert reports == sorted(reports)
    assert reports[-1] == (16, 16)
    monkeypatch.setattr(module, "BATCH_SIZE", 1)
    alone = score_relations(model, tokenizer, sentences=FEW, progress=False)
    for relation in FEW:
        for one, other in zip(joined(together[relation]), joined(alone[relation]), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def unknown_words() -> Tokenizer:
    """A tokenizer that cuts words and knows none."""
    backend = Backend(models.WordLevel({"?": 0}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(backend)


def test_an_encoder_decoder_is_refused_and_its_encoder_is_read():
    for name in ("T5", "BART"):
        model = next(exhibit for exhibit in EXHIBITS if exhibit.name == name).build()
        with pytest.raises(UnsupportedError, match=r"model\.get_encoder\(\)"):
            score_relations(model, unknown_words())
        assert len(score_relations(model.get_encoder(), unknown_words(), sentences=FEW)["agreement"]) == 2
    ours = Seq2Seq(Seq2SeqConfig(vocab_size=8, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16))
    with pytest.raises(UnsupportedError, match="Seq2Seq has an encoder and a decoder"):
        score_relations(ours, unknown_words())


def test_a_tokenizer_is_needed_that_can_tell_where_tokens_stand():
    model = Decoder(
        DecoderConfig(
            vocab_size=8, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_position_embeddings=64
        )
    )
    with pytest.raises(SettingError, match="tokenizer of the model, got None"):
        score_relations(model, None)
    with pytest.raises(UnsupportedError, match=r"CharacterTokenizer .* offsets"):
        score_relations(model, CharacterTokenizer.from_text("to be"))


class Halved(nn.Module):
    """Attention among every other token, or from each token to these."""

    def __init__(self, *, queries: int) -> None:
        super().__init__()
        self.queries = queries
        self.embedding, self.attention = nn.Embedding(8, 16), nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        keys = x[:, ::2]
        return self.attention(keys if self.queries == 2 else x, keys, keys)[0]


def test_layers_whose_rows_and_columns_are_no_tokens_are_refused():
    with pytest.raises(UnsupportedError, match=r"attention .* expected 10 of each, got 5 and 5"):
        score_relations(Halved(queries=2).eval(), unknown_words(), progress=False)
    with pytest.raises(UnsupportedError, match="has no self-attention"):
        score_relations(Halved(queries=1).eval(), unknown_words(), progress=False)
