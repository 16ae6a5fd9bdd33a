"""Caches: what was put in comes out, in order, however it arrived."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.errors import SettingError, ShapeError
from attnscope.models.kv_cache import INITIAL_CAPACITY, KVCache, LayerCache


@given(st.lists(st.integers(0, 90), max_size=6), st.booleans())
def test_pieces_come_out_as_one(sizes: list[int], static: bool) -> None:
    key, value = torch.randn(2, 2, 3, sum(sizes), 4)
    cache = LayerCache(sum(sizes) if static else None)
    keys, values = key[:, :, :0], value[:, :, :0]
    for new_key, new_value in zip(key.split(sizes, 2), value.split(sizes, 2), strict=True):
        keys, values = cache.extend(new_key, new_value)
        assert cache.length == keys.shape[2]
    assert torch.equal(keys, key)
    assert torch.equal(values, value)


def test_growing_copies_each_position_a_constant_number_of_times() -> None:
    cache, storages = LayerCache(), set()
    for _ in range(20 * INITIAL_CAPACITY):
        keys, _ = cache.extend(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
        storages.add(keys.untyped_storage().data_ptr())
    assert len(storages) <= 6


def test_a_static_cache_takes_its_room_at_once_and_refuses_more() -> None:
    cache = LayerCache(capacity=10)
    keys, _ = cache.extend(torch.zeros(1, 1, 8, 2), torch.zeros(1, 1, 8, 2))
    assert cache.nbytes == 2 * 10 * 2 * 4
    more, _ = cache.extend(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))
    assert more.data_ptr() == keys.data_ptr()
    with pytest.raises(ShapeError, match="capacity 10, length 10, got 1 more"):
        cache.extend(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    assert cache.length == 10


def test_another_batch_is_refused() -> None:
    cache = LayerCache()
    cache.extend(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4))
    with pytest.raises(ShapeError, match=r"\(2, 1, 64, 4\) torch.float32.*\(1, 1, 1, 4\)"):
        cache.extend(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4))
    with pytest.raises(ShapeError, match=r"got .* torch\.bfloat16"):
        cache.extend(*torch.zeros(2, 2, 1, 1, 4, dtype=torch.bfloat16))


def test_a_negative_crop_is_refused() -> None:
    with pytest.raises(SettingError, match="at least 0, got -1"):
        KVCache(num_layers=1).crop(-1)


def test_gradients_are_refused() -> None:
    with pytest.raises(ShapeError, match="gradients"):
        LayerCache().extend(torch.zeros(1, 1, 1, 2, requires_grad=True), torch.zeros(1, 1, 1, 2))


def test_a_pass_that_broke_off_is_noticed_and_can_be_undone() -> None:
    cache, piece = KVCache(num_layers=3), torch.zeros(1, 1, 5, 2)
    for layer in range(3):
        cache[layer].extend(piece, piece)
    assert (cache.length, len(cache)) == (5, 3)
    cache[0].extend(piece, piece)
    with pytest.raises(ShapeError, match=r"hold 5 to 10 tokens.*crop\(5\)"):
        _ = cache.length
    cache.crop(5)
    assert cache.length == 5
