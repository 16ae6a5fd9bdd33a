from collections import Counter

import pytest

from attnscope.errors import SettingError
from attnscope.train.data.sampler import _order, epoch_offset, window_index


@pytest.mark.parametrize("windows", [1, 2, 7, 100])
def test_each_epoch_has_every_window_once(windows):
    for epoch in range(5):
        found = [window_index(sample, windows, 3) for sample in range(epoch * windows, (epoch + 1) * windows)]
        assert sorted(found) == list(range(windows))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(_order(epoch, 30, seed).tolist()) for epoch in range(20) for seed in range(20)}
    assert len(orders) == 400


def test_a_window_depends_on_nothing_but_its_number():
    forward = [window_index(sample, 9, 5) for sample in range(90)]
    _order.cache_clear()
    assert [window_index(sample, 9, 5) for sample in reversed(range(90))] == forward[::-1]


def test_each_window_comes_first_about_as_often():
    counts = Counter(window_index(4 * epoch, 4, seed) for epoch in range(20) for seed in range(100))
    assert all(abs(count - 500) < 100 for count in counts.values()), counts  # five standard deviations


def test_offsets_differ_from_epoch_to_epoch_and_reach_all_places():
    offsets = [epoch_offset(epoch, 8, 1) for epoch in range(200)]
    assert set(offsets) == set(range(8))
    assert offsets == [epoch_offset(epoch, 8, 1) for epoch in range(200)]
    assert offsets != [epoch_offset(epoch, 8, 2) for epoch in range(200)]
    assert epoch_offset(3, 1, 0) == 0


def test_a_sample_before_the_first_is_refused():
    with pytest.raises(SettingError, match=r"sample number .* got -1"):
        window_index(-1, 4, 0)
