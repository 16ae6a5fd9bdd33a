"""What the labs that train small models say they compare, they compare; each check fails for a wrong measurement."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from attnscope import AttentionMatrix, Causal
from attnscope.labs import next_character
from attnscope.labs.experiments import (
    multi_head_attention,
    path_length,
    scaling,
    sequence_reversal,
    training_without_parts,
    training_without_scaling,
)
from attnscope.labs.next_character import HELD_OUT, character_ids, num_characters, train_on_characters, unigram_loss
from attnscope.labs.statistics import mean_with_error
from attnscope.models import Block, FeedForward, MultiHeadAttention


def test_the_standard_error_is_that_of_the_mean() -> None:
    assert mean_with_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx((2.5, math.sqrt(5 / 3) / 2))


class Bigrams(nn.Module):
    """Predicts from the current character alone."""

    def __init__(self, shift: int = 0):
        super().__init__()
        self.table, self.shift = nn.Embedding(num_characters(), num_characters()), shift
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens.roll(-self.shift, dims=1))


def test_a_model_that_learns_nothing_has_the_loss_of_its_start() -> None:
    loss = train_on_characters(Bigrams(), context=32, steps=2, rate=1e-9, seed=0)
    assert loss == pytest.approx(math.log(num_characters()), abs=1e-4)


def test_bigrams_learn_from_one_character_and_targets_are_not_inputs() -> None:
    loss = train_on_characters(Bigrams(), context=32, steps=150, rate=0.3, seed=0)
    ids = character_ids()[-HELD_OUT:]
    counts = torch.zeros(num_characters(), num_characters()).index_put_((ids[:-1], ids[1:]), torch.ones(()), True)
    best = -(counts / counts.sum()).mul((counts / counts.sum(1, keepdim=True).clamp_min(1)).clamp_min(1e-9).log()).sum()
    assert best < loss < unigram_loss() - 0.3  # the best table is that of the held-out text itself
    copied = train_on_characters(Bigrams(shift=1), context=32, steps=150, rate=0.3, seed=0)
    assert copied < 0.7  # a model that reads its target, except that of the last character


def test_held_out_text_is_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = character_ids().clone()
    ids[-HELD_OUT:] = ids[0]
    monkeypatch.setattr(next_character, "character_ids", lambda: ids)
    loss = train_on_characters(Bigrams(), context=32, steps=30, rate=0.3, seed=0)
    assert loss > 2  # a pair that is rare in the training text, however often it is in the held-out one


def test_only_the_division_differs() -> None:
    heads = []
    for divide in (True, False):
        torch.manual_seed(0)
        heads.append(training_without_scaling.Head(256, divide=divide, initialisation="torch"))
    divided, plain = heads
    x = torch.randn(2, 5, training_without_scaling.WIDTH)
    assert not torch.allclose(divided(x, False), plain(x, False), atol=1e-3)
    with torch.no_grad():
        plain.query.weight /= 256**0.5
    torch.testing.assert_close(divided(x, False), plain(x, False))


@pytest.mark.parametrize(("initialisation", "variance"), [("torch", 1 / 9), ("unit variance", 1.0)])
def test_the_initialisations_give_the_variances_that_are_named(initialisation: str, variance: float) -> None:
    torch.manual_seed(0)
    head = training_without_scaling.Head(512, divide=False, initialisation=initialisation)  # pyright: ignore[reportArgumentType]
    x = torch.randn(2000, training_without_scaling.WIDTH)
    with torch.no_grad():
        scores = (head.query(x) * head.key(x.flip(0))).sum(-1)
    assert float(scores.var()) / 512 == pytest.approx(variance, rel=0.15)


def test_reversal_is_measured_from_chance_to_success(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = training_without_scaling.train_to_reverse(64, True, "torch", 0)
    assert trained.accuracy >= 0.99
    assert 20 <= trained.steps < 200
    monkeypatch.setattr(training_without_scaling, "MAX_STEPS", 0)
    start = training_without_scaling.train_to_reverse(64, True, "torch", 1)
    assert start.steps == 0
    assert start.accuracy < 0.3


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4])
def test_dilated_convolutions_reach_a_power_of_two_and_others_one_token_per_layer(num_layers: int) -> None:
    torch.manual_seed(0)
    dilated = path_length.Convolution(num_layers, dilated=True)
    assert path_length.reaches_first(dilated, 2**num_layers)
    assert not path_length.reaches_first(dilated, 2**num_layers + 1)
    plain = path_length.Convolution(num_layers, dilated=False)
    assert path_length.reaches_first(plain, num_layers + 1)
    assert not path_length.reaches_first(plain, num_layers + 2)


def test_recall_is_learned_by_what_reaches_the_first_token_and_by_nothing_else() -> None:
    assert path_length.train_recall("attention", 20, 150, 0)[0] > 0.9
    accuracy, ratio = path_length.train_recall("convolution, not dilated", 20, 60, 0)
    assert accuracy < 0.2
    assert ratio == 0


def test_a_block_with_all_parts_is_the_block_of_the_library() -> None:
    torch.manual_seed(0)
    width = training_without_parts.WIDTH
    ours = training_without_parts.PartialBlock(training_without_parts.Parts())
    attention, feed_forward = ours.sublayers
    assert isinstance(attention, MultiHeadAttention)
    assert isinstance(feed_forward, FeedForward)
    theirs = Block(attention=attention, feed_forward=feed_forward, norm=lambda: nn.LayerNorm(width))
    x = 3 * torch.randn(2, 5, width)
    torch.testing.assert_close(ours(x), theirs(x, mask=Causal()))


def test_each_variant_leaves_out_what_it_names() -> None:
    x = 3 * torch.randn(2, 5, training_without_parts.WIDTH)
    for name, parts in training_without_parts.VARIANTS.items():
        block = training_without_parts.PartialBlock(parts)
        kinds = {type(module) for module in block.modules()}
        assert (nn.LayerNorm in kinds) == (name not in ("no norm", "neither"))
        assert (FeedForward in kinds) == (name != "no feed-forward")
        with torch.no_grad():
            for sublayer in block.sublayers:
                for parameter in sublayer.parameters():
                    parameter.zero_()
            left = x if name not in ("no residual", "neither") else torch.zeros_like(x)
            torch.testing.assert_close(block(x), left)


def test_a_sum_of_terms_cannot_add_modulo_seven() -> None:
    assert training_without_parts.sum_accuracy("fixed weights", 200, 0) < 0.35


def test_the_program_of_the_text_gives_other_numbers_than_it_prints() -> None:
    torch.manual_seed(42)  # as the text has it: the global generator
    generator = torch.Generator().manual_seed(42)
    for d_k, printed in scaling.PROGRAM.items():
        query, keys = torch.randn(1, d_k), torch.randn(10, d_k)
        scores = query @ keys.T
        largest = float(scores.softmax(-1).max())
        assert scaling.run_program(d_k, generator)[:2] == pytest.approx((float(scores.std()), largest))
        assert largest != pytest.approx(printed[1], abs=0.005)


def test_a_layer_without_training_recalls_nothing() -> None:
    assert multi_head_attention.matching_error(8, 2, 0) > 0.9


@pytest.mark.parametrize("role", ["mirrored digit: backward", "digit of the same place: forward", "end marker"])
def test_a_head_with_one_role_gets_all_of_its_weight(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short = sequence_reversal.SHORT
    written = torch.arange(short)
    keys = {
        "mirrored digit: backward": written.flip(0),
        "digit of the same place: forward": written,
        "end marker": torch.full((short,), short),
    }
    weights = torch.zeros(1, 1, 2 * short, 2 * short)
    weights[..., short + written, keys[role]] = 1
    weights[..., torch.arange(short), 0] = 1
    monkeypatch.setattr(sequence_reversal, "read", lambda *_, **__: {"layer": AttentionMatrix.from_dense(weights)})
    rows = sequence_reversal.marked_sequences(1, torch.Generator().manual_seed(0))
    assert (rows[0, short + 1 :] == rows[0, :short].flip(0)).all()
    found = sequence_reversal.share_of_roles(None, rows)  # pyright: ignore[reportArgumentType]
    assert max(found, key=lambda name: float(found[name])) == role
    assert float(found[role]) == pytest.approx(1)
