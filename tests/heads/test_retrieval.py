"""Retrieval and streaming scores equal brute force over dense weights, and find the heads that copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from attnscope.errors import SettingError, UnsupportedError
from attnscope.heads import ablate, find_retrieval_heads
from attnscope.heads.labels import get_label
from attnscope.heads.needles import make_documents, token_needles, word_needles
from attnscope.heads.retrieval import Retrieval
from attnscope.labs import reference_text
from attnscope.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from attnscope.train import IGNORE_INDEX
from attnscope.train.tasks import Repetition
from tests.models.smollm2 import own_model, transformers_model

VOCABULARY = 200
TEXT = torch.randint(VOCABULARY, (1500,), generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA: dict[str, Any] = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 2048}

TRAINABLE: dict[str, Any] = {
    **SIZES,
    "vocab_size": Repetition.vocab_size,
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
}


def sharpened(model: Any) -> Any:
    """Random parameters, large enough that weights differ from uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0 if parameter.dim() > 1 else 1.0)
    return model.eval()


def llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return sharpened(LlamaForCausalLM(LlamaConfig(**LLAMA, **changes)))


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(1)
    return sharpened(GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4)))


def mistral() -> MistralForCausalLM:
    torch.manual_seed(2)
    return sharpened(MistralForCausalLM(MistralConfig(**LLAMA, sliding_window=300)))


def own() -> Decoder:
    torch.manual_seed(3)
    return sharpened(
        Decoder(
            DecoderConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                num_layers=2,
                num_heads=4,
                num_kv_heads=2,
                intermediate_size=48,
                max_position_embeddings=1024,
            )
        )
    )


@torch.no_grad()
def dense_weights(model: nn.Module, ids: Tensor) -> list[Tensor]:
    """The attention weights of all layers, (heads, queries, keys), by the eager code of transformers."""
    model.set_attn_implementation("eager")  # pyright: ignore[reportCallIssue]
    weights = model(ids[None], output_attentions=True).attentions
    model.set_attn_implementation("sdpa")  # pyright: ignore[reportCallIssue]
    return [layer[0].double() for layer in weights]


def brute_force(weights: Tensor, ids: list[int], needle: range, answer: range) -> tuple[float, float, float]:
    """The three scores of a head (queries, keys), row by row and key by key."""
    hits, on_needle, streamed = [], [], []
    for position in answer:
        row = weights[position - 1].tolist()
        copies = [key for key in needle if ids[key] == ids[position]]
        hits.append(float(max(range(len(row)), key=row.__getitem__) in copies))
        on_needle.append(sum(row[key] for key in copies))
        is_kept = [key < 4 or position - 1 - 256 < key <= position - 1 for key in range(len(row))]
        is_near = answer.stop - needle.stop - 1 < 256
        streamed.append(math.nan if is_near else sum(w for key, w in enumerate(row) if is_kept[key]))
    return sum(hits) / len(hits), sum(on_needle) / len(hits), sum(streamed) / len(hits)


@pytest.mark.parametrize("build", [llama, gpt2, mistral])
def test_scores_equal_brute_force_at_1024_tokens(build: Any) -> None:
    model = build()
    found = find_retrieval_heads(model, TEXT, length=1024, needles=8, ablations=0, progress=False)
    (document,) = make_documents(TEXT.tolist(), token_needles(VOCABULARY, 8), 1024)
    dense, ids = dense_weights(model, document.ids), document.ids.tolist()
    longest = (found.lengths == 1024).nonzero().flatten().tolist()
    assert len(longest) == 8
    for row, question in zip(longest, document.questions, strict=True):
        expected = [brute_force(head, ids, question.needle, question.answer) for layer in dense for head in layer]
        for name, values in zip(("retrieval", "weight", "streaming"), zip(*expected, strict=True), strict=True):
            actual = found.scores[name][row]
            torch.testing.assert_close(
                actual, torch.tensor(values, dtype=torch.float64), rtol=0, atol=2e-6, equal_nan=True
            )


@pytest.fixture(scope="module")
def found() -> Retrieval:
    return find_retrieval_heads(own(), TEXT, length=1024, needles=8, ablations=3, progress=False)


def test_documents_of_all_lengths_are_read(found: Retrieval) -> None:
    assert found.lengths.tolist() == [512] * 8 + [1024] * 8
    assert found.depths[8:].tolist() == [(at + 0.5) / 8 for at in range(8)]
    assert (found.distances[:8] < 512).all()
    assert (found.distances > 0).all()
    assert found.losses.shape == found.found.shape == (16,)


def test_the_table_has_means_and_standard_errors_of_a_length(found: Retrieval) -> None:
    table = found.table()
    chosen = found.scores["weight"][found.lengths == 1024]
    torch.testing.assert_close(table["weight"], chosen.mean(0))
    torch.testing.assert_close(table["weight_error"], chosen.std(0) / 8**0.5)
    torch.testing.assert_close(found.table(512)["weight"], found.scores["weight"][found.lengths == 512].mean(0))
    with pytest.raises(SettingError, match=r"expected a length of \[512, 1024\], got 99"):
        found.table(99)


def test_bins_hold_every_needle_once(found: Retrieval) -> None:
    depth, distance = found.by_depth("weight", bins=4), found.by_distance("weight")
    assert depth.counts == [2, 2, 2, 2]
    assert sum(distance.counts) == 16
    torch.testing.assert_close(depth.means.mean(0), found.table()["weight"])
    first = found.scores["weight"][8:10]
    torch.testing.assert_close(depth.means[0], first.mean(0))
    torch.testing.assert_close(depth.errors[0], first.std(0) / 2**0.5)


def test_the_saved_scores_are_those_of_key_value_heads(found: Retrieval) -> None:
    scores = found.full_attention_heads()
    assert scores.shape == (2, 2)
    torch.testing.assert_close(scores.flatten(), found.table()["retrieval"].view(4, 2).amax(1))


def test_ablation_compares_with_heads_of_the_same_layers(found: Retrieval) -> None:
    assert found.ablation is not None
    assert len(found.ablation.heads) == 4, "two of four heads in each layer"
    assert found.ablation.random.shape == (3,)
    torch.testing.assert_close(found.ablation.loss, float(found.losses[8:].mean()), rtol=1e-4, atol=1e-4)


def test_the_figure_has_a_map_for_each_head(found: Retrieval) -> None:
    figure = found.figure(top=3, bins=4)
    images = [axes.images[0] for axes in figure.axes if axes.images and axes.get_title()]
    assert len(images) == 3
    best = found.table().top("retrieval", 1)
    at = found.column(best.layers[0], best.heads[0])
    drawn = images[0].get_array()
    assert drawn is not None
    np.testing.assert_allclose(drawn[:, 1], found.by_depth(bins=4).means[:, at].numpy())


def test_progress_counts_documents_and_ablations() -> None:
    reports: list[tuple[int, int]] = []
    find_retrieval_heads(
        own(), TEXT, length=512, needles=2, ablations=2, progress=lambda done, total: reports.append((done, total))
    )
    assert reports == [(at, 5) for at in range(1, 6)]


def test_a_model_that_cannot_answer_is_refused() -> None:
    encoder = Encoder(
        EncoderConfig(
            vocab_size=50, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_position_embeddings=9
        )
    )
    with pytest.raises(UnsupportedError, match="Encoder does not predict"):
        find_retrieval_heads(encoder.eval(), TEXT, length=512)
    with pytest.raises(SettingError, match="training mode"):
        find_retrieval_heads(own().train(), TEXT, length=512)
    with pytest.raises(SettingError, match="at least 2 needles, got 1"):
        find_retrieval_heads(own(), TEXT, needles=1)
    with pytest.raises(SettingError, match="needs a tokenizer"):
        find_retrieval_heads(own(), "a text")


@pytest.mark.slow
def test_trained_heads_equal_brute_force_and_matter() -> None:
    """SmolLM2 at 1,024 tokens: the same scores as its eager code, and without the best heads the answers are lost."""
    model, tokenizer = own_model()
    found = find_retrieval_heads(model, reference_text(), tokenizer, length=1024, needles=8, progress=False)
    text = tokenizer.encode(reference_text(), add_special_tokens=False)
    (document,) = make_documents(text, word_needles(tokenizer, 8), 1024)
    dense, ids = dense_weights(transformers_model(), document.ids), document.ids.tolist()
    longest = (found.lengths == 1024).nonzero().flatten().tolist()
    for row, question in zip(longest, document.questions, strict=True):
        expected = [brute_force(head, ids, question.needle, question.answer) for layer in dense for head in layer]
        hits, weights, streamed = (torch.tensor(some, dtype=torch.float64) for some in zip(*expected, strict=True))
        torch.testing.assert_close(found.scores["weight"][row], weights, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.scores["streaming"][row], streamed, rtol=0, atol=1e-4, equal_nan=True)
        assert ((found.scores["retrieval"][row] - hits).abs() > 1e-9).sum() <= 2, "rounding may decide between two keys"
    table = found.table()
    assert {"18.6", "18.7"} <= set(table.with_label("retrieval").head_names)
    assert "18.8" in table.with_label("streaming").head_names, "which retrieves from 3,000 tokens on"
    assert found.ablation is not None
    assert found.ablation.ratio > 5


def trainable_llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**TRAINABLE, num_key_value_heads=2))


def trainable_gpt_neox() -> GPTNeoXForCausalLM:
    """Rotary positions in a quarter of the dimensions; attention and feed-forward read the same residual stream."""
    return GPTNeoXForCausalLM(GPTNeoXConfig(**TRAINABLE))


@pytest.mark.slow
@pytest.mark.parametrize("build", [trainable_llama, trainable_gpt_neox])
def test_a_model_that_learns_to_repeat_retrieves_in_its_second_layer(build: Any) -> None:
    """Two layers, trained here: induction needs a previous-token head below, so only layer 1 can copy."""
    torch.manual_seed(0)
    model, task, steps = build(), Repetition(sequence_length=128), 500
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 50)
        batch = task.get_batch(range(32 * step, 32 * step + 32))
        logits = model(batch.input_ids).logits.flatten(0, 1)
        loss = F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORE_INDEX)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    text = torch.randint(Repetition.vocab_size, (3000,), generator=torch.Generator().manual_seed(5))
    found = find_retrieval_heads(model.eval(), text, length=128, needles=16, progress=False)
    first, second = found.table()["retrieval"].view(2, 4)
    assert second.max() > 0.4
    assert first.max() < 0.05
    assert found.ablation is not None
    assert found.ablation.loss == pytest.approx(float(found.losses.mean()), abs=1e-4), "over all 16 documents"
    assert found.ablation.ablated - found.ablation.loss > 0.3
    table = found.table()
    retrieving = table.rows((table["retrieval"] >= get_label("retrieval").threshold).nonzero().flatten().tolist())
    with ablate(model, retrieving.heads_by_layer):
        without = find_retrieval_heads(model, text, length=128, needles=16, ablations=0, progress=False)
    assert found.found.any()
    assert not without.found.any(), "the answers are lost"
    assert without.losses.mean() - found.losses.mean() > 1
    assert found.table()["streaming"].isnan().all(), "all needles are within the last 256 tokens"
