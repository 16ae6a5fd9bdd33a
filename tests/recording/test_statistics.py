"""Statistics that are computed inside the pass are those of the weights that the model's own code computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.errors import SettingError, UnsupportedError
from attnscope.matrix import reference
from attnscope.matrix.pooling import even_edges
from attnscope.models import load_tokenizer
from attnscope.recording import load, read, record
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.statistics import StatisticsLayer
from attnscope.recording.token_pairs import find_pairs
from tests.models.smollm2 import FOLDER, own_model, transformers_model
from tests.recording.zoo import EXHIBITS

LLAMA = next(exhibit for exhibit in EXHIBITS if exhibit.name == "Llama")
LENGTH = 1024
ROOT = Path(__file__).resolve().parents[2]


def text_of(length: int) -> Tensor:
    """So many tokens of the prose that this project brings along."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"]
    tokens = load_tokenizer(FOLDER).encode("\n".join(page.read_text(encoding="utf-8") for page in pages))
    assert len(tokens) >= length
    return torch.tensor([tokens[:length]])


@pytest.fixture(scope="module")
def eager() -> list[Tensor]:
    """The weights of each layer by the model's own eager path."""
    model = transformers_model(torch.float32)
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(text_of(LENGTH), output_attentions=True).attentions
    model.set_attn_implementation(implementation)
    return list(weights)


def test_all_heads_of_a_trained_model_agree_with_eager_weights(eager: list[Tensor]):
    model, tokenizer = load(FOLDER, dtype=torch.float32, using="transformers")
    trace = read(model, text_of(LENGTH), tokenizer, keep="statistics", chunk_size=LENGTH)
    edges = even_edges(LENGTH, 64)
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    heads = 0
    for name, weights in zip(trace, eager, strict=True):
        found = trace.summary(name)
        heads += weights.shape[1]
        previous, own = reference.band(weights, 2).unbind(-1)
        close(found.entropy, reference.entropy(weights), 1e-4)
        # Numbers of tokens, as shares of the text: two runs of a model differ in the last digits of every activation.
        close(found.effective_keys / LENGTH, reference.effective_keys(weights) / LENGTH, 1e-5)
        close(found.received / LENGTH, reference.received(weights) / LENGTH, 1e-5)
        close(found.mean_distance / LENGTH, reference.distance(weights)[0] / LENGTH, 1e-5)
        close(found.self_weight, own, 1e-5)
        close(found.previous_weight, previous, 1e-5)
        close(found.first_weight, weights[..., 0], 1e-5)
        close(found.density, reference.pool(weights, seen.expand_as(weights), edges, edges, "density"), 1e-5)
    assert heads == 270


def test_from_the_same_queries_and_keys_counts_of_tokens_agree_to_their_fifth_digit():
    model, tokenizer = own_model()
    ids, layers = text_of(LENGTH), [0, 7, 15, 29]
    kept = read(model, ids, tokenizer, layers=layers, chunk_size=LENGTH)
    summed = read(model, ids, tokenizer, layers=layers, chunk_size=LENGTH, keep="statistics")
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    for name in kept:
        layer = kept.layer(name)
        assert isinstance(layer, Layer)
        call = layer.merge_calls()
        scores = call.query @ call.key.repeat_interleave(3, dim=1).mT / call.query.shape[-1] ** 0.5
        weights, found = scores.masked_fill(~seen, -torch.inf).softmax(-1), summed.summary(name)
        close(found.effective_keys, reference.effective_keys(weights), 1e-5, relative=1e-5)
        close(found.received, reference.received(weights), 1e-5, relative=1e-5)
        close(found.mean_distance, reference.distance(weights)[0], 1e-5, relative=1e-5)


def close(found: Tensor, right: Tensor, tolerance: float, relative: float = 0.0) -> None:
    torch.testing.assert_close(found, right, atol=tolerance, rtol=relative)


def test_statistics_of_a_text_read_in_pieces_are_those_of_the_whole():
    model = LLAMA.build()
    ids = torch.randint(3, 99, (2, 50), generator=torch.Generator().manual_seed(0))
    whole, pieces = (read(model, ids, keep="statistics", chunk_size=chunk_size) for chunk_size in (50, 7))
    for name in whole:
        for one, other in zip(whole.summary(name), pieces.summary(name), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_kept_statistics_are_those_of_the_kept_matrix():
    model = LLAMA.build()
    inputs = LLAMA.inputs(model)
    with torch.no_grad(), record(model, heads=[1, 2]) as matrices:
        model(**inputs)
    with torch.no_grad(), record(model, heads=[1, 2], keep="statistics") as statistics:
        model(**inputs)
    for name in matrices:
        layer = statistics.layer(name)
        assert isinstance(layer, StatisticsLayer)
        assert layer.pairings == ("own", "next", "duplicate", "induction")
        pairings = find_pairs(range(13), 13, inputs["input_ids"], None).pairings
        wanted = matrices[name].summary(13, 13, pairings=pairings)
        for one, other in zip(wanted, statistics.summary(name), strict=True):
            torch.testing.assert_close(one, other)
    assert statistics.layer(0).shape == matrices.layer(0).shape == (2, 2, 13, 13)
    with pytest.raises(UnsupportedError, match="keep='statistics'"):
        statistics[0]


def test_a_text_that_goes_on_needs_its_length_beforehand():
    model: Any = LLAMA.build()
    with pytest.raises(UnsupportedError, match="length"), torch.no_grad(), record(model, keep="statistics"):
        model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, do_sample=False)


@pytest.mark.parametrize("option", [{"dtype": torch.bfloat16}, {"values": True}, {"spill": "."}])
def test_options_for_what_is_not_kept_are_refused(option: dict):
    with pytest.raises(SettingError, match="stores no queries"), record(LLAMA.build(), keep="statistics", **option):
        pass


def test_the_first_token_has_no_weight_once_a_sliding_cache_has_dropped_it() -> None:
    model = next(exhibit for exhibit in EXHIBITS if exhibit.name == "Mistral").build()
    ids = torch.randint(3, 99, (1, 40), generator=torch.Generator().manual_seed(0))
    whole, chunked = (read(model, ids, keep="statistics", chunk_size=size, progress=False) for size in (40, 8))
    for name in whole:
        close(chunked.summary(name).first_weight, whole.summary(name).first_weight, 1e-5)
        assert (chunked.summary(name).first_weight[..., 8:] == 0).all()
