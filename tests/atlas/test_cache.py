"""The cache makes a value once however many ask, keeps to its limit, and forgets what went wrong."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from attnscope.atlas.cache import ByteCache
from attnscope.errors import SettingError

THREADS = 8


def test_threads_that_ask_at_once_make_a_value_once() -> None:
    cache, made, everybody = ByteCache(100), [], threading.Barrier(THREADS)
    begun, enough = threading.Event(), threading.Event()

    def make() -> bytes:
        made.append(threading.get_ident())
        begun.set()
        assert enough.wait(10)
        return b"value"

    def ask() -> bytes:
        everybody.wait(10)
        return cache.get("key", make)

    with ThreadPoolExecutor(THREADS) as pool:
        answers = [pool.submit(ask) for _ in range(THREADS)]
        assert begun.wait(10)
        enough.set()
        assert [answer.result(10) for answer in answers] == [b"value"] * THREADS
    assert len(made) == 1
    assert cache.nbytes == 5


def test_an_error_reaches_everybody_who_waits_and_is_not_kept() -> None:
    cache, begun, enough = ByteCache(100), threading.Event(), threading.Event()

    def fail() -> bytes:
        begun.set()
        assert enough.wait(10)
        raise KeyError("no such tile")

    with ThreadPoolExecutor(THREADS) as pool:
        first = pool.submit(cache.get, "key", fail)
        assert begun.wait(10)
        others = [pool.submit(cache.get, "key", fail) for _ in range(THREADS - 1)]
        enough.set()
        for answer in (first, *others):
            with pytest.raises(KeyError, match="no such tile"):
                answer.result(10)
    assert cache.get("key", lambda: b"now it works") == b"now it works"


def test_different_keys_do_not_wait_for_each_other() -> None:
    cache, enough = ByteCache(100), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(cache.get, "slow", lambda: b"slow" if enough.wait(10) else b"")
        assert cache.get("quick", lambda: b"quick") == b"quick"
        enough.set()
        assert slow.result(10) == b"slow"


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = ByteCache(10)
    for key in "abc":
        cache.get(key, lambda: b"123")
    assert cache.get("a", lambda: b"new") == b"123"
    cache.get("d", lambda: b"123")
    assert cache.get("a", lambda: b"new") == b"123"
    assert cache.get("b", lambda: b"new") == b"new"


def test_the_cache_keeps_to_its_limit_whatever_threads_put_in() -> None:
    cache = ByteCache(1000)

    def ask(seed: int) -> None:
        for at in range(300):
            size = (seed * 31 + at * 17) % 200
            assert len(cache.get((size, at % 7), lambda size=size: bytes(size))) == size
            assert cache.nbytes <= 1000

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(ask, seed) for seed in range(THREADS)]:
            done.result(30)
    assert cache.nbytes == sum(size for _, size in cache._entries.values())


def test_a_value_above_the_limit_is_given_and_not_kept() -> None:
    cache = ByteCache(10)
    cache.get("small", lambda: b"123")
    assert cache.get("large", lambda: bytes(11)) == bytes(11)
    assert (len(cache), cache.nbytes) == (1, 3)


def test_sizes_are_what_the_caller_says() -> None:
    cache = ByteCache(10)
    assert cache.get("nothing", lambda: None, lambda _: 4) is None
    assert cache.get("nothing", lambda: 5, lambda _: 4) is None
    assert cache.nbytes == 4


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(SettingError, match="max_bytes of at least 1"):
        ByteCache(0)
