"""What the processor of this machine can do, for bounds that hold only where it can."""

from pathlib import Path

import pytest

FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # of Intel and AMD, and of ARM
PROCESSOR = Path("/proc/cpuinfo")


def multiplies_bfloat16() -> bool:
    """Whether numbers of 16 bits are multiplied as such; else they are widened first, which is what then takes time."""
    words = PROCESSOR.read_text(encoding="utf-8").split() if PROCESSOR.exists() else []
    return not set(FLAGS).isdisjoint(words)


needs_bfloat16 = pytest.mark.skipif(
    not multiplies_bfloat16(), reason="this processor has no instructions for bfloat16, whose speed is bounded here"
)
