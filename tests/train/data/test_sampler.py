from collections import Counter

import pytest

from attnscope.errors import SettingError
from attnscope.train.data.sampler import _order, offset_of, window_of


@pytest.mark.parametrize("windows", [1, 2, 7, 100])
def test_each_epoch_has_every_window_once(windows):
    for epoch in range(5):
        found = [window_of(sample, windows, 3) for sample in range(epoch * windows, (epoch + 1) * windows)]
        assert sorted(found) == list(range(windows))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(_order(epoch, 30, seed).tolist()) for epoch in range(20) for seed in range(20)}
    assert len(orders) == 400


def test_a_window_depends_on_nothing_but_its_number():
    forward = [window_of(sample, 9, 5) for sample in range(90)]
    _order.cache_clear()
    assert [window_of(sample, 9, 5) for sample in reversed(range(90))] == forward[::-1]


def test_each_window_comes_first_about_as_often():
    counts = Counter(window_of(4 * epoch, 4, seed) for epoch in range(20) for seed in range(100))
    assert all(abs(count - 500) < 100 for count in counts.values()), counts  # five standard deviations


def test_offsets_differ_from_epoch_to_epoch_and_reach_all_places():
    offsets = [offset_of(epoch, 8, 1) for epoch in range(200)]
    assert set(offsets) == set(range(8))
    assert offsets == [offset_of(epoch, 8, 1) for epoch in range(200)]
    assert offsets != [offset_of(epoch, 8, 2) for epoch in range(200)]
    assert offset_of(3, 1, 0) == 0


def test_a_sample_before_the_first_is_refused():
    with pytest.raises(SettingError, match="counted from 0, and number -1 was asked for"):
        window_of(-1, 4, 0)
