"""The numbers of trained heads that the page of steps ships, decoded."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FILE = Path(__file__).resolve().parents[2] / "web/src/steps/example_data.ts"
HEAD_DIM, BLOCK_BYTES = 64, 24


def example_data() -> dict[str, Any]:
    """The module as JSON."""
    return json.loads(FILE.read_text(encoding="utf-8").partition("ExampleData = ")[2].rstrip().removesuffix(";"))


def decode_blocks(text: str) -> Tensor:
    """Rows from blocks: the smallest number, the distance of its levels, and 32 levels of 4 bits."""
    data = base64.b64decode(text)
    numbers: list[float] = []
    for start in range(0, len(data), BLOCK_BYTES):
        smallest, step = struct.unpack_from("<2f", data, start)
        for pair in data[start + 8 : start + BLOCK_BYTES]:
            numbers += [smallest + step * (pair & 15), smallest + step * (pair >> 4)]
    return torch.tensor(numbers, dtype=torch.float64).view(-1, HEAD_DIM)
