"""A trace that was saved and opened is the same trace; what is no trace, or a broken one, is refused with a reason."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import random
import shutil
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from torch import Tensor, nn

from attnscope.attention import Bias, Causal, Full, Mask, Padding, Softcap, from_bool
from attnscope.attention.algebra import Sizes
from attnscope.bench.memory import in_fresh_process, peak_extra_bytes
from attnscope.errors import TraceError, UnsupportedError
from attnscope.models.checkpoint import safetensors_writer
from attnscope.models.text.tokenizer import Tokenizer
from attnscope.recording import Trace, record
from attnscope.recording.call import Call
from attnscope.recording.files import file_check, saving
from attnscope.recording.files.manifest import content_hash
from attnscope.recording.files.opening import open_trace
from attnscope.recording.hooks.input_ids import Texts
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.statistics import StatisticsLayer
from attnscope.recording.layers.step_masks import StackedMask
from attnscope.recording.layers.step_masks import Step as Rows
from tests.recording.zoo import EXHIBITS

BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
WORDS = ["to", "be", "or", "not", "ζωή", "?"]


def tokenizer() -> Tokenizer:
    backend = Backend(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(backend)


def of_exhibit(name: str) -> Trace:
    model: Any = BY_NAME[name].build()
    with torch.no_grad(), record(model) as trace:
        model(**BY_NAME[name].inputs(model))
    return trace


def generated() -> Trace:
    model: Any = BY_NAME["Llama"].build()
    ids = torch.tensor([[0, 0, 5, 6, 7], [4, 5, 6, 7, 8]])
    with torch.no_grad(), record(model, values=True) as trace:
        model.generate(
            ids, attention_mask=(ids > 0).long(), max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0
        )
    return trace


def of_torch() -> Trace:
    model = nn.Transformer(16, 2, 1, 2, 32, batch_first=True).eval()
    source, target = torch.randn(2, 6, 16), torch.randn(2, 5, 16)
    hidden = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with torch.no_grad(), record(model, values=True) as trace:
        model(
            source, target, tgt_mask=nn.Transformer.generate_square_subsequent_mask(5), memory_key_padding_mask=hidden
        )
    return trace


def of_statistics() -> Trace:
    model: Any = BY_NAME["Llama"].build()
    with torch.no_grad(), record(model, keep="statistics") as trace:
        model(**BY_NAME["Llama"].inputs(model))
    return trace


def of_a_summary() -> Trace:
    layer = layer_of()
    trace = Trace("summed")
    trace.layers = {
        "one": StatisticsLayer.from_summary("one", True, layer.shape, layer.heads, layer.matrix().summary(3, 4))
    }
    return trace


def of_weights() -> Trace:
    weights = torch.rand(3, 2, 4, 6, 6).softmax(-1).transpose(-1, -2)
    return Trace.from_attentions(list(weights), tokens=["a", "", "ζ", "\ud800", "ab\n", "🙂"])


TRACES: dict[str, Callable[[], Trace]] = {
    **{name: partial(of_exhibit, name) for name in ("Llama", "Gemma 2", "gpt-oss", "T5", "BART", "Llama 4", "Swin")},
    "generated": generated,
    "torch": of_torch,
    "statistics": of_statistics,
    "summary": of_a_summary,
    "weights": of_weights,
}


def layer_of(name: str = "one", mask: Mask = Full(), *, dtype: torch.dtype = torch.float32, **more: Any) -> Layer:
    query, key = torch.randn(2, 4, 9, 8).to(dtype), torch.randn(2, 2, 9, 8).to(dtype)
    return Layer(name, Call(query=query, key=key, value=None, mask=mask, scale=None, **more), cross=False)


def trace_of(*layers: Layer, ids: Tensor | None = None) -> Trace:
    trace = Trace("ours", tokenizer())
    trace.layers = {layer.name: layer for layer in layers}
    trace.texts = [Texts("", ids)] if ids is not None else []
    return trace


def small() -> Trace:
    """Two layers of equal sizes with a shared mask and a score, and texts."""
    padding = Padding(keep=torch.tensor([[True] * 9, [False] * 2 + [True] * 7]))
    score = Softcap(5.0) + Bias(torch.randn(4, 1, 9))
    layers = [layer_of(name, Causal() & padding, score_mod=score) for name in ("one", "two")]
    return trace_of(*layers, ids=torch.tensor([[0, 1, 2, 3, 0, 1, 4, 5, 4], [4, 4, 4, 2, 2, 2, 1, 1, 1]]))


def assert_same(found: Trace, expected: Trace) -> None:
    assert list(found) == list(expected)
    assert (found.model, found.without_softmax, found.errors) == (
        expected.model,
        expected.without_softmax,
        expected.errors,
    )
    for name in expected:
        ours, theirs = found.layer(name), expected.layer(name)
        assert type(ours) is type(theirs)
        assert (ours.name, ours.cross, ours.shape) == (theirs.name, theirs.cross, theirs.shape)
        for batch in range(ours.shape[0]):
            assert found.labels(name, batch) == expected.labels(name, batch)
        if isinstance(ours, Layer) and isinstance(theirs, Layer):
            assert_same_call(ours.merge_calls(), theirs.merge_calls(), Sizes(*ours.shape))
            assert (ours.rows, ours.columns) == (theirs.rows, theirs.columns)
        if isinstance(ours, StatisticsLayer) and isinstance(theirs, StatisticsLayer):
            assert all(map(torch.equal, ours.summary(), theirs.summary()))
            assert ours.nbytes == sum(tensor.nbytes for tensor in theirs.summary())
        else:
            torch.testing.assert_close(found[name].to_dense(), expected[name].to_dense(), atol=1e-6, rtol=0)
    for batch in range(len(expected.texts[-1].ids) if expected.texts else 1):
        assert found.tokens(batch) == expected.tokens(batch)
        assert found.spans(batch) == expected.spans(batch)


def assert_same_call(ours: Call, theirs: Call, sizes: Sizes) -> None:
    for name in ("query", "key", "value", "lse"):
        one, two = getattr(ours, name), getattr(theirs, name)
        assert (one is None) == (two is None)
        if one is not None:
            assert one.dtype == two.dtype
            assert torch.equal(one, two)
    assert (ours.scale, ours.row, ours.column) == (theirs.scale, theirs.row, theirs.column)
    assert torch.equal(ours.mask.to_dense(sizes).expand(sizes), theirs.mask.to_dense(sizes).expand(sizes))
    assert repr(ours.score_mod) == repr(theirs.score_mod)


@pytest.mark.parametrize("make", TRACES.values(), ids=TRACES.keys())
def test_what_was_recorded_comes_back(make: Callable[[], Trace], tmp_path: Path) -> None:
    trace = make()
    trace.errors = {"a": 1e-7, "b": float("inf")}
    trace.save(tmp_path / "new" / "trace")
    found = open_trace(tmp_path / "new" / "trace", verify=True)
    assert_same(found, trace)
    found.save(tmp_path / "again")
    assert_same(open_trace(tmp_path / "again"), trace)
    names = [json.loads((tmp_path / name / "trace.json").read_text())["content"] for name in ("new/trace", "again")]
    assert names[0] == names[1], "the same trace has the same content hash"


def test_the_blocks_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    trace = small()
    trace.save(tmp_path)
    found = open_trace(tmp_path)
    assert torch.equal(found["one"].to_dense(), trace["one"].to_dense())
    assert torch.equal(found["two"][..., 3:5, :], trace["two"][..., 3:5, :])


def test_tokens_need_no_tokenizer_any_more(tmp_path: Path) -> None:
    trace = small()
    trace.save(tmp_path)
    found = open_trace(tmp_path)
    assert found.tokens() == ["to", "be", "or", "not", "to", "be", "ζωή", "?", "ζωή"]
    assert found.tokens(-1) == found.tokens(1) == ["ζωή"] * 3 + ["or"] * 3 + ["be"] * 3
    assert found.labels("one", 1) == (found.tokens(1), found.tokens(1))
    spans = found.spans()
    assert spans == trace.spans()
    assert spans is not None
    assert [spans[0][start:end] for start, end in spans[1]] == found.tokens()
    with pytest.raises(IndexError):
        found.tokens(2)


def test_ids_that_the_tokenizer_does_not_know_are_kept_as_ids(tmp_path: Path) -> None:
    trace_of(layer_of(), ids=torch.tensor([[0, 99]])).save(tmp_path)
    assert open_trace(tmp_path).tokens() == ["0", "99"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_every_dtype_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    trace = trace_of(layer_of(dtype=dtype))
    trace.save(tmp_path)
    layer, expected = open_trace(tmp_path).layer("one"), trace.layer("one")
    assert isinstance(layer, Layer)
    assert isinstance(expected, Layer)
    assert torch.equal(layer.merge_calls().query.view(torch.uint8), expected.merge_calls().query.view(torch.uint8))


def test_an_empty_trace_comes_back(tmp_path: Path) -> None:
    Trace("nothing").save(tmp_path)
    found = open_trace(tmp_path)
    assert (found.model, len(found), found.tokens()) == ("nothing", 0, None)


def test_other_programs_can_read_the_files(tmp_path: Path) -> None:
    trace = small()
    trace.save(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "layers" / "00001.safetensors")
    layer = trace.layer("two")
    assert isinstance(layer, Layer)
    assert torch.equal(tensors["query"], layer.merge_calls().query)
    entry = json.loads((tmp_path / "trace.json").read_text())["layers"][1]["file"]
    content = (tmp_path / entry["name"]).read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["num_bytes"], entry["sha256"])


def test_a_strided_tensor_is_written_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_writer, "PIECE_BYTES", 64)
    layer = layer_of()
    call = layer.merge_calls()
    turned = torch.randn(9, 8, 2, 4).permute(2, 3, 0, 1)
    layer = Layer(
        "one",
        Call(query=turned, key=call.key[:, :1].expand(2, 2, 9, 8), value=None, mask=Full(), scale=1.0),
        cross=True,
    )
    trace_of(layer).save(tmp_path)
    found = open_trace(tmp_path, verify=True).layer("one")
    assert isinstance(found, Layer)
    assert torch.equal(found.merge_calls().query, turned)
    assert torch.equal(found.merge_calls().key, layer.merge_calls().key)


def test_masks_that_layers_share_are_written_once_and_shared_again(tmp_path: Path) -> None:
    table = torch.rand(2, 1, 9, 9) > 0.3
    padding = Padding(keep=torch.rand(2, 9) > 0.2)
    bias = Bias(torch.randn(1, 4, 9, 9))
    layers = [layer_of(f"{at}", from_bool(attend=table) & padding, score_mod=bias) for at in range(30)]
    trace_of(*layers).save(tmp_path)
    assert (tmp_path / "rules.safetensors").stat().st_size < 2 * (table.nbytes + 18 + bias.values.nbytes)
    found = [layer.merge_calls() for layer in open_trace(tmp_path).layers.values() if isinstance(layer, Layer)]
    assert len(found) == 30
    assert len({id(call.mask) for call in found}) == len({id(call.score_mod) for call in found}) == 1


def test_a_long_answer_in_steps_opens_fast(tmp_path: Path) -> None:
    count = 100_000
    steps = [Rows(Causal(), at, at + 1, 0, at + 1) for at in range(count)]
    layers = {}
    for name in map(str, range(4)):
        query = torch.zeros(1, 1, count, 1)
        mask = StackedMask(tuple(steps))
        layers[name] = Layer(name, Call(query=query, key=query, value=None, mask=mask, scale=None), cross=False)
    trace = Trace("long")
    trace.layers = layers
    trace.save(tmp_path)
    assert (tmp_path / "trace.json").stat().st_size < 10_000
    begun = time.process_time()
    found = open_trace(tmp_path)
    assert time.process_time() - begun < 3
    assert found["0"].shape == (1, 1, count, count)


def big_trace(folder: str) -> None:
    """300 MB in four layers."""
    trace = Trace("big")
    for name in map(str, range(4)):
        query, key = torch.randn(2, 1, 8, 36_000, 32, dtype=torch.float32)
        trace.layers[name] = Layer(name, Call(query=query, key=key, value=None, mask=Causal(), scale=None), cross=False)
    trace.save(folder)


def opening(folder: str) -> Callable[[], object]:
    Trace("small").save(f"{folder}-small")
    open_trace(f"{folder}-small")
    return lambda: open_trace(folder)


def opening_and_reading(folder: str) -> Callable[[], object]:
    opening(folder)
    return lambda: open_trace(folder)["2"].head(3)[..., 5_000, :]


def strided(count: int) -> Trace:
    """Neither query nor key is contiguous, each of 1 KB a token."""
    both = torch.ones(1, count, 8, 2, 32).transpose(1, 2)
    call = Call(query=both[:, :, :, 0], key=both[:, :, :, 1], value=None, mask=Causal(), scale=None)
    trace = Trace("strided")
    trace.layers = {"0": Layer("0", call, cross=False)}
    return trace


def saving_strided(folder: str) -> Callable[[], object]:
    strided(10_000).save(f"{folder}-small")
    trace = strided(100_000)
    return lambda: trace.save(folder)


def test_a_large_trace_is_mapped_and_not_read(tmp_path: Path) -> None:
    folder = str(tmp_path / "big")
    in_fresh_process(big_trace, folder)
    assert sum(path.stat().st_size for path in Path(folder).rglob("*.safetensors")) > 280e6
    begun = time.process_time()
    open_trace(folder)
    assert time.process_time() - begun < 1
    assert peak_extra_bytes(opening, folder) < 30e6
    assert peak_extra_bytes(opening_and_reading, folder) < 60e6


def test_saving_copies_a_piece_at_a_time(tmp_path: Path) -> None:
    assert peak_extra_bytes(saving_strided, str(tmp_path / "trace")) < 20e6  # query and key have 100 MB each


def test_statistics_of_before_pairings_were_kept_are_opened_without(tmp_path: Path) -> None:
    of_a_summary().save(tmp_path / "trace")
    found = manifest(tmp_path / "trace")
    assert found["layers"][0].pop("pairings") == []
    write_manifest(tmp_path / "trace", found)
    layer = open_trace(tmp_path / "trace", verify=True).layer("one")
    assert isinstance(layer, StatisticsLayer)
    assert layer.pairings == ()
    assert layer.begins is None


@pytest.mark.parametrize(
    "names",
    [
        ["own", "next", "duplicate"],
        ["own", "next", "duplicate", "duplicate"],
        ["own", "next", "duplicate", "theirs"],
        ["own", "next", "duplicate", "start"],
        "own",
    ],
)
def test_names_of_pairings_that_are_not_there_are_refused(names: object, tmp_path: Path) -> None:
    of_statistics().save(tmp_path / "trace")
    found = manifest(tmp_path / "trace")
    assert found["layers"][0]["pairings"] == ["own", "next", "duplicate", "induction"]
    changing("layers", 0, "pairings", to=names)(tmp_path / "trace")
    with pytest.raises(TraceError, match="pairings"):
        open_trace(tmp_path / "trace")


# What is refused. Each case changes a folder that a trace was saved to.

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "trace"
    torch.manual_seed(0)
    small().save(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "trace")
    return tmp_path / "trace"


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "trace.json").read_text())


def write_manifest(folder: Path, found: dict[str, Any]) -> None:
    """As somebody would who knows how a trace is made, with a hash that is right if there can be one."""
    with suppress(TraceError):
        found["content"] = content_hash(found)
    (folder / "trace.json").write_text(json.dumps(found))


def changing(*path: str | int, to: object) -> Change:
    """Set one field of the manifest."""

    def change(folder: Path) -> None:
        found = manifest(folder)
        inner: Any = found
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to
        write_manifest(folder, found)

    return change


def without(*path: str | int) -> Change:
    def change(folder: Path) -> None:
        found = manifest(folder)
        inner: Any = found
        for name in path[:-1]:
            inner = inner[name]
        del inner[path[-1]]
        write_manifest(folder, found)

    return change


def text_of_manifest(make: Callable[[str], str | bytes]) -> Change:
    def change(folder: Path) -> None:
        text = make((folder / "trace.json").read_text())
        (folder / "trace.json").write_bytes(text if isinstance(text, bytes) else text.encode())

    return change


def bytes_of(name: str, make: Callable[[bytes], bytes], *, in_manifest: bool = True) -> Change:
    """Change the bytes of a file; if `in_manifest`, the manifest has the new size and hash."""

    def change(folder: Path) -> None:
        content = make((folder / name).read_bytes())
        (folder / name).write_bytes(content)
        found = manifest(folder)
        entries = [found["texts"], found["rules"], *found["layers"]]
        for entry in entries if in_manifest else []:
            if entry["file"] is not None and entry["file"]["name"] == name:
                entry["file"] |= {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        write_manifest(folder, found)

    return change


def header_of(name: str, make: Callable[[dict[str, Any]], object], data: Callable[[bytes], bytes] = bytes) -> Change:
    """Change the header of a safetensors file."""

    def rewritten(content: bytes) -> bytes:
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + length])
        header = make(header) or header
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + data(content[8 + length :])

    return bytes_of(name, rewritten)


def tensors_of(name: str, make: Callable[[dict[str, Tensor]], object]) -> Change:
    """Change tensors of a file."""

    def change(folder: Path) -> None:
        tensors = safetensors.torch.load_file(folder / name)
        make(tensors)

        def rewritten(_: bytes) -> bytes:
            return safetensors.torch.save(tensors, {"file": name})

        bytes_of(name, rewritten)(folder)

    return change


def swapped(folder: Path) -> None:
    one, two = (folder / "layers" / f"0000{at}.safetensors" for at in range(2))
    one.rename(folder / "three")
    two.rename(one)
    (folder / "three").rename(two)


def linked_out(name: str) -> Change:
    def change(folder: Path) -> None:
        outside = folder.parent / "outside"
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)

    return change


def layers_linked_out(folder: Path) -> None:
    (folder / "layers").rename(folder.parent / "elsewhere")
    (folder / "layers").symlink_to(folder.parent / "elsewhere")


def as_pipe(folder: Path) -> None:
    (folder / FIRST).unlink()
    os.mkfifo(folder / FIRST)


def as_folder(folder: Path) -> None:
    (folder / FIRST).unlink()
    (folder / FIRST).mkdir()


def pickled(folder: Path) -> None:
    (folder / FIRST).unlink()
    torch.save({"query": torch.zeros(3)}, folder / FIRST)
    bytes_of(FIRST, bytes)(folder)


def put(name: str, value: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.update({name: value})


def many_layers(folder: Path) -> None:
    found = manifest(folder)
    found["layers"] = [{"a": 1} for _ in range(30_000)]
    write_manifest(folder, found)


def many_nodes(folder: Path) -> None:
    found = manifest(folder)
    found["rules"]["expressions"] = [{"kind": "full"}] * 250_000
    write_manifest(folder, found)


FIRST = "layers/00000.safetensors"
TEXT = "texts.safetensors"
RULE = "rules.safetensors"
NOTHING = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
LAYER = ("layers", 0)
FILE = ("layers", 0, "file")

HOSTILE: dict[str, Change] = {
    # the folder
    "no manifest": lambda folder: (folder / "trace.json").unlink(),
    "no layer": lambda folder: (folder / FIRST).unlink(),
    "no texts": lambda folder: (folder / TEXT).unlink(),
    "no rules": lambda folder: (folder / RULE).unlink(),
    "two files swapped": swapped,
    "a link out of the folder": linked_out(FIRST),
    "a manifest that links out": linked_out("trace.json"),
    "a folder that links out": layers_linked_out,
    "a pipe": as_pipe,
    "a folder for a file": as_folder,
    "a link to itself": lambda folder: ((folder / FIRST).unlink(), (folder / FIRST).symlink_to(folder / FIRST))[0],
    # the manifest as a text
    "an empty manifest": text_of_manifest(lambda text: ""),
    "a manifest cut off": text_of_manifest(lambda text: text[: len(text) // 2]),
    "a list": text_of_manifest(lambda text: f"[{text}]"),
    "invalid UTF-8": text_of_manifest(lambda text: text.encode().replace(b"ours", b"\xff\xfe")),
    "a changed number": text_of_manifest(lambda text: text.replace('"row": 0', '"row": 1')),
    "a key that stands twice": text_of_manifest(lambda text: text.replace('"row"', '"row": 0, "row"', 1)),
    "a pickle for a manifest": text_of_manifest(lambda text: pickle.dumps({"format": "attnscope trace"})),
    "deep nesting": text_of_manifest(lambda text: '{"format":' * 100_000),
    "deep nesting that ends": text_of_manifest(lambda text: '{"format":' + "[" * 5000 + "]" * 5000 + "}"),
    "a bomb of lists": text_of_manifest(lambda text: '{"layers":[' + "[]," * 5_000_000 + "[]]}"),
    "a bomb of objects": text_of_manifest(lambda text: '{"layers":[' + "{}," * 900_000 + "{}]}"),
    "too many bytes": text_of_manifest(lambda text: text + " " * 17 * 2**20),
    "a number of many digits": text_of_manifest(lambda text: text.replace('"row": 0', '"row": ' + "9" * 10_000)),
    # what it is
    "another format": changing("format", to="attnscope model"),
    "no format": without("format"),
    "a newer version": changing("version", to=3),
    "a version that is text": changing("version", to="1"),
    "version true": changing("version", to=True),
    "version zero": changing("version", to=0),
    "unfinished": changing("unfinished", to=True),
    "an unknown field": changing("hook", to="os.system"),
    "no layers": without("layers"),
    "layers that are no list": changing("layers", to={}),
    "too many layers": many_layers,
    "too many expressions": many_nodes,
    "a model that is no text": changing("model", to=["ours"]),
    "a model of a million letters": changing("model", to="a" * 10**6),
    "errors that are no numbers": changing("errors", to={"one": "much"}),
    "errors that are a list": changing("errors", to=[["one", "1"]]),
    # files
    "a path out of the folder": changing(*FILE, "name", to="../outside.safetensors"),
    "an absolute path": changing(*FILE, "name", to="/etc/passwd"),
    "the file of another layer": changing(*FILE, "name", to="layers/00001.safetensors"),
    "a path with a zero": changing(*FILE, "name", to="layers/00000.safetensors\0"),
    "a wrong size": changing(*FILE, "num_bytes", to=12),
    "a huge size": changing(*FILE, "num_bytes", to=2**60),
    "a negative size": changing(*FILE, "num_bytes", to=-1),
    "a size that is no number": changing(*FILE, "num_bytes", to="12"),
    "a hash that is no text": changing(*FILE, "sha256", to=None),
    "no file": changing(*LAYER, "file", to=None),
    "no file of rules": changing("rules", "file", to=None),
    "a layer cut off": bytes_of(FIRST, lambda content: content[:-10], in_manifest=False),
    "a layer cut off, also in the manifest": bytes_of(FIRST, lambda content: content[:-10]),
    "a layer with something behind it": bytes_of(FIRST, lambda content: content + b"more"),
    "an empty layer": bytes_of(FIRST, lambda content: b""),
    "a layer of seven bytes": bytes_of(FIRST, lambda content: content[:7]),
    "a pickle for a layer": pickled,
    "a header without end": bytes_of(FIRST, lambda content: b"\xff" * 8 + content[8:]),
    "a header of 30 MB": bytes_of(FIRST, lambda content: struct.pack("<Q", 30 * 2**20) + b" " * 30 * 2**20),
    "a header of nothing": bytes_of(FIRST, lambda content: b"\0" * len(content)),
    "a header that is no UTF-8": bytes_of(FIRST, lambda content: content.replace(b"query", b"quer\xff")),
    "tensors that overlap": header_of(FIRST, lambda header: header["key"].update(data_offsets=[0, 1000])),
    "a hole between tensors": header_of(FIRST, lambda header: header["key"].update(data_offsets=[4, 1156])),
    "a tensor beyond the end": header_of(FIRST, lambda header: header["query"].update(data_offsets=[1152, 10**9])),
    "a negative shape": header_of(FIRST, lambda header: header["query"].update(shape=[-2, 4, 9, -8])),
    "a shape that overflows": header_of(FIRST, lambda header: header["query"].update(shape=[2**62, 2**62, 2**62, 0])),
    "an unknown dtype": header_of(FIRST, lambda header: header["query"].update(dtype="F4")),
    "a dtype of nobody": header_of(FIRST, lambda header: header["query"].update(dtype="pickle")),
    "a tensor too many": header_of(FIRST, lambda header: header | {"more": NOTHING}),
    "a tensor too few": tensors_of(FIRST, lambda tensors: tensors.pop("key")),
    "a file that does not say which it is": header_of(FIRST, lambda header: header.pop("__metadata__") and None),
    "tensors out of line": bytes_of(FIRST, lambda content: longer_by_one(content)),
    "a tensor of six axes": header_of(FIRST, lambda header: header["query"].update(shape=[2, 4, 9, 8, 1, 1])),
    "a dtype that torch has": header_of(FIRST, lambda header: header["query"].update(dtype="U32")),
    # layers
    "another kind": changing(*LAYER, "kind", to="pickle"),
    "a name that is a number": changing(*LAYER, "name", to=3),
    "two layers of one name": changing(*LAYER, "name", to="two"),
    "cross as a number": changing(*LAYER, "cross", to=1),
    "a negative shape of a layer": changing(*LAYER, "shape", to=[2, 4, -9, 9]),
    "three axes": changing(*LAYER, "shape", to=[2, 4, 9]),
    "a huge shape": changing(*LAYER, "shape", to=[2, 4, 9, 10**30]),
    "another shape": changing(*LAYER, "shape", to=[2, 4, 9, 10]),
    "another batch": changing(*LAYER, "shape", to=[1, 4, 9, 9]),
    "tensors that a layer does not have": changing(*LAYER, "tensors", to=["query", "key", "os"]),
    "tensors twice": changing(*LAYER, "tensors", to=["query", "key", "key"]),
    "tensors that it must have": changing(*LAYER, "tensors", to=["query"]),
    "a scale that is NaN": changing(*LAYER, "scale", to=float("nan")),
    "a scale without bounds": changing(*LAYER, "scale", to=float("inf")),
    "a scale that is text": changing(*LAYER, "scale", to="0.5"),
    "a negative row": changing(*LAYER, "row", to=-1),
    "a column that is no number": changing(*LAYER, "column", to=1.5),
    "a mask that is not there": changing(*LAYER, "mask", to=10**6),
    "a mask from the end": changing(*LAYER, "mask", to=-1),
    "a score for a mask": changing(*LAYER, "mask", to=5),
    "a mask for a score": changing(*LAYER, "score", to=0),
    "whole numbers for queries": tensors_of(FIRST, put("query", torch.zeros(2, 4, 9, 8, dtype=torch.int64))),
    "query and key of two dtypes": tensors_of(FIRST, put("query", torch.zeros(2, 4, 9, 8, dtype=torch.float16))),
    "query and key of two widths": tensors_of(FIRST, put("query", torch.zeros(2, 4, 9, 4))),
    "heads that do not divide": tensors_of(FIRST, put("key", torch.zeros(2, 3, 9, 8))),
    "no key heads": tensors_of(FIRST, put("key", torch.zeros(2, 0, 9, 8))),
    "a query of two axes": tensors_of(FIRST, put("query", torch.zeros(9, 8))),
    # rules
    "expressions that are no list": changing("rules", "expressions", to={"kind": "full"}),
    "an expression of code": changing("rules", "expressions", 0, to={"kind": "__import__"}),
    "a temperature too close to zero": changing("rules", "expressions", 3, to={"kind": "temperature", "value": 5e-324}),
    "a tensor of another name": changing("rules", "expressions", 1, to={"kind": "padding", "keep": "../0"}),
    "a mask of other sizes": tensors_of(RULE, put("000000", torch.ones(2, 8, dtype=torch.bool))),
    "a mask of numbers": tensors_of(RULE, put("000000", torch.ones(2, 9))),
    "a bias of other heads": tensors_of(RULE, put("000001", torch.ones(3, 1, 9))),
    "booleans that are neither": header_of(RULE, lambda header: None, lambda data: data[:-3] + b"\x02" + data[-2:]),
    # texts
    "ids of numbers": tensors_of(TEXT, put("0.ids", torch.ones(2, 9))),
    "ids of other sizes": tensors_of(TEXT, put("0.ids", torch.ones(2, 8, dtype=torch.int64))),
    "words cut off": tensors_of(TEXT, lambda tensors: tensors.update({"0.words": tensors["0.words"][:-1].clone()})),
    "words that are no text": tensors_of(TEXT, lambda tensors: tensors["0.words"].fill_(0xFF)),
    "words that end inside a letter": tensors_of(TEXT, lambda tensors: tensors["0.word_ends"][6].sub_(1)),
    "words that end before they begin": tensors_of(TEXT, lambda tensors: tensors["0.word_ends"][3].fill_(40)),
    "words before the beginning": tensors_of(TEXT, lambda tensors: tensors["0.word_ends"][0].fill_(-3)),
    "fewer words": tensors_of(TEXT, put("0.word_ends", torch.zeros(3, dtype=torch.int64))),
    "spans of other sizes": tensors_of(TEXT, put("0.spans", torch.zeros(2, 9, 3, dtype=torch.int64))),
    "spans of numbers": tensors_of(TEXT, put("0.spans", torch.zeros(2, 9, 2))),
    "spans for other rows": tensors_of(TEXT, put("0.has_spans", torch.zeros(3, dtype=torch.bool))),
    "too many texts": changing("texts", "parts", to=[{"part": "", "shape": [0, 0], "shown": False}] * 2000),
    "tokens that were not given": changing("texts", "given", to=3),
}  # fmt: skip


REASONS = {
    "a header of 30 MB": "a header of 31,457,280 bytes",
    "a header without end": "a header of",
    "tensors out of line": "multiple of its width",
    "a tensor of six axes": "which no tensor of a trace has",
    "a dtype that torch has": "which no tensor of a trace is",
    "a bomb of lists": r"1,000,000 values",
    "two files swapped": "was written as",
    "a link out of the folder": "leads out of the folder",
    "a layer cut off": "cut off",
    "a changed number": "changed after it was written",
    "unfinished": "save it again",
    "booleans that are neither": "neither true nor false",
}
"""What some of them are refused for, where another check would find them too, later or with more memory."""


def longer_by_one(content: bytes) -> bytes:
    """A byte more in the header, so that nothing is where its width wants it."""
    length = struct.unpack("<Q", content[:8])[0]
    return struct.pack("<Q", length + 1) + content[8 : 8 + length] + b" " + content[8 + length :]


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_broken_or_made_up_is_refused(change: Change, folder: Path) -> None:
    change(folder)
    begun = time.process_time()
    with pytest.raises(TraceError) as caught:
        open_trace(folder)
    assert time.process_time() - begun < 5
    assert 20 < len(str(caught.value)) < 2000


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_is_named(name: str, folder: Path) -> None:
    HOSTILE[name](folder)
    with pytest.raises(TraceError, match=REASONS[name]):
        open_trace(folder)


@pytest.mark.parametrize("name", ["entropy", "received", "bin_sums", "visible_cells", "weights"])
def test_statistics_and_weights_that_do_not_fit_are_refused(name: str, tmp_path: Path) -> None:
    trace = of_weights() if name == "weights" else of_a_summary()
    trace.save(tmp_path)
    tensor = safetensors.torch.load_file(tmp_path / FIRST)[name]
    other = tensor.float() if name == "visible_cells" else tensor.long()
    for wrong in (tensor[..., None].clone(), other, tensor[:1, :1].clone()):
        tensors_of(FIRST, put(name, wrong))(tmp_path)
        with pytest.raises(TraceError, match=name):
            open_trace(tmp_path)
    tensors_of(FIRST, put(name, tensor))(tmp_path)
    open_trace(tmp_path)


def test_the_untouched_folder_opens(folder: Path) -> None:
    """So that the cases above fail for what they change, and not for how."""
    write_manifest(folder, manifest(folder))
    for name in (FIRST, TEXT, RULE):
        header_of(name, lambda header: None)(folder)
        tensors_of(name, lambda tensors: None)(folder)
    changing(*LAYER, "scale", to=0.5)(folder)
    open_trace(folder, verify=True)


def test_a_newer_version_asks_for_an_update(folder: Path) -> None:
    changing("version", to=7)(folder)
    with pytest.raises(TraceError, match="update"):
        open_trace(folder)


def flip_bit(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [FIRST, TEXT, RULE])
def test_a_changed_byte_is_found_by_its_hash(name: str, folder: Path) -> None:
    flip_bit(folder / name, -1)
    with pytest.raises(TraceError, match="SHA-256"):
        open_trace(folder, verify=True)


USES: dict[str, Callable[[Trace, Path], object]] = {
    "summary": lambda trace, _: trace.summary(0),
    "to": lambda trace, _: trace.to("cpu"),
    "save": lambda trace, folder: trace.save(folder / "again"),
    "pickle": lambda trace, _: pickle.dumps(trace),
    "copy": lambda trace, _: copy.deepcopy(trace),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("make", [small, of_a_summary, of_weights], ids=["matrix", "statistics", "dense"])
def test_a_changed_bit_is_found_before_a_number_is_used(make: Callable[[], Trace], use: str, tmp_path: Path) -> None:
    make().save(tmp_path / "trace")
    flip_bit(tmp_path / "trace" / FIRST, -1)
    trace = open_trace(tmp_path / "trace")
    for _ in range(2):
        with pytest.raises(TraceError, match="SHA-256"):
            USES[use](trace, tmp_path)


def test_every_bit_of_every_file_counts(folder: Path) -> None:
    """A flipped bit is found when the folder is opened, or else when the layers are first used."""
    generator = random.Random(0)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for place in {0, len(content) - 1, *(generator.randrange(len(content)) for _ in range(40))}:
            changed = bytearray(content)
            changed[place] ^= 1 << generator.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(TraceError):
                [trace[name] for trace in [open_trace(folder)] for name in trace]
        path.write_bytes(content)
    assert len(open_trace(folder)) == 2


def test_a_layer_is_hashed_once_and_only_if_it_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    plain = file_check.sha256_file
    monkeypatch.setattr(file_check, "sha256_file", lambda path: hashed.append(path.name) or plain(path))
    trace = open_trace(folder)
    assert sorted(hashed) == [RULE, TEXT]
    for _ in range(3):
        trace["two"].to_dense()
    assert hashed[2:] == ["00001.safetensors"]


def test_a_trace_that_was_replaced_is_checked_by_what_is_mapped(tmp_path: Path) -> None:
    trace = small()
    trace.save(tmp_path)
    opened, damaged = open_trace(tmp_path), open_trace(tmp_path)
    first = damaged.layer("one")
    assert isinstance(first, Layer)
    trace_of(layer_of("other")).save(tmp_path)
    assert torch.equal(opened["one"].to_dense(), trace["one"].to_dense())
    first._calls[0].key[0, 0, 0, 0] += 1  # a copy of the page, as of a file that changes under the map
    with pytest.raises(TraceError, match="SHA-256"):
        damaged["one"]


def test_an_unreadable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "file", "\0"):
        with pytest.raises(TraceError):
            open_trace(path)


def hostile_folders(folder: str) -> Callable[[], None]:
    saved = Path(folder) / "saved"
    small().save(saved)
    open_trace(saved)
    cases = []
    for at, (name, change) in enumerate(HOSTILE.items()):
        if "bomb" in name or "huge" in name or "header" in name or "many" in name or "deep" in name:
            shutil.copytree(saved, Path(folder) / str(at))
            change(Path(folder) / str(at))
            cases.append(Path(folder) / str(at))

    def work() -> None:
        for case in cases:
            with pytest.raises(TraceError):
                open_trace(case)

    return work


def test_hostile_folders_take_little_memory(tmp_path: Path) -> None:
    assert peak_extra_bytes(hostile_folders, str(tmp_path)) < 250e6


# Saving where something already is, and saving that fails.


def test_a_trace_replaces_a_trace_and_leaves_other_files_alone(tmp_path: Path) -> None:
    small().save(tmp_path)
    opened = open_trace(tmp_path)
    before = opened["two"].to_dense()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "layers" / "notes.txt").write_text("mine")
    trace = trace_of(layer_of("other"))
    trace.save(tmp_path)
    assert_same(open_trace(tmp_path), trace)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "00000.safetensors", "layers", "notes.txt", "notes.txt", "trace.json",
    ]  # fmt: skip
    assert torch.equal(opened["two"].to_dense(), before), "what was mapped is still there"


def test_a_trace_is_saved_over_itself(tmp_path: Path) -> None:
    trace = small()
    trace.save(tmp_path)
    open_trace(tmp_path).save(tmp_path)
    assert_same(open_trace(tmp_path, verify=True), trace)


@pytest.mark.parametrize("name", ["notes.txt", "trace.json", "layers/00000.safetensors", "rules.safetensors"])
def test_a_folder_of_somebody_else_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}")
    with pytest.raises(TraceError, match="not an AttnScope trace"):
        small().save(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]
    assert (tmp_path / name).read_text() == "{}"


def test_a_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TraceError, match="is a file"):
        small().save(tmp_path / "file")
    with pytest.raises(TraceError):
        small().save(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"


def test_layers_that_are_a_link_are_not_followed(tmp_path: Path) -> None:
    small().save(tmp_path / "trace")
    layers_linked_out(tmp_path / "trace")
    with pytest.raises(TraceError):
        small().save(tmp_path / "trace")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


class Stop(BaseException):
    """As when somebody presses Ctrl-C."""


def failing_after(count: int, function: Callable) -> Callable:
    calls = iter(range(10**6))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == count:
            raise Stop
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("there", [False, True])
def test_writing_that_stops_leaves_what_was_there(
    count: int, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, old = tmp_path / "trace", trace_of(layer_of("old"))
    if there:
        old.save(folder)
    monkeypatch.setattr(saving, "write_file", failing_after(count, saving.write_file))
    with pytest.raises(Stop):
        small().save(folder)
    if there:
        assert_same(open_trace(folder, verify=True), old)
        assert sorted(path.name for path in folder.iterdir()) == ["layers", "trace.json"]
    else:
        assert not folder.exists()


@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("there", [False, True])
def test_renaming_that_stops_never_leaves_a_mixture(
    count: int, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, old, new = tmp_path / "trace", small(), small()
    if there:
        old.save(folder)
    with monkeypatch.context() as patch, suppress(Stop):  # the last are more than there are
        patch.setattr(os, "replace", failing_after(count, os.replace))
        new.save(folder)
    if (folder / "trace.json").exists():
        found = open_trace(folder, verify=True)
        expected = new if torch.equal(found["one"].to_dense(), new["one"].to_dense()) else old
        assert_same(found, expected)
    else:
        assert not folder.exists() or not any(folder.iterdir())
    new.save(folder)
    assert_same(open_trace(folder, verify=True), new)


def test_a_save_that_was_killed_is_named_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cleaned up when a process dies, so here nothing is."""
    folder = tmp_path / "trace"
    with monkeypatch.context() as patch:
        patch.setattr(saving, "write_file", failing_after(1, saving.write_file))
        patch.setattr(saving, "_remove_trace", lambda folder: None)
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
        with pytest.raises(Stop):
            small().save(folder)
    assert any(path.name.startswith(saving.SCRATCH) for path in folder.iterdir())
    with pytest.raises(TraceError, match="save it again"):
        open_trace(folder)
    trace = small()
    trace.save(folder)
    assert_same(open_trace(folder, verify=True), trace)
    assert not any(path.name.startswith(".") for path in folder.iterdir())


@pytest.mark.parametrize("count", range(2, 6))
def test_a_replacement_that_was_killed_is_no_mixture(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old manifest must not speak for new files, whose sizes and names are the same."""
    small().save(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing_after(count, os.replace))
        patch.setattr(saving, "_remove_trace", lambda folder: None)
        with pytest.raises(Stop):
            small().save(tmp_path)
    with pytest.raises(TraceError, match="save it again"):
        open_trace(tmp_path)
    trace = small()
    trace.save(tmp_path)
    assert_same(open_trace(tmp_path, verify=True), trace)


def test_what_cannot_be_said_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    class Odd(Causal):
        pass

    cases = [
        trace_of(layer_of(mask=Odd())),
        trace_of(layer_of(score_mod=Softcap(float("inf")))),
        trace_of(layer_of(mask=Padding([9, 10]))),
        trace_of(layer_of("a" * 5000)),
        Trace.from_attentions([torch.ones(1, 1, 2, 2, dtype=torch.int64)]),
    ]
    for trace in cases:
        with pytest.raises(UnsupportedError):
            trace.save(tmp_path / "trace")
        assert not (tmp_path / "trace").exists()
