"""The suite is tested too: each of these mistakes, written into a copy of the source, must make it fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SUITE = ["tests/attention/test_numerics.py", "tests/attention/test_contracts.py"]


class Mistake(NamedTuple):
    """A text that stands once in a source file, and the wrong text for it."""

    file: str
    right: str
    wrong: str


MISTAKES = {
    "scale one percent too large": Mistake("spec.py", "scale = factor * (", "scale = 1.01 * factor * ("),
    "last key dropped by streaming": Mistake(
        "blocks.py", "max(region.right for region in strip)\n", "max(region.right for region in strip) - 1\n"
    ),
    "last key dropped by the fused kernel": Mistake(
        "kernels.py",
        "query, key, value, 0.0, is_causal, attn_mask=attn_mask",
        "query, key[:, :, : -1 or None], value[:, :, : -1 or None], 0.0, is_causal, attn_mask=attn_mask",
    ),
    "accumulator not rescaled by streaming": Mistake(
        "streaming.py", "accumulator.mul_(rescale).add_(", "accumulator.add_("
    ),
    "accumulator not rescaled when merging": Mistake(
        "fused.py", "output.mul_((old - finite).exp_()[..., None]).addcmul_(", "output.addcmul_("
    ),
    "window off by one": Mistake(
        "masks.py", "before if width is None else index(width) - 1", "before if width is None else index(width)"
    ),
    "polarity flipped": Mistake(
        "masks.py",
        "DenseMask(given if attend is not None else ~given)",
        "DenseMask(~given if attend is not None else given)",
    ),
    "causal from the upper left": Mistake(
        "masks.py", "return sizes.keys - sizes.queries if self.offset is None", "return 0 if self.offset is None"
    ),
    "empty rows with the kernel's lse": Mistake(
        "fused.py", "return None if has_keys.all() else has_keys", "return None"
    ),
    "heads grouped in turns": Mistake(
        "reference.py",
        "key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)",
        "key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1)",
    ),
    "derivative of the softcap forgotten": Mistake(
        "scores.py", "return grad_output * (1 - (output / self.cap).square())", "return grad_output"
    ),
    "gradient of lse with the wrong sign": Mistake(
        "streaming.py", "delta -= self._rows(grad_lse", "delta += self._rows(grad_lse"
    ),
    "gradient of lse not shared between blocks": Mistake(
        "fused.py", "share = (part_lse - part.lse).exp_()[..., None]", "share = 1.0"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_suite_catches(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "src" / "attnscope" / "attention" / mistake.file
    source = path.read_text()
    assert source.count(mistake.right) == 1, f"{mistake.right!r} does not stand once in {mistake.file}"
    path.write_text(source.replace(mistake.right, mistake.wrong))

    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *SUITE]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout[-2000:]  # 1: a test failed; anything else is no judgement
    assert "AssertionError" in result.stdout
