"""Encodes weights as bytes: a header of 32 bytes, then one byte per bin on a logarithmic scale, or floats.

Code 0 is a masked bin. Codes 1 to 255 are weights from 2^-32 to 1 in steps of an eighth of an octave, with a relative
error of at most 4.5 %. Code 1 also stands for smaller weights and 0. Everything is little-endian.
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
CODES = 254  # steps between the lowest code of a weight and the highest
U8LOG, F32 = 1, 2
MEAN, MAX, NONE = 0, 1, 2
PARTLY_MASKED, PARTIAL, EXACT = 1, 2, 4  # some cells are masked; not all rows were read; bins are single cells
_LAYOUT = struct.Struct("<4s4B2H3I2f")
_MAGIC = b"SLT1"


class Header(NamedTuple):
    """The first 32 bytes of an encoded array."""

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
        """Return the header as bytes."""
        kind = self.dtype, self.channel, self.norm, self.flags
        try:
            return _LAYOUT.pack(_MAGIC, *kind, *self[3:8], self.log2min, self.log2max)
        except struct.error as error:
            raise ShapeError(f"expected at most 65,535 rows and columns, got {self}") from error

    @staticmethod
    def unpack(body: bytes) -> Header:
        """Read the header of an encoded array."""
        if len(body) < _LAYOUT.size or body[:4] != _MAGIC:
            raise ShapeError(f"expected {_MAGIC!r} and at least 32 bytes, got {body[:4]!r} and {len(body)} bytes")
        _, dtype, channel, norm, flags, rows, columns, z, y, x, log2min, log2max = _LAYOUT.unpack_from(body)
        return Header(dtype, channel, flags, rows, columns, z, y, x, log2min, log2max, norm)


def encode(values: NDArray, cells: NDArray) -> NDArray[np.uint8]:
    """Return the codes of weights; 0 where a bin has no unmasked cell.

    >>> encode(np.array([1.0, 0.5, 0.0, 0.0]), np.array([1, 1, 1, 0]))
    array([255, 247,   1,   0], dtype=uint8)
    """
    with np.errstate(divide="ignore"):
        logarithms = np.log2(values.astype(np.float64))
    steps = np.floor(CODES * (logarithms + OCTAVES) / OCTAVES + 0.5)
    return np.where(cells > 0, 1 + steps.clip(0, CODES), 0).astype(np.uint8)


def decode(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the weight in the middle of each code's step; 0 for the lowest code, NaN for masked bins.

    >>> decode(np.array([255, 1, 0], dtype=np.uint8))
    array([ 1.,  0., nan])
    """
    weights = np.exp2((codes.astype(np.float64) - 1) * OCTAVES / CODES - OCTAVES)
    return np.where(codes > 0, np.where(codes > 1, weights, 0.0), np.nan)


def log2_range(values: NDArray) -> tuple[float, float]:
    """Return log2 of the smallest and the largest positive value; 0 and 0 if there is none."""
    positive = values[values > 0]
    return (math.log2(positive.min()), math.log2(positive.max())) if positive.size else (0.0, 0.0)


def pack_codes(values: NDArray, cells: NDArray, channel: int, *, z: int, y: int, x: int, flags: int) -> bytes:
    """Encode weights (rows, columns) as one code per bin; `cells` counts the unmasked cells of each bin."""
    codes = encode(values, cells)
    header = Header(U8LOG, channel, flags, codes.shape[0], codes.shape[1], z, y, x, *log2_range(values))
    return header.pack() + codes.tobytes()


def pack_floats(values: NDArray, *, z: int, y: int, x: int, flags: int) -> bytes:
    """Encode floats (rows, columns)."""
    rows, columns = values.shape
    header = Header(F32, NONE, flags, rows, columns, z, y, x, *log2_range(values))
    return header.pack() + values.astype("<f4").tobytes()


def unpack(body: bytes) -> tuple[Header, NDArray]:
    """Decode an encoded array into its header and its values (rows, columns): codes or floats."""
    header = Header.unpack(body)
    dtype = np.dtype({U8LOG: "u1", F32: "<f4"}[header.dtype])
    if len(body) != _LAYOUT.size + header.rows * header.columns * dtype.itemsize:
        raise ShapeError(f"expected the bytes of {header.rows} x {header.columns} values, got {len(body)} bytes")
    return header, np.frombuffer(body, dtype, offset=_LAYOUT.size).reshape(header.rows, header.columns)
