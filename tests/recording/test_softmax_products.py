"""Attention that a module computes by itself is refused by what runs, whatever its class is called."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.errors import UnsupportedError
from attnscope.recording import record
from attnscope.recording.hooks.softmax_products import SoftmaxProducts

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
Weigh = Callable[[Tensor, Tensor], Tensor]
"""Scores (batch, queries, keys) and values (batch, keys, dim), to the output."""

BY_HAND: dict[str, Weigh] = {
    "operator": lambda scores, value: torch.softmax(scores, -1) @ value,
    "method": lambda scores, value: scores.softmax(dim=2).matmul(value),
    "bmm": lambda scores, value: torch.bmm(nn.Softmax(dim=-1)(scores), value),
    "dropout": lambda scores, value: F.dropout(F.softmax(scores, dim=-1), 0.1) @ value,
    "cast": lambda scores, value: F.softmax(scores, dim=-1, dtype=torch.float64).to(value.dtype) @ value,
    "einsum": lambda scores, value: torch.einsum("bqk,bkd->bqd", scores.softmax(-1), value),
    "heads": lambda scores, value: (scores.softmax(-1).view(1, 2, 5, 5) @ value.view(1, 2, 5, 8))[0],
    "head mask": lambda scores, value: (torch.ones(2, 1, 1) * scores.softmax(-1)) @ value,
}
NO_ATTENTION: dict[str, Weigh] = {
    "experts": lambda scores, value: torch.einsum(
        "bqk,bqkd->bqd", scores.softmax(-1), value[:, None].expand(2, 5, 5, 8)
    ),
    "experts one by one": lambda scores, value: (scores.softmax(-1)[:, :, None] @ value[:, None])[:, :, 0],
    "codebook": lambda scores, value: scores.softmax(-1) @ nn.Parameter(value[0]),
    "over queries": lambda scores, value: scores.softmax(1) @ value,
    "no softmax": lambda scores, value: scores @ value,
    "logits": lambda scores, value: value * scores.softmax(-1).amax(-1, keepdim=True),
}


class Blend(nn.Module):
    """Attention by hand, in a class whose name does not say so."""

    def __init__(self, weigh: Weigh) -> None:
        super().__init__()
        self.project, self.weigh = nn.Linear(8, 24), weigh

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        return self.weigh(query @ key.mT, value)


class Model(nn.Module):
    """One layer that is recorded, and one that may not be."""

    def __init__(self, weigh: Weigh) -> None:
        super().__init__()
        self.seen, self.other = nn.MultiheadAttention(8, 2, batch_first=True), Blend(weigh)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.seen(x, x, x)[0])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("how", BY_HAND)
def test_attention_by_hand_is_refused_by_name(how: str, training: bool) -> None:
    model = Model(BY_HAND[how]).train(training)
    with (
        pytest.raises(UnsupportedError, match=r"1 of 2 attention layers .* Not recorded: other \(Blend\)"),
        record(model),
    ):
        model(X)


def test_other_layers_can_be_chosen() -> None:
    model = Model(BY_HAND["operator"])
    with record(model, layers="seen") as trace:
        model(X)
    assert list(trace) == ["seen"]


@pytest.mark.parametrize("how", NO_ATTENTION)
def test_other_uses_of_a_softmax_are_not_attention(how: str) -> None:
    model = Model(NO_ATTENTION[how])
    with record(model) as trace:
        model(X)
    assert list(trace) == ["seen"]


def test_a_block_with_attention_of_its_own_around_a_recorded_layer_is_refused() -> None:
    class Block(Model):
        def forward(self, x: Tensor) -> Tensor:
            x = self.seen(x, x, x)[0]
            return (x @ x.mT).softmax(-1) @ x

    model = nn.Sequential(Block(BY_HAND["operator"]))
    with pytest.raises(UnsupportedError, match=r"Not recorded: 0 \(Block\)"), record(model):
        model(X)
    with pytest.raises(UnsupportedError, match=r"Not recorded: the model itself \(Block\)"), record(model[0]):
        model[0](X)


def test_attention_outside_of_the_model_is_not_its_own() -> None:
    model = Model(NO_ATTENTION["no softmax"])
    with record(model) as trace:
        model(X)
        BY_HAND["operator"](X @ X.mT, X)
    assert list(trace) == ["seen"]


def test_results_that_are_gone_are_forgotten() -> None:
    products = SoftmaxProducts()
    weights = torch.softmax(X, -1)
    assert not products.is_attention(torch.softmax, (X, -1), {}, weights)
    assert products.is_attention(torch.matmul, (weights, X.mT), {}, weights @ X.mT)
    assert weights in products
    del weights
    gc.collect()
    assert not products._weights
