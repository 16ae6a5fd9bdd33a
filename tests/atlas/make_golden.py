"""Writes golden.json: what plans, codes, headers and pooled bins are, said once more in plain loops.

Nothing of attnscope is called, so that the library and the page in the browser can both be held to it.
Run: python tests/atlas/make_golden.py
"""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LENGTHS = (1, 2, 5, 255, 256, 257, 511, 512, 513, 1000, 4096, 4097, 8192, 8193, 100_003, 131_072, 1_000_000)


def plan(queries: int, keys: int) -> dict[str, Any]:
    deepest = 0
    while 256 * 2**deepest < max(queries, keys):
        deepest += 1
    levels = []
    for z in range(deepest + 1):
        stride = 2 ** (deepest - z)
        down = math.ceil(queries / (256 * stride))
        across = math.ceil(keys / (256 * stride))
        last = {"rows": axis(queries, stride, down - 1), "columns": axis(keys, stride, across - 1)}
        levels.append({"z": z, "stride": stride, "down": down, "across": across, "last": last})
    return {"queries": queries, "keys": keys, "deepest": deepest, "levels": levels}


def axis(length: int, stride: int, block: int) -> dict[str, int]:
    """Of a tile's bins along an axis: how many there are, where the first begins, where the last begins and ends."""
    starts = [at for at in range(256 * stride * block, 256 * stride * (block + 1), stride) if at < length]
    return {"bins": len(starts), "start": starts[0], "lastStart": starts[-1], "stop": min(starts[-1] + stride, length)}


def code(value: float | None) -> int:
    if value is None:
        return 0
    if value <= 0:
        return 1
    return max(1, min(255, 1 + math.floor(254 * (math.log2(value) + 32) / 32 + 0.5)))


def value(number: int) -> float | None:
    return None if number == 0 else 0.0 if number == 1 else 2.0 ** (32 * (number - 1) / 254 - 32)


def header(**fields: Any) -> dict[str, Any]:
    parts = [b"SLT1"]
    parts += [fields[name].to_bytes(1, "little") for name in ("dtype", "channel", "norm", "flags")]
    parts += [fields[name].to_bytes(2, "little") for name in ("rows", "columns")]
    parts += [fields[name].to_bytes(4, "little") for name in ("z", "y", "x")]
    parts += [struct.pack("<f", fields[name]) for name in ("log2min", "log2max")]
    return {**fields, "hex": b"".join(parts).hex()}


def pooled(weights: list[list[float]], allowed: list[list[int]], stride: int) -> dict[str, Any]:
    rows, columns = len(weights), len(weights[0])
    mean, largest, cells = [], [], []
    for top in range(0, rows, stride):
        lines: tuple[list[float | None], list[float | None], list[int]] = [], [], []
        for left in range(0, columns, stride):
            seen = [
                weights[i][j]
                for i in range(top, min(top + stride, rows))
                for j in range(left, min(left + stride, columns))
                if allowed[i][j]
            ]
            lines[0].append(sum(seen) / len(seen) if seen else None)
            lines[1].append(max(seen) if seen else None)
            lines[2].append(len(seen))
        mean.append([code(one) for one in lines[0]])
        largest.append([code(one) for one in lines[1]])
        cells.append(lines[2])
    return {"stride": stride, "cells": cells, "mean": mean, "max": largest}


def matrix(queries: int, keys: int, seed: int, sharp: float) -> dict[str, Any]:
    """A causal matrix with one strong link and, where it is sharp, weights too small for a code."""
    draw = random.Random(seed)
    allowed = [[int(j <= i + keys - queries) for j in range(keys)] for i in range(queries)]
    weights = []
    for i in range(queries):
        parts = [math.exp(sharp * draw.gauss(0, 1)) * allowed[i][j] for j in range(keys)]
        weights.append([float(f"{part / (sum(parts) or 1.0):.6g}") for part in parts])
    levels = [pooled(weights, allowed, stride) for stride in (1, 2, 4, 8)]
    return {"weights": weights, "allowed": allowed, "levels": levels}


def golden() -> dict[str, Any]:
    shapes = [(n, n) for n in LENGTHS] + [(300, 70), (70, 300), (1, 100_000), (5000, 257)]
    numbers = [1.0, 0.999, 0.5, 0.25, 0.1, 0.01, 1 / 3, 7.6e-6, 1e-8, 2.0**-31, 2.0**-32, 2.0**-33, 1e-30, 0.0, None]
    numbers += [2.0 ** (32 * (at + 0.5) / 254 - 32) * scale for at in (3, 100, 253) for scale in (0.9999, 1.0001)]
    base = {"dtype": 1, "channel": 0, "norm": 0, "flags": 0, "rows": 256, "columns": 256}
    headers = [
        header(**base, z=0, y=0, x=0, log2min=0.0, log2max=0.0),
        header(**base, z=9, y=511, x=510, log2min=-31.5, log2max=-0.25),
        header(
            **{**base, "channel": 1, "flags": 3, "rows": 3, "columns": 255}, z=4, y=7, x=1, log2min=-8.0, log2max=0.0
        ),
        header(
            **{**base, "dtype": 2, "channel": 2, "flags": 4, "rows": 2, "columns": 65535},
            z=5,
            y=70_000,
            x=0,
            log2min=-1.0,
            log2max=3.5,
        ),
    ]
    return {
        "tile": 256,
        "plans": [plan(*shape) for shape in shapes],
        "codes": [{"value": number, "code": code(number)} for number in numbers],
        "values": [{"code": number, "value": value(number)} for number in range(256)],
        "headers": headers,
        "matrices": [
            matrix(11, 11, seed=1, sharp=1.0),
            matrix(7, 13, seed=2, sharp=9.0),
            matrix(5, 2, seed=3, sharp=2.0),
        ],
    }


def text() -> str:
    """The file: one line for each entry of each list."""
    parts = []
    for name, entry in golden().items():
        lines = ",\n".join("  " + json.dumps(one) for one in entry) if isinstance(entry, list) else None
        parts.append(f'"{name}": ' + (json.dumps(entry) if lines is None else f"[\n{lines}\n]"))
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    (HERE / "golden.json").write_text(text())
