"""What a shard gives is what reading its passages one by one gives, and follows from nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attnscope.errors import SettingError, UnsupportedError
from attnscope.heads.rows import row_scores
from attnscope.models import Encoder, EncoderConfig
from attnscope.recording import read
from attnscope.survey.corpus.plan import Shard, plan_shards
from attnscope.survey.execution.shard_reader import ShardReader, max_sequence_length, read_shard
from attnscope.survey.partials.bins import STATISTICS
from attnscope.survey.partials.partial import PartialResult
from attnscope.survey.partials.partial_files import save_partial
from attnscope.survey.settings import Settings
from tests.devices.standin import Standins, move_module
from tests.survey.survey_process import MINILM, SMALL, write_model, write_text

CLOSE = 2e-6  # of float32 sums that are taken in another order


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model")


def prepared(model: Path, text: Path, **changes: object) -> tuple[ShardReader, tuple[Shard, ...]]:
    settings = Settings(**{"model": str(model), "sources": (str(text),), **SMALL, **changes})  # pyright: ignore[reportArgumentType]
    return ShardReader.load(settings), plan_shards(settings).shards


def means_of(partial: PartialResult) -> np.ndarray:
    return partial.moments.sums / np.where(partial.moments.counts, partial.moments.counts, np.nan)


def test_a_shard_of_one_passage_has_the_scores_of_its_trace(model: Path, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 300)
    reader, (shard,) = prepared(model, text, max_length=None)
    partial = read_shard(shard, reader)
    trace = read(reader.model, text.read_text(), reader.tokenizer, progress=False)
    expected = torch.stack(
        [torch.stack([row_scores(trace, name)[score].mean() for score in STATISTICS], 1) for name in trace.layers]
    )
    assert (partial.passages, partial.documents, partial.tokens) == (1, 1, len(text.read_text()))
    assert partial.layers == tuple(name for name in trace.layers for _ in range(4))
    np.testing.assert_allclose(means_of(partial), expected.flatten(0, 1).numpy(), rtol=CLOSE, atol=CLOSE)


def test_a_worker_on_a_gpu_has_the_results_of_one_on_the_cpu(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_text(tmp_path / "text.txt", 600)
    text.write_text(text.read_text().replace("\n", "\n==\n"))
    reader, (shard,) = prepared(model, text, separator="==", shard_bytes=None)
    expected = read_shard(shard, reader)
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # the simulated device does not have it
    with torch.no_grad(), Standins():
        move_module(reader.model, "cuda")
        reader.device = torch.device("cuda", 0)
        found = read_shard(shard, reader)
    assert found.passages == expected.passages > 5
    np.testing.assert_array_equal(found.moments.counts, expected.moments.counts)
    np.testing.assert_allclose(found.moments.sums, expected.moments.sums, rtol=CLOSE, atol=1e-4)


def test_passages_that_share_a_row_score_as_each_alone(model: Path, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 1500)
    text.write_text(text.read_text().replace("\n", "\n==\n"))
    reader, (shard,) = prepared(model, text, separator="==", shard_bytes=None)
    together = read_shard(shard, reader)
    reader.pack = False
    alone = read_shard(shard, reader)
    assert together.passages == alone.passages > 20
    np.testing.assert_array_equal(together.moments.counts, alone.moments.counts)
    np.testing.assert_allclose(together.moments.sums, alone.moments.sums, rtol=CLOSE, atol=1e-4)
    known = together.moments.counts.min(0) > 0
    assert [name for name, is_known in zip(STATISTICS, known, strict=True) if not is_known] == ["next"]


def test_a_shard_gives_the_same_bytes_whatever_was_read_before(model: Path, tmp_path: Path) -> None:
    reader, shards = prepared(model, write_text(tmp_path / "text.txt", 8000))
    for number, order in enumerate((shards, shards[::-1])):
        for shard in order:
            save_partial(read_shard(shard, reader), tmp_path / f"{number}-{shard.number}")
    files = [[(tmp_path / f"{number}-{shard.number}").read_bytes() for shard in shards] for number in (0, 1)]
    assert files[0] == files[1]
    assert len(set(files[0])) == len(shards) == 4


def test_long_documents_go_through_a_decoder_in_pieces(model: Path, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 5000)
    reader, (shard,) = prepared(model, text, max_length=None, shard_bytes=None)
    partial = read_shard(shard, reader)
    assert (partial.passages, partial.tokens) == (1, len(text.read_text()))
    assert partial.moments.counts.max() == partial.tokens - 1  # the first token has nothing to choose from


def test_windows_longer_than_the_model_can_read_are_refused(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 4000)
    with pytest.raises(SettingError, match="at most 512 tokens, got max_length 600; use --max-length 512"):
        prepared(MINILM, text, max_length=600)
    reader, (shard,) = prepared(MINILM, text, max_length=None, shard_bytes=None)
    partial = read_shard(shard, reader)
    assert partial.passages == 0
    assert "at most 512" in partial.problems.first[0].reason


def test_an_encoder_reads_windows_with_its_own_tokens_around(tmp_path: Path) -> None:
    reader, (shard,) = prepared(MINILM, write_text(tmp_path / "text.txt", 500), max_length=32, shard_bytes=None)
    partial = read_shard(shard, reader)
    example = next(iter(partial.examples.passages.values()))
    assert example.text.startswith("[CLS]")
    assert example.text.endswith("[SEP]")
    assert len(example.ids) == 32
    assert len(partial.layers) == 6 * 12


def test_the_padding_of_roberta_counts_as_positions() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.RobertaConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=34, pad_token_id=1,
    )  # fmt: skip
    model = transformers.RobertaModel(config).eval()
    assert max_sequence_length(model) == 32
    model(torch.full((1, 32), 5))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        model(torch.full((1, 33), 5))


def test_a_model_without_a_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((model / name).read_bytes())
    with pytest.raises((UnsupportedError, SettingError, ValueError), match="tokenizer"):
        ShardReader.load(Settings(model=str(bare), sources=("text.txt",)))


def test_a_device_that_is_not_there_is_refused(model: Path) -> None:
    for device in ("cuda:7", "nonsense"):
        with pytest.raises(SettingError, match=f"device '{device}'"):
            ShardReader.load(Settings(model=str(model), sources=("text.txt",)), device)


def test_encoders_of_our_own_say_how_much_they_read() -> None:
    config = EncoderConfig(
        vocab_size=10, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8, max_position_embeddings=20
    )
    assert max_sequence_length(Encoder(config)) == 20
