"""Codes and headers are the golden ones, and come back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnscope.atlas import codec
from attnscope.atlas.codec import Header, decode, encode, pack_floats, unpack
from attnscope.errors import ShapeError

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


@pytest.mark.parametrize("right", GOLDEN["codes"], ids=lambda right: str(right["value"]))
def test_values_have_the_golden_codes(right: dict) -> None:
    value = right["value"]
    assert encode(np.array([value or 0.0]), np.array([int(value is not None)])) == [right["code"]]


def test_codes_have_the_golden_values() -> None:
    found = decode(np.arange(256, dtype=np.uint8))
    right = [np.nan if entry["value"] is None else entry["value"] for entry in GOLDEN["values"]]
    np.testing.assert_allclose(found, right, rtol=1e-14)


def test_every_code_but_the_least_comes_back() -> None:
    codes = np.arange(256, dtype=np.uint8)
    assert np.array_equal(encode(np.nan_to_num(decode(codes)), codes > 0), codes)


def test_a_weight_is_at_most_four_and_a_half_percent_beside_its_code() -> None:
    weights = np.exp2(np.linspace(-31.9, 0, 100_000))
    assert np.abs(decode(encode(weights, np.ones_like(weights))) / weights - 1).max() < 0.045


def test_codes_rise_with_weights() -> None:
    weights = np.exp2(np.linspace(-40, 0, 10_000))
    codes = encode(weights, np.ones_like(weights)).astype(int)
    assert (np.diff(codes) >= 0).all()
    assert (codes.min(), codes.max()) == (1, 255)


def test_a_weight_a_rounding_above_one_is_one() -> None:
    assert encode(np.array([1.0000001], dtype=np.float32), np.array([1])) == [255]


@pytest.mark.parametrize("right", GOLDEN["headers"], ids=lambda right: f"{right['rows']}x{right['columns']}")
def test_headers_are_the_golden_bytes(right: dict) -> None:
    fields = {name: value for name, value in right.items() if name != "hex"}
    assert Header(**fields).pack().hex() == right["hex"]
    assert Header.unpack(bytes.fromhex(right["hex"]))._asdict() == fields
    assert len(right["hex"]) == 64


def test_floats_come_back_with_their_range() -> None:
    values = np.array([[0.25, np.nan, 0.0], [4.0, 1.0, 2.0]], dtype=np.float32)
    header, found = unpack(pack_floats(values, z=3, y=70_000, x=2, flags=codec.PARTIAL))
    np.testing.assert_array_equal(found, values)
    assert header == Header(codec.F32, codec.NONE, codec.PARTIAL, 2, 3, 3, 70_000, 2, -2.0, 2.0)


def test_floats_without_anything_above_zero_have_no_range() -> None:
    header, _ = unpack(pack_floats(np.full((1, 2), np.nan), z=0, y=0, x=0, flags=0))
    assert (header.log2min, header.log2max) == (0.0, 0.0)


def test_bytes_that_are_no_body_are_refused() -> None:
    body = pack_floats(np.ones((2, 2)), z=0, y=0, x=0, flags=0)
    for wrong in (b"", body[:31], b"SLT2" + body[4:]):
        with pytest.raises(ShapeError, match="SLT1"):
            Header.unpack(wrong)
    with pytest.raises(ShapeError, match="got 47 bytes"):
        unpack(body[:-1])


def test_more_columns_than_a_header_can_say_are_refused() -> None:
    with pytest.raises(ShapeError, match="65,535"):
        pack_floats(np.ones((1, 65_536)), z=0, y=0, x=0, flags=0)
