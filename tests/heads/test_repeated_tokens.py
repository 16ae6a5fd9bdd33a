"""The probe is different plain tokens, the same tokens once more, and nothing that a model cannot read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from torch import Tensor, nn
from transformers import AutoTokenizer

from attnscope.errors import SettingError
from attnscope.heads import read_repeated_tokens, repeated_token_ids
from attnscope.heads.repeated_tokens import LENGTH, ids_for_model
from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig
from attnscope.models.text.tokenizer import Tokenizer
from attnscope.recording import load
from tests.models.smollm2 import FOLDER
from tests.recording.zoo import EXHIBITS

MINILM = FOLDER.parent / "minilm-l6"
VOCABULARIES = {"smollm2": (FOLDER, 49152), "minilm": (MINILM, 30522)}


def tiny(max_length: int, vocab_size: int = 99) -> Decoder:
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        intermediate_size=16,
        max_position_embeddings=max_length,
    )
    return Decoder(config).eval()


def assert_repeats(ids: Tensor, length: int) -> None:
    assert ids.shape == (2 * length,)
    assert ids.dtype == torch.int64
    assert torch.equal(ids[:length], ids[length:])
    assert len(set(ids.tolist())) == length


def test_both_halves_are_the_same_different_tokens() -> None:
    for length in (1, 7, 500):
        ids = repeated_token_ids(500, length)
        assert_repeats(ids, length)
        assert 0 <= int(ids.min()) <= int(ids.max()) < 500


def test_a_seed_repeats_itself_and_others_differ() -> None:
    assert torch.equal(repeated_token_ids(1000), repeated_token_ids(1000, seed=0))
    assert len({tuple(repeated_token_ids(1000, seed=seed).tolist()) for seed in range(5)}) == 5


def test_the_random_numbers_of_the_caller_are_left_alone() -> None:
    state = torch.get_rng_state()
    repeated_token_ids(1000, seed=3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("library", ["attnscope", "transformers"])
def test_special_tokens_are_never_drawn(name: str, library: str) -> None:
    folder, size = VOCABULARIES[name]
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer = theirs if library == "transformers" else Tokenizer.load(folder)
    special = set(theirs.all_special_ids)
    assert special
    wanted = size - len(special) - 100  # nearly all there are, so that luck does not help
    ids = repeated_token_ids(size, wanted, tokenizer=tokenizer)
    assert_repeats(ids, wanted)
    assert not special & set(ids.tolist())
    assert special & set(repeated_token_ids(size, size).tolist()) == special, "without a tokenizer nobody knows them"


def test_too_small_a_vocabulary_is_refused_with_what_it_has() -> None:
    with pytest.raises(SettingError, match=r"only 10 tokens .* got length=11"):
        repeated_token_ids(10, 11)
    folder, size = VOCABULARIES["smollm2"]
    with pytest.raises(SettingError, match=r"not special, got length=49152"):
        repeated_token_ids(size, size, tokenizer=Tokenizer.load(folder))


def words(*vocabulary: str) -> Tokenizer:
    backend = Backend(models.WordLevel({word: at for at, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(backend)


def test_rows_of_a_model_that_no_token_has_are_never_drawn() -> None:
    tokenizer = words("?", "to", "be", "or", "not")
    for seed in range(5):
        ids = repeated_token_ids(64, 5, seed=seed, tokenizer=tokenizer)
        assert set(ids.tolist()) == {0, 1, 2, 3, 4}


def test_a_tokenizer_of_characters_will_do() -> None:
    tokenizer = CharacterTokenizer("abcdefgh")
    assert_repeats(repeated_token_ids(8, 6, tokenizer=tokenizer), 6)


@pytest.mark.parametrize(("longest", "half"), [(20, 10), (21, 10), (600, LENGTH)])
def test_a_probe_is_never_longer_than_a_model_can_read(longest: int, half: int) -> None:
    model = tiny(longest, vocab_size=700)
    assert_repeats(ids_for_model(model), half)
    trace = read_repeated_tokens(model)
    assert [trace[name].shape for name in trace] == [(1, 2, 2 * half, 2 * half)] * 2


def test_a_probe_may_be_shorter_and_of_another_seed() -> None:
    model = tiny(20)
    assert_repeats(ids_for_model(model, length=4), 4)
    assert not torch.equal(ids_for_model(model, length=4, seed=1), ids_for_model(model, length=4))
    assert torch.equal(
        read_repeated_tokens(model, length=4, seed=1).texts[-1].ids[0], ids_for_model(model, length=4, seed=1)
    )


def test_an_encoder_reads_as_much_as_it_has_positions_for() -> None:
    model, tokenizer = load(MINILM)
    config: Any = model.config
    assert config.max_position_embeddings == 512
    assert_repeats(ids_for_model(model, tokenizer, length=1000), 256)
    trace = read_repeated_tokens(model, tokenizer, length=1000)
    assert trace[next(iter(trace))].shape == (1, 12, 512, 512)


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "BERT"])
def test_a_model_of_transformers_reads_its_probe(name: str) -> None:
    model = next(exhibit for exhibit in EXHIBITS if exhibit.name == name).build()
    config: Any = model.config
    half = min(config.max_position_embeddings // 2, 8)
    trace = read_repeated_tokens(model, length=8)
    assert_repeats(trace.texts[-1].ids[0], half)


def test_a_model_that_does_not_tell_its_vocabulary_is_refused() -> None:
    with pytest.raises(SettingError, match=r"Linear has no config\.vocab_size.*repeated_token_ids"):
        ids_for_model(nn.Linear(3, 3))
