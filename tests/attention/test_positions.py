import math

import pytest
import torch

from attnscope.attention.positions import LearnedPositions, position_ids, sinusoidal
from attnscope.errors import ShapeError


def test_position_ids_count_from_an_offset_or_from_one_for_each_batch_row():
    assert position_ids(4).tolist() == [0, 1, 2, 3]
    assert position_ids(2, offset=7).tolist() == [7, 8]
    assert position_ids(2, offset=torch.tensor([3, 0])).tolist() == [[3, 4], [0, 1]]


def test_position_ids_refuse_a_fractional_offset():
    with pytest.raises(ShapeError, match=r"integers, got torch\.float32"):
        position_ids(2, offset=torch.tensor([0.5]))


def test_sinusoidal_is_the_formula_of_the_paper():
    table = sinusoidal(50, 6, dtype=torch.float64)
    for position in (0, 1, 17, 49):
        for pair in range(3):
            angle = position / 10000 ** (2 * pair / 6)
            assert table[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-14)
            assert table[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-14)


def test_sinusoidal_offset_continues_the_table():
    torch.testing.assert_close(sinusoidal(5, 8, offset=7), sinusoidal(12, 8)[7:], rtol=0, atol=0)


def test_sinusoidal_keeps_its_digits_at_a_million():
    exact = sinusoidal(3, 64, offset=1_000_000, dtype=torch.float64)
    assert (sinusoidal(3, 64, offset=1_000_000) - exact).abs().max() < 6e-8


def test_sinusoidal_shift_is_one_fixed_rotation_for_every_position():
    shift = 13
    table = sinusoidal(100, 16, dtype=torch.float64)
    angles = shift * 10000 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    sines, cosines = table[:-shift, 0::2], table[:-shift, 1::2]
    torch.testing.assert_close(table[shift:, 0::2], sines * angles.cos() + cosines * angles.sin(), rtol=0, atol=1e-13)
    torch.testing.assert_close(table[shift:, 1::2], cosines * angles.cos() - sines * angles.sin(), rtol=0, atol=1e-13)


def test_sinusoidal_has_the_dtype_that_is_asked_for():
    assert sinusoidal(3, 4).dtype == torch.float32
    assert sinusoidal(3, 4, dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("dim", [0, 5])
def test_sinusoidal_refuses_a_width_without_pairs(dim):
    with pytest.raises(ShapeError, match=f"even dim.*got {dim}"):
        sinusoidal(4, dim)


def test_learned_positions_are_rows_of_their_table():
    table = LearnedPositions(8, 4)
    torch.testing.assert_close(table(3), table.weight[:3])
    torch.testing.assert_close(table(3, offset=5), table.weight[5:8])
    torch.testing.assert_close(table(2, offset=torch.tensor([1, 6])), table.weight[torch.tensor([[1, 2], [6, 7]])])
    torch.testing.assert_close(table(torch.tensor([4, 4, 0])), table.weight[[4, 4, 0]])
    assert table(torch.empty(0, dtype=torch.long)).shape == (0, 4)


def test_learned_positions_receive_gradients_only_where_they_are_read():
    table = LearnedPositions(4, 2)
    table(2, offset=1).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad.tolist() == [[0, 0], [1, 1], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("positions", "offset", "span"),
    [
        (9, 0, "0 to 8"),
        (2, 7, "7 to 8"),
        (1, -1, "-1 to -1"),
        (torch.tensor([3, 8]), 0, "3 to 8"),
        (2, torch.tensor([0, 7]), "0 to 8"),
    ],
)
def test_learned_positions_refuse_by_name_what_lies_outside_the_table(positions, offset, span):
    with pytest.raises(ShapeError, match=f"0 to 7, got {span}; shorten the text"):
        LearnedPositions(8, 4)(positions, offset)


def test_learned_positions_refuse_two_ways_of_saying_where():
    with pytest.raises(ShapeError, match="add the offset to the positions"):
        LearnedPositions(8, 4)(torch.tensor([1]), offset=2)


def test_learned_positions_say_their_size():
    assert repr(LearnedPositions(8, 4)) == "LearnedPositions(num_positions=8, dim=4)"
