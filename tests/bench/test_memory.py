"""Peak memory is seen, also when it is given back at once, and errors of the measured process arrive."""

import pytest
import torch

from attnscope.bench.memory import peak_extra_bytes


def hold(megabytes: int):
    return lambda: torch.ones(megabytes * 250_000).sum()


def fail():
    raise ValueError("nothing to measure")


def test_a_hundred_megabytes_are_seen() -> None:
    assert 95e6 < peak_extra_bytes(hold, 100) < 130e6


def test_an_error_in_the_measured_process_is_raised_here() -> None:
    with pytest.raises(ValueError, match="nothing to measure"):
        peak_extra_bytes(fail)
