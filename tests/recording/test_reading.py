"""Reading a text of any length: in pieces, with progress, an estimate before, and from any kind of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from attnscope.errors import CheckpointError, SettingError
from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig, Encoder, save
from attnscope.recording import estimate, estimates, load, read, record
from tests.models.smollm2 import FOLDER
from tests.recording.zoo import EXHIBITS, HYBRID

BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
MODELS = FOLDER.parent


def small(**options: Any) -> Decoder:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 8192}
    return Decoder(DecoderConfig(**{**sizes, **options})).eval()


@pytest.mark.parametrize("chunk_size", [1, 7, 40, 1000])
@pytest.mark.parametrize("kind", ["attnscope", "transformers"])
def test_pieces_do_not_change_what_is_seen(kind: str, chunk_size: int):
    model = small(sliding_windows=(9, None)) if kind == "attnscope" else BY_NAME["Gemma 3"].build()
    ids = torch.randint(3, 64, (1, 40), generator=torch.Generator().manual_seed(0))
    reports: list[tuple[int, int]] = []
    trace = read(model, ids, chunk_size=chunk_size, progress=lambda done, whole: reports.append((done, whole)))
    whole = read(model, ids, chunk_size=40)
    assert reports == [(min(start + chunk_size, 40), 40) for start in range(0, 40, chunk_size)]
    for name in whole:
        torch.testing.assert_close(trace[name].to_dense(), whole[name].to_dense(), atol=5e-6, rtol=0)
    assert torch.equal(trace.texts[0].ids, ids)


@pytest.mark.parametrize(("rows", "chunk_size"), [(12, 100), (2, 5), (2, 10)])
def test_ids_are_kept_where_the_batch_is_as_large_as_a_chunk(rows: int, chunk_size: int):
    ids = torch.randint(3, 64, (rows, 12), generator=torch.Generator().manual_seed(0))
    assert torch.equal(read(small(), ids, chunk_size=chunk_size).texts[0].ids, ids)
    model = small()
    with torch.no_grad(), record(model) as trace:
        model(input_ids=ids)
    assert torch.equal(trace.texts[0].ids, ids)


def test_an_encoder_reads_all_at_once_and_text_needs_a_tokenizer():
    model, tokenizer = load(MODELS / "minilm-l6")
    assert isinstance(model, Encoder)
    trace = read(model, "The cat sat.", tokenizer, chunk_size=2, verify=True)
    assert trace.tokens() == ["[CLS]", "the", "cat", "sat", ".", "[SEP]"]
    assert max(trace.errors.values()) < 1e-5
    with pytest.raises(SettingError, match="needs a tokenizer"):
        read(model, "The cat sat.")
    with pytest.raises(SettingError, match="expected ids"):
        read(model, torch.randn(1, 5))
    with pytest.raises(SettingError, match="chunk_size must be at least 1"):
        read(model, [1, 2], chunk_size=0)


def test_an_estimate_says_what_will_be_held_to_the_byte():
    model = small()
    ids = torch.randint(3, 64, (1, 2048), generator=torch.Generator().manual_seed(0))
    choices: list[dict[str, Any]] = [{}, {"dtype": torch.bfloat16}, {"heads": [1, 3]}, {"layers": 1}, {"values": True}]
    for options in choices:
        assert estimate(model, 2048, **options).held == read(model, ids, chunk_size=2048, **options).nbytes
    text = str(estimate(model, 2048))
    assert text.startswith("recording 2,048 tokens takes 852 kB of memory and about")


def test_an_estimate_of_statistics_is_near_what_they_hold():
    ids = torch.randint(3, 64, (1, 4096), generator=torch.Generator().manual_seed(0))
    held = read(small(), ids, keep="statistics").nbytes
    assert 0.5 < estimate(small(), 4096, keep="statistics").held / held < 1.1


def test_a_trace_that_would_not_fit_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(estimates, "available_bytes", lambda device: 2_000_000)
    model, ids = small(head_dim=16), torch.zeros(1, 4096, dtype=torch.long)
    with pytest.raises(SettingError, match=r"would take .* spill=FOLDER"):
        read(model, ids)
    assert read(model, ids, spill=tmp_path).layer(0).shape == (1, 4, 4096, 4096)
    assert len(read(model, ids, keep="statistics")) == 2


@pytest.mark.parametrize("name", ["Jamba", "Bamba"])
def test_layers_that_cannot_go_on_with_many_tokens_read_all_at_once(name: str):
    model = next(one for one in HYBRID if one.name == name).build()
    ids = torch.randint(3, 64, (1, 20), generator=torch.Generator().manual_seed(0))
    whole, pieces = read(model, ids, chunk_size=100), read(model, ids, chunk_size=5)
    assert whole.without_softmax
    for layer in whole:
        assert torch.equal(whole[layer].to_dense(), pieces[layer].to_dense())


def test_a_folder_and_a_gguf_file_of_one_model_read_alike():
    first, second = (load(MODELS / name, dtype=torch.float32) for name in ("smollm2-135m", "smollm2-135m.gguf"))
    traces = [read(model, "To be, or not to be.", tokenizer) for model, tokenizer in (first, second)]
    assert traces[0].tokens() == traces[1].tokens()
    for name in traces[0]:
        torch.testing.assert_close(traces[0][name].to_dense(), traces[1][name].to_dense())


def test_a_family_that_is_not_ours_comes_from_transformers(tmp_path: Path):
    model = BY_NAME["GPT-NeoX"].build()
    model.save_pretrained(tmp_path)
    found, tokenizer = load(tmp_path)
    assert type(found) is type(model)
    assert tokenizer is None
    assert not found.training
    trace = read(found, [5, 6, 7, 8], verify=True)
    assert max(trace.errors.values()) < 1e-6
    with pytest.raises(CheckpointError):
        load(tmp_path, using="attnscope")
    with pytest.raises(SettingError, match="using='jax'"):
        load(tmp_path, using="jax")  # pyright: ignore[reportArgumentType]


def test_places_without_a_model_are_said_to_be_so(tmp_path: Path):
    with pytest.raises(CheckpointError):
        load(tmp_path / "nothing")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="GGUF"):
        load(MODELS / "smollm2-135m.gguf", using="transformers")


def test_a_model_of_ours_that_was_saved_comes_back_with_its_characters(tmp_path: Path):
    tokenizer = CharacterTokenizer.from_text("to be or not")
    model = small(vocab_size=tokenizer.vocab_size, num_kv_heads=4)
    save(model, tmp_path)
    tokenizer.save(tmp_path)
    found, characters = load(tmp_path)
    assert read(found, "to be", characters).tokens() == list("to be")


def test_code_of_a_tokenizer_is_not_run_and_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    BY_NAME["ViT"].build().save_pretrained(tmp_path)  # no family of ours, and none that has a tokenizer
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": [null, "evil.Evil"]}}')
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Evil: ...\n")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    with pytest.warns(UserWarning, match="cannot build its tokenizer"):
        assert load(tmp_path)[1] is None
    assert not asked
    assert not (tmp_path / "ran").exists()


def test_an_estimate_fits_a_model_with_few_positions():
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    assert estimate(GPT2LMHeadModel(config).eval(), 12).held > 0


def test_memory_is_that_of_the_devices_which_hold_the_trace(monkeypatch):
    asked = []
    monkeypatch.setattr(estimates, "available_bytes", lambda device: asked.append(device))
    read(small(), torch.arange(estimates.CALL)[None] % 50, chunk_size=2048, progress=False, layers=[0])
    assert asked == [torch.device("cpu")]
    monkeypatch.undo()
    assert estimates.available_bytes(torch.device("mps")) is None  # main memory says nothing about it
