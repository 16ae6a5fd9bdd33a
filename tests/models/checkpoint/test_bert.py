"""BERT with random weights and MiniLM with trained ones compute what transformers computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, BertForMaskedLM, BertForPreTraining, BertForSequenceClassification, BertModel

from attnscope.attention import Full, Padding
from attnscope.errors import CheckpointError, ShapeError
from attnscope.models.checkpoint import save
from attnscope.models.encoder import Encoder
from tests.models.checkpoint.theirs import BERT, TEXT, float64_everywhere, loaded, make, opened, randomized

MINILM = Path(__file__).resolve().parents[3] / ".cache" / "models" / "minilm-l6"

LENGTHS = [45, 19]
REAL = torch.arange(45) < torch.tensor(LENGTHS)[:, None]
SEGMENTS = (torch.arange(45) // 16).expand(2, -1)

# Features are of size 1 after the last norm, made of sums of at most 45 products in 3 layers.
EXACT = {"rtol": 0, "atol": 1e-12}


def of_theirs(model, body: BertModel | None = None) -> tuple[Tensor, Tensor]:
    """The features of the real tokens, and what the pooler makes of them."""
    with torch.no_grad(), float64_everywhere():
        found = (body or model)(TEXT, attention_mask=REAL.long(), token_type_ids=SEGMENTS)
    return found.last_hidden_state[REAL], found.pooler_output


def of_ours(model: Encoder) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        features = model(TEXT, mask=Padding(LENGTHS), token_type_ids=SEGMENTS)
        return features[REAL], model.pool(features)


def test_features_of_padded_texts_are_those_of_transformers_both_ways(tmp_path: Path) -> None:
    theirs = make(BERT)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = loaded(tmp_path / "theirs")
    assert isinstance(ours, Encoder)
    assert not ours.training
    torch.testing.assert_close(of_ours(ours), of_theirs(theirs), **EXACT)

    randomized(ours)
    save(ours, tmp_path / "ours")
    torch.testing.assert_close(of_theirs(opened(tmp_path / "ours", body=True)), of_ours(ours), **EXACT)
    again = loaded(tmp_path / "ours")
    assert again.config == ours.config
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours.parameters(), strict=True))


@pytest.mark.parametrize("kind", [BertForPreTraining, BertForSequenceClassification])
def test_heads_of_tasks_are_left_out(kind, tmp_path: Path) -> None:
    theirs = randomized(kind(BERT).double().eval())
    theirs.save_pretrained(tmp_path)
    torch.testing.assert_close(of_ours(loaded(tmp_path)), of_theirs(theirs, theirs.bert), **EXACT)


def test_a_file_without_a_pooler_makes_an_encoder_without_one(tmp_path: Path) -> None:
    theirs = randomized(BertForMaskedLM(BERT).double().eval())
    theirs.save_pretrained(tmp_path / "theirs")
    ours = loaded(tmp_path / "theirs")
    assert not ours.config.pooler
    with torch.no_grad():
        features = theirs.bert(TEXT).last_hidden_state
        torch.testing.assert_close(ours(TEXT), features, **EXACT)
    with pytest.raises(ShapeError, match="no pooler"):
        ours.pool(features)
    save(ours, tmp_path / "ours")
    assert loaded(tmp_path / "ours").config == ours.config


def test_older_names_of_norms_and_old_positions_are_understood(tmp_path: Path) -> None:
    theirs = make(BERT)
    theirs.save_pretrained(tmp_path)
    older = {
        "bert."
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    older["bert.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(older, tmp_path / "model.safetensors")
    torch.testing.assert_close(of_ours(loaded(tmp_path)), of_theirs(theirs), **EXACT)
    save_file(older | {"embeddings.LayerNorm.weight": torch.ones(24)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="twice, under an old and a new name"):
        loaded(tmp_path)


def test_minilm_computes_what_it_computes_in_transformers() -> None:
    tokens = torch.randint(1000, 30000, (2, 30))
    exact = AutoModel.from_pretrained(MINILM, dtype=torch.float64, local_files_only=True).eval()
    single = AutoModel.from_pretrained(MINILM, dtype=torch.float32, local_files_only=True).eval()
    ours = loaded(MINILM)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    mask = torch.tensor([[1] * 30, [1] * 12 + [0] * 18])
    with torch.no_grad():
        expected, rounded = exact(tokens, attention_mask=mask), single(tokens, attention_mask=mask)
        features = ours(tokens, mask=Padding([30, 12]))
        pooled = ours.pool(features)
    real = mask.bool()
    for found, exactly, their_own in (
        (features[real], expected.last_hidden_state[real], rounded.last_hidden_state[real]),
        (pooled, expected.pooler_output, rounded.pooler_output),
    ):
        # Ours is as near to the truth as theirs in the same dtype, up to the luck of roundings.
        assert (found - exactly).abs().max() <= 4 * (their_own - exactly).abs().max()


def test_double_weights_of_minilm_are_the_single_ones(tmp_path: Path) -> None:
    single, double = loaded(MINILM), loaded(MINILM, dtype=torch.float64)
    tokens = torch.tensor([[101, 2023, 102]])
    assert all(torch.equal(a.double(), b) for a, b in zip(single.parameters(), double.parameters(), strict=True))
    with torch.no_grad():
        assert (single(tokens, mask=Full()) - double(tokens)).abs().max() < 1e-5
