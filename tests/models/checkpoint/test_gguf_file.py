"""The reader of GGUF agrees with the gguf package on sound files, and refuses the others in little time and memory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGUFEndian, GGUFWriter

from attnscope.bench.memory import peak_extra_bytes
from attnscope.errors import CheckpointError
from attnscope.models.checkpoint import load, read_metadata
from attnscope.models.checkpoint.gguf_file import open_gguf
from tests.models.checkpoint.gguf_files import as_bytes, entry, tensor_entry, text

SMOLLM2 = Path(__file__).resolve().parents[3] / ".cache" / "models" / "smollm2-135m.gguf"


def test_metadata_are_those_of_the_gguf_package() -> None:
    fields = gguf.GGUFReader(SMOLLM2).fields
    expected = {name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")}
    found: dict[str, Any] = read_metadata(SMOLLM2)
    assert found == expected
    assert [type(value) for value in found.values()] == [type(value) for value in expected.values()]
    assert len(found["tokenizer.ggml.tokens"]) == 49152


def test_tensors_are_those_of_the_gguf_package() -> None:
    expected = {tensor.name: tensor for tensor in gguf.GGUFReader(SMOLLM2).tensors}
    with ExitStack() as files:
        _, stored = open_gguf(SMOLLM2, files)
        assert stored.keys() == expected.keys()
        for name in ("token_embd.weight", "blk.3.attn_q.weight", "blk.29.ffn_norm.weight"):
            tensor = expected[name]
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert stored[name].shape == numbers.shape
            assert stored[name].kind == tensor.tensor_type.name
            assert stored[name].num_bytes == tensor.n_bytes
            assert np.array_equal(stored[name].rows(5, 60).numpy(), numbers[5:60])


def test_every_type_of_metadata_is_read(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    values = {"uint8": 200, "int8": -5, "uint16": 60_000, "int16": -6, "uint32": 2**31, "int32": -7}
    values |= {"uint64": 2**63, "int64": -(2**60)}
    for name, value in values.items():
        getattr(writer, f"add_{name}")(name, value)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("flag", True)
    writer.add_string("text", "Grüße")
    writer.add_array("texts", ["a", "", "ß"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("flags", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    expected = values | {"f32": 0.5, "f64": 0.1, "flag": True, "text": "Grüße", "texts": ["a", "", "ß"]}
    assert read_metadata(tmp_path / "a.gguf") == expected | {
        "numbers": [1, 2, 3],
        "flags": [True, False],
        "general.architecture": "llama",
    }


def number(value: int, dtype: str = "<u8") -> bytes:
    return np.array([value], dtype).tobytes()


ARCHITECTURE = entry("general.architecture", 8, text("llama"))
ONE = tensor_entry("a", [4])
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read"),
    "another format": (b"PK\x03\x04" + bytes(100), "is not a GGUF file"),
    "only a magic": (b"GGUF", "ends within its header"),
    "version 1": (b"GGUF" + number(1, "<u4") + bytes(50), "GGUF version .* got 1;"),
    "version 99": (b"GGUF" + number(99, "<u4") + bytes(50), "GGUF version .* got 99;"),
    "big-endian": (b"GGUF" + number(3, ">u4") + bytes(50), "big-endian"),
    "2**60 metadata": (as_bytes(0, [ARCHITECTURE], counted=2**60), "metadata, got 1,152,921,504,606,846,976;"),
    "50,000 metadata": (as_bytes(0, [ARCHITECTURE], counted=50_000), "ends within its header"),
    "2**60 tensors": (as_bytes(2**60, [ARCHITECTURE]), "tensors, got 1,152,921,504,606,846,976;"),
    "a million tensors": (as_bytes(10**6, [ARCHITECTURE]), "ends within its header"),
    "2**60 texts": (as_bytes(0, [entry("a", 9, number(8, "<u4") + number(2**60))]), "elements in a list"),
    "2**60 numbers": (as_bytes(0, [entry("a", 9, number(4, "<u4") + number(2**60))]), "elements in a list"),
    "2**24 texts": (as_bytes(0, [entry("a", 9, number(8, "<u4") + number(2**24))]), "ends within its header"),
    "2**24 numbers": (as_bytes(0, [entry("a", 9, number(12, "<u4") + number(2**24))]), "ends within its header"),
    "many long lists": (
        as_bytes(0, [entry(str(i), 9, number(0, "<u4") + number(9 * 2**20) + bytes(9 * 2**20)) for i in range(2)]),
        "elements in a list",
    ),
    "a list of lists": (as_bytes(0, [entry("a", 9, number(9, "<u4") + number(1) + bytes(20))]), "metadata of .*type 9"),
    "an unknown type": (as_bytes(0, [entry("a", 77, bytes(8))]), "metadata of .*type 77"),
    "a text of 2**62 bytes": (as_bytes(0, [text(b"a", 2**62)]), "ends within its header"),
    "a name that is no text": (as_bytes(0, [entry("a", 8, text(b"\xff\xfe"))]), "not valid UTF-8"),
    "metadata twice": (as_bytes(0, [ARCHITECTURE, ARCHITECTURE]), "'general.architecture' twice"),
    "an alignment of 3": (as_bytes(0, [entry("general.alignment", 4, number(3, "<u4"))]), "general.alignment, got 3"),
    "an alignment of text": (as_bytes(0, [entry("general.alignment", 8, text("32"))]), "general.alignment, got '32'"),
    "dims of 2**40": (as_bytes(1, [], tensor_entry("a", [2**40, 2**40]) + bytes(99)), "past the end"),
    "dims of 2**64 - 1": (as_bytes(1, [], tensor_entry("a", [2**64 - 1] * 4) + bytes(99)), "past the end"),
    "dims of 0": (as_bytes(1, [], tensor_entry("a", [0]) + bytes(99)), "has shape"),
    "no dims": (as_bytes(1, [], tensor_entry("a", []) + bytes(99)), "has shape"),
    "5 dims": (as_bytes(1, [], tensor_entry("a", [1] * 5) + bytes(99)), "with 5 axes"),
    "a billion dims": (as_bytes(1, [], text("a") + number(10**9, "<u4")), "with 1000000000 axes"),
    "half a block": (as_bytes(1, [], tensor_entry("a", [33], kind=8) + bytes(99)), "blocks of 32"),
    "an unknown kind": (as_bytes(1, [], tensor_entry("a", [4], kind=999) + bytes(99)), "type 999"),
    "a tensor outside": (as_bytes(1, [], tensor_entry("a", [4], offset=2**50) + bytes(99)), "past the end"),
    "a tensor at the end of numbers": (
        as_bytes(1, [], tensor_entry("a", [4], offset=2**64 - 8) + bytes(99)),
        "past the end",
    ),
    "a tensor twice": (as_bytes(2, [], ONE + ONE + bytes(99)), "'a' twice"),
    "tensors that share bytes": (as_bytes(2, [], ONE + tensor_entry("b", [4], offset=8) + bytes(99)), "overlaps"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_damaged_or_hostile_is_refused(name: str, tmp_path: Path) -> None:
    content, message = HOSTILE[name]
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "model.gguf")


def test_a_sound_header_of_the_same_make_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(as_bytes(1, [ARCHITECTURE], ONE + bytes(99)))
    with ExitStack() as files:
        metadata, stored = open_gguf(tmp_path / "a.gguf", files)
        assert metadata == {"general.architecture": "llama"}
        assert stored["a"].rows(0, 4).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.02, 0.5, 0.9999])
def test_a_file_that_was_cut_short_is_refused(share: float, tmp_path: Path) -> None:
    with SMOLLM2.open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(int(SMOLLM2.stat().st_size * share)))
    with pytest.raises(CheckpointError, match=r"ends within its header|past the end"):
        load(tmp_path / "cut.gguf")


def test_a_big_endian_file_of_the_gguf_package_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "a.gguf", "llama", endianess=GGUFEndian.BIG)
    writer.add_uint32("llama.block_count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="big-endian"):
        read_metadata(tmp_path / "a.gguf")


def hostile_files(place: str):
    """All of them, tried once."""
    path = Path(place) / "model.gguf"
    path.write_bytes(as_bytes(0, [ARCHITECTURE]))
    with pytest.raises(CheckpointError):
        load(path)
    list(HOSTILE)

    def work() -> None:
        for content, _ in HOSTILE.values():
            path.write_bytes(content)
            with pytest.raises(CheckpointError):
                load(path)

    return work


def test_hostile_files_take_little_memory(tmp_path: Path) -> None:
    # One of them has a list of nine million numbers in nine million bytes, which are a pointer each in Python.
    assert peak_extra_bytes(hostile_files, str(tmp_path)) < 200e6
