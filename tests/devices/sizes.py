"""Other block sizes than those of the CPU, so that a small matrix crosses many edges of blocks."""

from __future__ import annotations

import pytest

from attnscope.attention import block_sizes


def set_block_sizes(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Use these sizes on the CPU during a test."""
    monkeypatch.setitem(block_sizes.SIZES, "cpu", block_sizes.SIZES["cpu"]._replace(**sizes))
