"""Results for a mask tensor are cached, and a thread that reads it with other sizes does not change them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from attnscope.attention import Padding
from attnscope.recording.hooks import mask_tensors
from attnscope.recording.hooks.mask_tensors import read_mask

OURS, OTHERS = 3, 7


class InterruptedCache(WeakIdKeyDictionary):
    """A cache that another thread uses right after each access of the thread that made it."""

    def __init__(self, use: Callable[[], object]) -> None:
        super().__init__()
        self._use, self._is_other = use, False

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        self._interrupt()
        return found

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self._interrupt()
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._interrupt()

    def _interrupt(self) -> None:
        if self._is_other:
            return
        self._is_other = True
        other = Thread(target=self._use)
        other.start()
        other.join()
        self._is_other = False


def covered_keys(mask: Tensor, keys: int) -> int:
    """For how many keys a padding mask is read."""
    found = read_mask(mask, torch.zeros(2, 1, 1, 4), torch.zeros(2, 1, keys, 4)).mask
    assert isinstance(found, Padding)
    assert found.keep is not None
    return found.keep.shape[-1]


def test_two_threads_read_one_mask_with_different_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = torch.tensor([False, True])[:, None, None, None]  # one number per batch row, for any number of keys
    read_by_others: list[int] = []
    cache = InterruptedCache(lambda: read_by_others.append(covered_keys(mask, OTHERS)))
    monkeypatch.setattr(mask_tensors, "_cache", cache)
    for _ in range(3):  # missing, and stored for other sizes
        assert covered_keys(mask, OURS) == OURS
    assert len(read_by_others) >= 6
    assert set(read_by_others) == {OTHERS}


def test_a_result_is_reused_while_the_tensor_lives_and_is_unchanged() -> None:
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    query, key = torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 4, 8)
    first = read_mask(mask, query, key)
    assert read_mask(mask, query, key) is first
    mask[0, 3] = True
    assert read_mask(mask, query, key) is not first
