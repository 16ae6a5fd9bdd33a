"""Weights as bytes: a header of 32 bytes, and one byte a bin on a logarithmic scale, or floats.

A code is 0 where the mask hides a bin, and else 1 ... 255 for 2^-32 ... 1: steps of an eighth of an octave, at most
4.5 % beside the weight. Code 1 is also everything below, and 0. Everything is little-endian.
In: arrays. Out: bytes, and back. Does not know: tiles, zoom levels.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.errors import ShapeError

OCTAVES = 32
CODES = 254  # steps between the least code of a weight and the greatest
U8LOG, F32 = 1, 2
MEAN, MAX, NONE = 0, 1, 2
PARTLY_MASKED, PARTIAL, EXACT = (
    1,
    2,
    4,
)  # the mask hides some cells; not all cells were looked at; bins are single cells
_LAYOUT = struct.Struct("<4s4B2H3I2f")
_MAGIC = b"SLT1"


class Header(NamedTuple):
    """The first 32 bytes of a body."""

    dtype: int
    channel: int
    flags: int
    rows: int
    columns: int
    z: int
    y: int
    x: int
    log2min: float = 0.0
    log2max: float = 0.0
    norm: int = 0

    def pack(self) -> bytes:
        """As bytes."""
        kind = self.dtype, self.channel, self.norm, self.flags
        try:
            return _LAYOUT.pack(_MAGIC, *kind, *self[3:8], self.log2min, self.log2max)
        except struct.error as error:
            raise ShapeError(f"a body holds at most 65,535 rows and columns, got {self}") from error

    @staticmethod
    def unpack(body: bytes) -> Header:
        """The header of a body."""
        if len(body) < _LAYOUT.size or body[:4] != _MAGIC:
            raise ShapeError(f"a body begins with {_MAGIC!r} and has 32 bytes at least, got {body[:4]!r}, {len(body)}")
        _, dtype, channel, norm, flags, rows, columns, z, y, x, log2min, log2max = _LAYOUT.unpack_from(body)
        return Header(dtype, channel, flags, rows, columns, z, y, x, log2min, log2max, norm)


def encode(values: NDArray, cells: NDArray) -> NDArray[np.uint8]:
    """The codes of weights; 0 where there is no cell.

    >>> encode(np.array([1.0, 0.5, 0.0, 0.0]), np.array([1, 1, 1, 0]))
    array([255, 247,   1,   0], dtype=uint8)
    """
    with np.errstate(divide="ignore"):
        logarithms = np.log2(values.astype(np.float64))
    steps = np.floor(CODES * (logarithms + OCTAVES) / OCTAVES + 0.5)
    return np.where(cells > 0, 1 + steps.clip(0, CODES), 0).astype(np.uint8)


def decode(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The weights in the middle of each code's step; 0 for the least code, NaN for what the mask hides.

    >>> decode(np.array([255, 1, 0], dtype=np.uint8))
    array([ 1.,  0., nan])
    """
    weights = np.exp2((codes.astype(np.float64) - 1) * OCTAVES / CODES - OCTAVES)
    return np.where(codes > 0, np.where(codes > 1, weights, 0.0), np.nan)


def log2_range(values: NDArray) -> tuple[float, float]:
    """The logarithms of the smallest and the largest value above 0; 0 and 0 where there is none."""
    some = values[values > 0]
    return (math.log2(some.min()), math.log2(some.max())) if some.size else (0.0, 0.0)


def pack_floats(values: NDArray, *, z: int, y: int, x: int, flags: int) -> bytes:
    """A body of floats, (rows, columns)."""
    rows, columns = values.shape
    header = Header(F32, NONE, flags, rows, columns, z, y, x, *log2_range(values))
    return header.pack() + values.astype("<f4").tobytes()


def unpack(body: bytes) -> tuple[Header, NDArray]:
    """The header and the values of a body, (rows, columns): codes or floats."""
    header = Header.unpack(body)
    dtype = np.dtype({U8LOG: "u1", F32: "<f4"}[header.dtype])
    if len(body) != _LAYOUT.size + header.rows * header.columns * dtype.itemsize:
        raise ShapeError(f"a body of {header.rows} x {header.columns} does not have {len(body)} bytes")
    return header, np.frombuffer(body, dtype, offset=_LAYOUT.size).reshape(header.rows, header.columns)
