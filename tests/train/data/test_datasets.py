from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.attention import Documents
from attnscope.attention.rotary import Rotary
from attnscope.errors import SettingError
from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig, train_bpe
from attnscope.train.batch import IGNORE_INDEX, Batch, Dataset
from attnscope.train.data import (
    TextDataset,
    Tokens,
    ValidationDataset,
    read_documents,
    train_validation_split,
    write_tokens,
)

DOCS = Path(__file__).resolve().parents[3] / "docs"
MANY = CharacterTokenizer(chr(number) for number in range(0x100, 0x100 + 500))


def numbered(folder: Path, *sizes: int) -> Tokens:
    """Documents of these sizes, in which each token is another one."""
    text, documents = "".join(MANY.characters), list[str]()
    for size in sizes:
        documents.append(text[:size])
        text = text[size:]
    return write_tokens(documents, MANY, folder / "tokens", shard_tokens=17)


def same(first: Batch, second: Batch) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize(("size", "length"), [(400, 8), (64, 16), (65, 16), (17, 16), (30, 16), (32, 16), (9, 1)])
def test_each_token_of_an_epoch_comes_once(tmp_path, size, length):
    batches = TextDataset(numbered(tmp_path, size), length)
    windows = batches.windows
    offsets = set()
    for epoch in range(200):
        batch = batches.get_batch(range(epoch * windows, (epoch + 1) * windows))
        seen = batch.input_ids.flatten().sort().values
        offsets.add(int(seen[0]))
        assert seen.tolist() == list(range(int(seen[0]), int(seen[0]) + windows * length))
        assert torch.equal(batch.targets, batch.input_ids + 1)
        assert batch.document_ids is batch.position_ids is None
    assert size - windows * length < 2 * length
    assert offsets == set(range(min(length, size - windows * length)))


def test_a_resumed_run_sees_the_tokens_it_would_have_seen(tmp_path):
    tokens = numbered(tmp_path, 30, 5, 1, 60, 104)
    source: Dataset = TextDataset(tokens, 8, seed=7)
    whole = [source.get_batch([sample]) for sample in range(120)]
    for seen, ranks, rows in ((0, 1, 4), (36, 2, 3), (75, 3, 5)):
        resumed = [TextDataset(tokens, 8, seed=7) for _ in range(ranks)]
        for step in range(2):
            first = seen + step * ranks * rows
            parts = [
                source.get_batch(range(first + rank, first + ranks * rows, ranks))
                for rank, source in enumerate(resumed)
            ]
            for rank, part in enumerate(parts):
                for row in range(rows):
                    alone = whole[first + row * ranks + rank]
                    assert torch.equal(part.input_ids[row], alone.input_ids[0])
                    assert torch.equal(part.targets[row], alone.targets[0])


def test_another_seed_is_another_order(tmp_path):
    tokens = numbered(tmp_path, 400)
    first, second = (TextDataset(tokens, 8, seed=seed).get_batch(range(10)) for seed in (0, 1))
    assert same(first, TextDataset(tokens, 8).get_batch(range(10)))
    assert not torch.equal(first.input_ids, second.input_ids)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(1, 10), st.integers(0, 50))
def test_rows_know_their_documents_token_by_token(tmp_path_factory, sizes, length, first):
    if sum(sizes) < length + 1:
        sizes = [*sizes, length]
    tokens = numbered(tmp_path_factory.mktemp("rows"), *sizes)
    owners = [number for number, size in enumerate(sizes) for _ in range(size)]
    batch = TextDataset(tokens, length).get_batch(range(first, first + 3))
    assert batch.input_ids.shape == batch.targets.shape == (3, length)
    several = False
    for row in range(3):
        ids = batch.input_ids[row].tolist()
        of = [owners[token] for token in ids]
        several |= len(set(of)) > 1
        assert batch.targets[row].tolist() == [
            token + 1 if owners[token + 1] == owners[token] else IGNORE_INDEX for token in ids
        ]
        if batch.document_ids is not None and batch.position_ids is not None:
            assert batch.document_ids[row].tolist() == [owner - of[0] for owner in of]
            assert batch.position_ids[row].tolist() == [place - of.index(owner) for place, owner in enumerate(of)]
    assert (batch.document_ids is not None) == (batch.position_ids is not None) == several


def test_evaluation_covers_the_tokens_evenly_and_is_the_same_each_time(tmp_path):
    tokens = numbered(tmp_path, 200, 201)
    batches: Dataset = ValidationDataset(tokens, 8, 10)
    found = batches.get_batch(range(10))
    assert found.input_ids[:, 0].tolist() == list(range(0, 400, 40))
    assert same(found, ValidationDataset(tokens, 8, 10).get_batch(range(10)))
    assert same(found, batches.get_batch(range(10, 20)))
    everything = ValidationDataset(tokens, 8, 1000)
    assert len(everything) == 50
    assert everything.get_batch(range(50)).input_ids.flatten().tolist() == list(range(400))


def test_evaluation_of_a_validation_part_stays_in_it(tmp_path):
    training, validation = train_validation_split(numbered(tmp_path, 100, 100, 25), 0.1)
    source = ValidationDataset(validation, 8, 5)
    assert len(source) == 3
    assert source.get_batch(range(3)).input_ids.flatten().tolist() == list(range(200, 224))
    seen = TextDataset(training, 8).get_batch(range(500))
    assert max(int(seen.input_ids.max()), int(seen.targets.max())) < 200


def test_too_few_tokens_are_refused(tmp_path):
    tokens = numbered(tmp_path, 4, 4)
    assert TextDataset(tokens, 7).get_batch([0, 1]).input_ids.tolist() == [list(range(7))] * 2
    for source in (lambda length: TextDataset(tokens, length), lambda length: ValidationDataset(tokens, length, 1)):
        with pytest.raises(SettingError, match=r"at least 9 tokens .* got 8; .*sequence_length"):
            source(8)
        with pytest.raises(SettingError, match=r"sequence_length .* got 0"):
            source(0)
    with pytest.raises(SettingError, match=r"ValidationDataset: .*count .* got 0"):
        ValidationDataset(tokens, 2, 0)
    with pytest.raises(SettingError, match=r"get_batch: .* empty"):
        TextDataset(tokens, 2).get_batch([])


@pytest.fixture
def packed(tmp_path) -> Batch:
    """Rows of several documents each, the first one cut."""
    return ValidationDataset(numbered(tmp_path, 5, 1, 6, 11, 7, 2, 9), 20, 2).get_batch([0, 1])


@pytest.fixture(params=["learned", "rotary"])
def decoder(request) -> Decoder:
    positions = Rotary(dim=8, layout="half") if request.param == "rotary" else "learned"
    config = DecoderConfig(
        vocab_size=500,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        position_encoding=positions,
        sliding_windows=(None, 3),
    )
    return Decoder(config).double()


def runs_of(batch: Batch) -> list[tuple[int, slice]]:
    assert batch.document_ids is not None
    found = []
    for row, documents in enumerate(batch.document_ids):
        counts = documents.unique_consecutive(return_counts=True)[1].tolist()
        stops = torch.tensor(counts).cumsum(0).tolist()
        found += [(row, slice(stop - count, stop)) for stop, count in zip(stops, counts, strict=True)]
    return found


def test_a_packed_document_is_read_as_if_it_were_alone(decoder, packed):
    assert packed.document_ids is not None
    together = decoder(packed.input_ids, mask=Documents(packed.document_ids), position_ids=packed.position_ids)
    runs = runs_of(packed)
    assert len(runs) == 8
    assert not torch.allclose(decoder(packed.input_ids, position_ids=packed.position_ids), together)
    for row, run in runs:
        alone = decoder(packed.input_ids[row : row + 1, run])[0]
        torch.testing.assert_close(together[row, run], alone, rtol=1e-12, atol=1e-13)


def test_no_gradient_flows_from_a_document_to_the_tokens_of_another(decoder, packed):
    assert packed.document_ids is not None
    for row, run in runs_of(packed):
        decoder.zero_grad()
        # The embedding is tied to the scores; the features show whose embeddings were read.
        features = decoder.features(
            packed.input_ids, mask=Documents(packed.document_ids), position_ids=packed.position_ids
        )
        features[row, run].sin().sum().backward()
        touched = decoder.embedding.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
        assert touched == sorted(packed.input_ids[row, run].tolist())


def test_the_way_from_files_to_batches(tmp_path):
    tokenizer = train_bpe(read_documents([DOCS]), 600)
    tokens = write_tokens(read_documents([DOCS]), tokenizer, tmp_path / "tokens", shard_tokens=5000)
    training, validation = train_validation_split(tokens, 0.1)
    assert 0.05 < len(validation) / len(tokens) < 0.15
    batch = TextDataset(training, 64).get_batch(range(8))
    whole = "".join(f"{text}<|endoftext|>" for text in read_documents([DOCS])).encode()
    for row, targets in zip(batch.input_ids, batch.targets, strict=True):
        assert torch.equal(row[1:][targets[:-1] != IGNORE_INDEX], targets[:-1][targets[:-1] != IGNORE_INDEX])
        text = tokenizer.decode(row, skip_special_tokens=False).strip("\ufffd")
        assert text.encode() in whole
