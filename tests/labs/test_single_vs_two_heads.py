"""What the sequences of the two-relations lab are said to be, they are."""

from __future__ import annotations

import pytest
import torch

from attnscope.labs.experiments.single_vs_two_heads import POSITIONS, joint_loss, planted_sequences, symbol_pairs


@pytest.fixture
def dice() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_every_symbol_stands_twice_and_every_wanted_row_has_one_key(dice: torch.Generator):
    _, symbols, wanted = symbol_pairs(50, dice)
    assert (symbols.sort(dim=-1).values == torch.arange(8) // 2).all()
    assert (wanted.sum(dim=-1) == 1).all()
    assert set(wanted.unique().tolist()) == {0.0, 1.0}


def test_the_wanted_keys_are_the_token_before_and_the_other_token_of_the_symbol(dice: torch.Generator):
    _, symbols, wanted = symbol_pairs(50, dice)
    before, twin = wanted.argmax(dim=-1).unbind(dim=1)
    here = torch.arange(8)
    assert (before == (here - 1) % 8).all()
    assert (symbols.gather(1, twin) == symbols).all()
    assert (twin != here).all()


def test_no_single_map_beats_the_bound_and_the_halfway_map_reaches_it(dice: torch.Generator):
    _, _, wanted = symbol_pairs(20_000, dice)
    halfway = wanted.mean(dim=1, keepdim=True)
    least = float(joint_loss(halfway, wanted))
    assert least == pytest.approx(6 / 56, rel=0.01)
    for other in (wanted[:, :1], wanted[:, 1:], torch.full_like(halfway, 1 / 8), 0.9 * halfway + 0.1 / 8):
        assert float(joint_loss(other, wanted)) > least


def test_the_printed_positions_do_not_tell_the_third_token_from_the_fourth(dice: torch.Generator):
    cut, _ = planted_sequences(1, frozenset(), dice)
    full, _ = planted_sequences(1, frozenset({POSITIONS}), dice)
    assert (cut[0, 2, 2:] == cut[0, 3, 2:]).all()
    assert (full[0, 2, 2:] != full[0, 3, 2:]).any()
