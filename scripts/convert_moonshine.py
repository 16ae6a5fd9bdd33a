"""Write the speech model of the wheel moonshine-voice as a folder that transformers opens.

Moonshine tiny (Jeffries et al., 2024, arXiv 2410.15608; English, MIT licence) is stored as two graphs of ONNX Runtime
with 8-bit parameters. They are made float32: (number - zero point) * scale. The names of the parameters follow from the
names of values in the graphs. Later wheels have no model. Usage:
`pip download --no-deps moonshine-voice==0.1.0`, then `python scripts/convert_moonshine.py WHEEL OUTPUT_FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import MoonshineConfig, MoonshineForConditionalGeneration, PreTrainedTokenizerFast

ASSETS = "moonshine_voice/assets"
ENCODER, DECODER = "encoder_model.ort", "decoder_model_merged.ort"
NUMBERS = {1: "<f4", 2: "<u1", 3: "<i1", 7: "<i8"}  # the data types of ONNX that occur
SAMPLE_RATE = 16_000


class Table:
    """A table of a FlatBuffers file, read by the index of a field; see https://flatbuffers.dev/internals."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self.fields = at - self._number("<i", at)

    def _number(self, kind: str, at: int) -> int:
        return struct.unpack_from(kind, self.data, at)[0]

    def _place(self, field: int) -> int | None:
        """Where a field is stored; None if it has its default."""
        entry = 4 + 2 * field
        offset = self._number("<H", self.fields + entry) if entry < self._number("<H", self.fields) else 0
        return self.at + offset if offset else None

    def number(self, field: int, kind: str = "<i") -> int:
        """A number; 0 by default."""
        place = self._place(field)
        return 0 if place is None else self._number(kind, place)

    def table(self, field: int) -> Table | None:
        """A table inside of this one."""
        place = self._place(field)
        return None if place is None else Table(self.data, place + self._number("<I", place))

    def _vector(self, field: int) -> tuple[int, int]:
        """Where a vector or text begins, and its length."""
        place = self._place(field)
        if place is None:
            return 0, 0
        start = place + self._number("<I", place)
        return start + 4, self._number("<I", start)

    def array(self, field: int, kind: str) -> np.ndarray:
        """A vector of numbers. For raw bytes, the length is that of the bytes."""
        start, length = self._vector(field)
        return np.frombuffer(self.data, kind, length, start)

    def text(self, field: int) -> str:
        """A text."""
        return self.array(field, "<u1").tobytes().decode()

    def texts(self, field: int) -> list[str]:
        """A vector of texts."""
        return [self.data[at + 4 : at + 4 + self._number("<I", at)].decode() for at in self._elements(field)]

    def tables(self, field: int) -> list[Table]:
        """A vector of tables."""
        return [Table(self.data, at) for at in self._elements(field)]

    def _elements(self, field: int) -> Iterator[int]:
        start, length = self._vector(field)
        for at in range(start, start + 4 * length, 4):
            yield at + self._number("<I", at)


def read_graphs(data: bytes) -> list[Table]:
    """The graph of a model of ONNX Runtime, and the graphs inside of its nodes."""
    root = Table(data, struct.unpack_from("<I", data)[0])
    model = root.table(1)
    found = model.table(7) if model else None
    if found is None:
        raise SystemExit("convert_moonshine: expected a model of ONNX Runtime")
    inner = [attribute.table(7) for node in found.tables(2) for attribute in node.tables(10)]
    return [found, *(graph for graph in inner if graph)]


def read_parameters(data: bytes) -> dict[str, np.ndarray]:
    """The parameters of a model of ONNX Runtime under the names that they have in transformers."""
    graphs = read_graphs(data)
    stored = {name: array for graph in graphs for name, array in _tensors(graph)}
    found = {}
    for name, array in stored.items():
        parameter = re.sub(r"_merged_0|_add_tensor", "", name)
        if re.fullmatch(r"(model\.decoder\.)?(layers\.\d+\.)?[a-z_0-9.]+\.(weight|bias)", parameter):
            found[parameter] = array
        elif parameter.endswith("embed_tokens.weight_quantized"):
            found[parameter.removesuffix("_quantized")] = _to_float(stored, name.removesuffix("_quantized"))
    for node in (node for graph in graphs for node in graph.tables(2)):
        weight = [name.removesuffix("_quantized") for name in node.texts(8) if name.startswith("onnx::MatMul")]
        match = re.fullmatch(r"/(.*)/(MatMul|Add)_output_0", node.texts(9)[0])
        if node.text(5) in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul") and match:
            found[f"{match[1].replace('/', '.')}.weight"] = _to_float(stored, weight[0]).T
        elif node.text(5) in ("Mul", "Add") and "/groupnorm/" in node.texts(9)[0]:
            name = "groupnorm.weight" if node.text(5) == "Mul" else "groupnorm.bias"
            found[name] = stored[node.texts(8)[1]][:, 0]
    return found


def _tensors(graph: Table) -> Iterator[tuple[str, np.ndarray]]:
    for tensor in graph.tables(0):
        kind = NUMBERS.get(tensor.number(3))
        if kind:
            raw = tensor.array(4, "<u1").tobytes()
            yield tensor.text(0), np.frombuffer(raw, kind).reshape(tensor.array(2, "<i8"))


def _to_float(stored: dict[str, np.ndarray], name: str) -> np.ndarray:
    """An 8-bit tensor as float32."""
    zero, scale = (stored[f"{name}_{part}"].astype(np.float32) for part in ("zero_point", "scale"))
    return (stored[f"{name}_quantized"].astype(np.float32) - zero) * scale


def make_model(assets: dict[str, bytes]) -> MoonshineForConditionalGeneration:
    """The model, with every parameter from the files."""
    found = {f"model.encoder.{name}": array for name, array in read_parameters(assets[ENCODER]).items()}
    found |= read_parameters(assets[DECODER])
    model = MoonshineForConditionalGeneration(MoonshineConfig(pad_token_id=2))
    state = {name: torch.from_numpy(array.copy()) for name, array in found.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    wrong = [*unexpected, *(name for name in missing if name != "proj_out.weight")]  # which is that of the embedding
    if wrong:
        raise SystemExit(f"convert_moonshine: these parameters differ from those of transformers: {wrong}")
    model.tie_weights()
    return model.eval()


def make_tokenizer(data: bytes) -> PreTrainedTokenizerFast:
    """A tokenizer that decodes; texts are not tokenized, because the file has no merges."""
    tokens, at = [], 0
    while at < len(data):
        length, at = data[at], at + 1
        if length >= 128:
            length, at = length - 128 + 128 * data[at], at + 1
        tokens.append(data[at : at + length])
        at += length
    names: dict[str, int] = {}
    for index, token in enumerate(tokens):
        text = f"<0x{token[0]:02X}>" if len(token) == 1 and 3 <= index < 259 else token.decode(errors="replace")
        names[text if text not in names else f"<unused {index}>"] = index
    tokenizer: Any = Tokenizer(models.BPE(names, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in ("<unk>", "<s>", "</s>")])
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def main() -> None:
    """Read the wheel, and write model, tokenizer and recordings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as wheel:
        names = (ENCODER, DECODER, "tokenizer.bin")
        assets = {name: wheel.read(f"{ASSETS}/tiny-en/{name}") for name in names}
        options.output.mkdir(parents=True, exist_ok=True)
        for name in wheel.namelist():
            if name.startswith(ASSETS) and name.endswith(".wav"):
                (options.output / Path(name).name).write_bytes(wheel.read(name))
    make_model(assets).save_pretrained(options.output)
    make_tokenizer(assets["tokenizer.bin"]).save_pretrained(options.output)
    extractor = {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "sampling_rate": SAMPLE_RATE,
        "do_normalize": False,
    }
    (options.output / "preprocessor_config.json").write_text(json.dumps(extractor))


if __name__ == "__main__":
    main()
