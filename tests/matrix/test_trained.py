"""The matrix of real trained heads: every head of SmolLM2-135M against the weights that its eager code builds."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama import modeling_llama

from attnscope.attention import Causal
from attnscope.figures import head_grid, heatmap, query_bars
from attnscope.matrix import AttentionMatrix

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "models" / "smollm2-135m"
TEXT = "The old keeper told Anna that the storm would pass. Anna asked the old keeper how he knew it would pass."


class Seen(NamedTuple):
    """The tokens of a text, and query, key, value, scale and dense weights of each layer, in order."""

    tokens: list[str]
    layers: list[tuple[Tensor, Tensor, Tensor, float, Tensor]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """What the attention layers of SmolLM2 computed on a sentence."""
    layers = []
    eager = modeling_llama.eager_attention_forward

    def observed(module, query: Tensor, key: Tensor, value: Tensor, mask, scaling: float, **options):
        output, weights = eager(module, query, key, value, mask, scaling, **options)
        layers.append((query, key, value, scaling, weights))
        return output, weights

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", observed)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="eager", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)
    with torch.no_grad():
        model(**tokenizer(TEXT, return_tensors="pt"))
    return Seen(tokenizer.batch_decode([[token] for token in tokenizer(TEXT)["input_ids"]]), layers)


def test_all_heads_equal_the_eager_weights_and_can_be_drawn(seen: Seen, tmp_path: Path) -> None:
    assert len(seen.layers) == 30
    for query, key, _, scaling, weights in seen.layers:
        matrix = AttentionMatrix(query, key, mask=Causal(), scale=scaling)
        assert matrix.shape == (1, 9, len(seen.tokens), len(seen.tokens))
        torch.testing.assert_close(matrix.to_dense(), weights, rtol=0, atol=2e-6)
        torch.testing.assert_close(matrix.received(), weights.sum(-2), rtol=0, atol=2e-5)
        entropy = -torch.special.xlogy(weights.double(), weights.double()).sum(-1)
        torch.testing.assert_close(matrix.entropy(exact=True).double(), entropy, rtol=0, atol=2e-5)

    query, key, value, scaling, _ = seen.layers[16]
    matrix = AttentionMatrix(query, key, mask=Causal(), scale=scaling, value=value)
    previous = matrix.diagonal(-1).mean(-1)[0]
    assert previous.argmax() == 0, "head 0 of layer 16 looks at the previous token"
    assert previous[0] > 0.6
    head = matrix.batch(0).head(0)
    for name, figure in {
        "head": heatmap(head, seen.tokens),
        "row": query_bars(head, -1, seen.tokens),
        "layer": head_grid(matrix),
    }.items():
        figure.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000
