"""Found heads are compared with random others of the same layers, the same ones whenever the seed is the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import attnscope.heads.comparison as module
from attnscope.errors import SettingError
from attnscope.heads import HeadTable, ablate, compare_with_random_heads, predict
from attnscope.models import Decoder, DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=30, hidden_size=48, num_layers=3, num_heads=6, intermediate_size=48, max_position_embeddings=64
)
IDS = torch.randint(3, 30, (12,), generator=torch.Generator().manual_seed(0))
NAMES = [f"blocks.{at}.attention" for at in range(3)]


@pytest.fixture(scope="module")
def model() -> Decoder:
    torch.manual_seed(0)
    built = Decoder(CONFIG).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return built


def table(heads: dict[str, list[int]]) -> HeadTable:
    rows = [(layer, head) for layer, some in heads.items() for head in some]
    return HeadTable(tuple(layer for layer, _ in rows), tuple(head for _, head in rows), {})


ALL = table({name: list(range(6)) for name in NAMES})
CHOSEN = table({NAMES[0]: [4], NAMES[2]: [0, 5]})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, list[int]]]:
    """The heads that each pass is run without, noted on their way to the real `ablate`."""
    noted: list[dict[str, list[int]]] = []

    @contextmanager
    def noting(model: Any, heads: Any, how: Any) -> Iterator[None]:
        noted.append(heads)
        with ablate(model, heads, how):
            yield

    monkeypatch.setattr(module, "ablate", noting)
    return noted


def loss_without(model: Decoder, heads: dict[str, list[int]], how: Any = "zero") -> Tensor:
    with ablate(model, heads, how):
        return predict(model, IDS[None]).losses[0]


@pytest.mark.parametrize("how", ["zero", "mean", 0.5])
def test_rises_are_those_of_the_ablations_one_by_one(model: Decoder, asked: list[Any], how: Any) -> None:
    found = compare_with_random_heads(model, IDS, CHOSEN, ALL, how=how, num_draws=3)
    plain = loss_without(model, {})
    assert torch.equal(found.loss, plain)
    assert torch.equal(found.change, loss_without(model, CHOSEN.heads_by_layer, how) - plain)
    assert found.random_changes.shape == (3, len(IDS) - 1)
    for rise, heads in zip(found.random_changes, asked[2:], strict=True):
        assert torch.equal(rise, loss_without(model, heads, how) - plain)
        assert rise.abs().max() > 0


def test_as_many_others_are_drawn_from_the_same_layers_and_none_of_the_chosen(model: Decoder, asked: list[Any]) -> None:
    compare_with_random_heads(model, IDS, CHOSEN, ALL, num_draws=40)
    assert asked[:2] == [{}, CHOSEN.heads_by_layer]
    seen: set[tuple[str, int]] = set()
    for heads in asked[2:]:
        assert {layer: len(set(some)) for layer, some in heads.items()} == {NAMES[0]: 1, NAMES[2]: 2}
        assert not set(heads[NAMES[0]]) & {4}
        assert not set(heads[NAMES[2]]) & {0, 5}
        seen |= {(layer, head) for layer, some in heads.items() for head in some}
    assert seen == {(NAMES[0], head) for head in (0, 1, 2, 3, 5)} | {(NAMES[2], head) for head in (1, 2, 3, 4)}


def test_only_heads_of_the_other_table_are_drawn(model: Decoder, asked: list[Any]) -> None:
    compare_with_random_heads(model, IDS, table({NAMES[1]: [0]}), table({NAMES[1]: [0, 2, 3]}), num_draws=20)
    assert {heads[NAMES[1]][0] for heads in asked[2:]} == {2, 3}


def test_a_seed_repeats_the_draws_and_another_does_not(model: Decoder) -> None:
    first, second, other = (
        compare_with_random_heads(model, IDS, CHOSEN, ALL, num_draws=4, seed=seed, progress=False) for seed in (1, 1, 2)
    )
    assert torch.equal(first.random_changes, second.random_changes)
    assert not torch.equal(first.random_changes, other.random_changes)
    assert torch.equal(first.change, other.change)


def test_the_order_in_which_heads_were_found_changes_the_chosen_rise_in_nothing(model: Decoder) -> None:
    turned = compare_with_random_heads(model, IDS, CHOSEN.rows([2, 0, 1]), ALL, num_draws=1)
    torch.testing.assert_close(turned.change, compare_with_random_heads(model, IDS, CHOSEN, ALL, num_draws=1).change)


def test_too_few_others_are_refused_before_anything_runs(model: Decoder, asked: list[Any]) -> None:
    most = table({NAMES[0]: [0], NAMES[1]: [0, 1, 2, 3]})
    message = r"4 heads of blocks\.1\.attention .* only 2 others"
    with pytest.raises(SettingError, match=message):
        compare_with_random_heads(model, IDS, most, ALL)
    assert asked == []


def test_half_of_a_layer_leaves_just_enough(model: Decoder, asked: list[Any]) -> None:
    compare_with_random_heads(model, IDS, table({NAMES[1]: [0, 1, 2]}), ALL, num_draws=2)
    assert [sorted(heads[NAMES[1]]) for heads in asked[2:]] == [[3, 4, 5]] * 2


def test_progress_is_told_after_each_pass(model: Decoder) -> None:
    reports: list[tuple[int, int]] = []
    compare_with_random_heads(
        model, IDS, CHOSEN, ALL, num_draws=3, progress=lambda done, whole: reports.append((done, whole))
    )
    assert reports == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_the_random_numbers_of_the_caller_are_left_alone(model: Decoder) -> None:
    states = random.getstate(), torch.get_rng_state()
    compare_with_random_heads(model, IDS, CHOSEN, ALL, num_draws=2)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
