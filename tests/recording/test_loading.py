"""`load`: what is hostile or damaged ends the load, what AttnScope does not implement comes from transformers."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaForSequenceClassification

from attnscope.errors import CheckpointError, UnsupportedModelError
from attnscope.models import Decoder, load_tokenizer
from attnscope.models.checkpoint.safetensors_files import open_file
from attnscope.recording import load
from attnscope.recording.build_limits import MIN_MODULES, BuildLimits
from attnscope.recording.offline import no_network
from attnscope.recording.transformers_models import load_transformers_model
from tests.largest import LargestTensor
from tests.models.checkpoint.theirs import DECODERS, make
from tests.recording.support import ALL
from tests.recording.zoo import EXHIBITS, Exhibit

BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
Change = Callable[[Path], object]


@pytest.fixture(params=["llama", "gpt_neox"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A sound model: of a family that AttnScope implements, and of one that only transformers does."""
    model = make(DECODERS["llama"]) if request.param == "llama" else BY_NAME["GPT-NeoX"].build()
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    make(DECODERS["llama"]).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What somebody tried to connect to; nobody succeeds."""
    tried: list[object] = []

    def refuse(event: str, *place: object, **_: object) -> None:
        sys.audit(event, *place)  # as Python does before it connects
        tried.append(place)
        raise OSError("this test has no network")

    monkeypatch.setattr(socket, "getaddrinfo", partial(refuse, "socket.getaddrinfo"))
    monkeypatch.setattr(socket.socket, "connect", partial(refuse, "socket.connect"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tried


def with_config(folder: Path, **fields: object) -> Path:
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(found | fields))
    return folder


def sharded(folder: Path, place: str) -> None:
    """Put all tensors into one shard at a place that the index names."""
    tensors = load_file(folder / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, place)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    if place.endswith(".safetensors"):
        save_file(tensors, folder / place, {"format": "pt"})
    else:
        torch.save(tensors, folder / place)


@pytest.mark.parametrize("progress", [True, False])
def test_progress_may_be_a_flag(folder: Path, progress: bool) -> None:
    model, _ = load(folder, progress=progress)
    assert next(model.parameters()).numel()


def test_a_progress_bar_is_drawn_on_a_terminal_only(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    load(llama)
    assert not capfd.readouterr().err


def test_progress_may_be_a_function(llama: Path) -> None:
    calls: list[tuple[int, int]] = []
    load(llama, progress=lambda done, total: calls.append((done, total)))
    assert calls
    assert calls[-1][0] == calls[-1][1]


def with_long_header(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = content[8 : 8 + length] + b" " * (40 * 2**20 - length)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


def with_link(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).rename(folder.parent / "outside")
        (folder / name).symlink_to(folder.parent / "outside")

    return change


def with_key_twice(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("{", '{"model_type": "llama", ', 1))


def cut_short(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 8)


HOSTILE: dict[str, tuple[Change, str]] = {
    "an index that leads out of the folder": (
        lambda folder: sharded(folder, "../outside.safetensors"),
        "in the same folder",
    ),
    "an index with an absolute path": (
        lambda folder: sharded(folder, str(folder.parent / "outside.safetensors")),
        "in the same folder",
    ),
    "an index that names a pickle": (lambda folder: sharded(folder, "weights.bin"), "shards are safetensors files"),
    "a header of 40 MB": (with_long_header, "a header of 41,943,040 bytes"),
    "a key twice": (with_key_twice, "duplicate key 'model_type'"),
    "weights that are a link": (with_link("model.safetensors"), "a link that leads out of the folder"),
    "a config that is a link": (with_link("config.json"), "a link that leads out of the folder"),
    "a file cut short": (cut_short, "damaged or no safetensors file"),
}


@pytest.mark.parametrize("using", ["auto", "transformers"])
@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_hostile_ends_the_load(
    case: str, using: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, connections: list[object]
) -> None:
    change, message = HOSTILE[case]
    change(folder)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    with pytest.raises(CheckpointError, match=message) as caught:
        load(folder, using=using)
    assert not isinstance(caught.value, UnsupportedModelError)
    assert not connections


def test_a_folder_of_pickles_is_refused_without_opening_one(folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (folder / "witness",)

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    for using in ("auto", "transformers"):
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle"):
            load(folder, using=using)
    assert not (folder / "witness").exists()


@pytest.mark.parametrize("model", ["llama", "gpt_neox"])
def test_what_was_downloaded_from_the_hub_passes_the_same_checks(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "hub" / "models--some--model"
    snapshot = repository / "snapshots" / ("0123456789" * 4)
    made = make(DECODERS["llama"]) if model == "llama" else BY_NAME["GPT-NeoX"].build()
    made.save_pretrained(snapshot)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    for number, path in enumerate(sorted(snapshot.iterdir())):  # as the cache of the hub has them
        path.rename(repository / "blobs" / str(number))
        path.symlink_to(Path("..", "..", "blobs", str(number)))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load("some/model")[0] is not None
    (repository / "blobs").rename(tmp_path / "blobs")
    (repository / "blobs").symlink_to(tmp_path / "blobs")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="a link that leads out of the folder"):
        load("some/model")


# What AttnScope does not implement, and transformers does.


def test_an_unknown_field_of_a_known_family_leads_to_transformers_with_a_warning(llama: Path) -> None:
    expected, _ = load(llama, using="transformers")
    with_config(llama, embedding_multiplier_of_mine=3)
    with pytest.warns(UserWarning, match="opened by transformers, because .*embedding_multiplier_of_mine = 3"):
        found, tokenizer = load(llama)
    assert type(found) is type(expected)
    assert tokenizer is None
    assert_same(found, expected)
    with pytest.raises(UnsupportedModelError, match="unknown fields: embedding_multiplier_of_mine"):
        load(llama, using="attnscope")


def test_an_unknown_tensor_of_a_known_family_leads_to_transformers_which_names_it(llama: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    save_file(tensors | {"model.gate.weight": torch.ones(3)}, llama / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match="load: ") as warned:
        load(llama)
    messages = [str(warning.message) for warning in warned]
    assert any("opened by transformers, because" in message and "model.gate.weight" in message for message in messages)
    assert any("has no use for 'model.gate.weight'" in message for message in messages)


def test_a_model_without_its_head_comes_from_transformers(tmp_path: Path) -> None:
    """A classifier on top of Llama has no token logits, so it is none of AttnScope's decoders."""
    LlamaForSequenceClassification(DECODERS["llama"]).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"opened by transformers, because .*lm_head"):
        model, _ = load(tmp_path)
    assert type(model).__name__ == "LlamaForSequenceClassification"


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_code_that_came_with_a_model_is_not_run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(DECODERS["llama"]) if kind == "llama" else BY_NAME["GPT-NeoX"].build()
    model.save_pretrained(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Evil: ...\n")
    auto = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "evil.Evil")
    with_config(tmp_path, auto_map=auto, architectures=["Evil"])
    monkeypatch.setattr("builtins.input", lambda question="": pytest.fail("somebody was asked"))
    with warnings.catch_warnings(record=True) as warned:  # about the head, as the class that has one is not named
        warnings.simplefilter("always")
        found, _ = load(tmp_path)
    assert ["auto_map" in str(warning.message) for warning in warned] == ([False, True] if kind == "llama" else [False])
    assert type(found).__module__.startswith("transformers.models.")
    with_config(tmp_path, model_type="evil")
    with pytest.raises(CheckpointError, match=r"does not know 'evil'; code that came with a model is never run"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_missing_tensor_is_not_filled_with_random_numbers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if "norm" in name)
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="has no tensor"):
        load(folder)
    with pytest.raises(CheckpointError, match=f"has no tensor for '{name}', so transformers would fill in random"):
        load(folder, using="transformers")


def test_shards_come_together(tmp_path: Path) -> None:
    model = BY_NAME["GPT-NeoX"].build()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same(load(tmp_path)[0], model)


def test_settings_of_generation_are_kept(tmp_path: Path) -> None:
    model: Any = BY_NAME["GPT-NeoX"].build()
    model.generation_config.eos_token_id = [3, 5]
    model.save_pretrained(tmp_path)
    found: Any = load(tmp_path)[0]
    assert found.generation_config.eos_token_id == [3, 5]
    assert found.config.name_or_path == str(tmp_path)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_model_of_transformers_has_the_dtype_of_its_file_or_the_one_asked_for(dtype: Any, tmp_path: Path) -> None:
    BY_NAME["GPT-NeoX"].build().half().save_pretrained(tmp_path)
    found = load(tmp_path, dtype=dtype)[0]
    assert {parameter.dtype for parameter in found.parameters()} == {dtype or torch.float16}


@pytest.mark.parametrize("name", ["BERT", "T5", "Mixtral", "CLIP", "Swin"])
def test_models_of_all_kinds_come_back(name: str, tmp_path: Path) -> None:
    come_back(next(one for one in ALL if one.name == name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("exhibit", ALL, ids=lambda exhibit: exhibit.name)
def test_all_models_of_the_zoo_come_back(exhibit: Exhibit, tmp_path: Path) -> None:
    come_back(exhibit, tmp_path)


def come_back(exhibit: Exhibit, folder: Path) -> None:
    """As transformers itself loads it, which may set some rows to zero and compute some positions anew."""
    model = exhibit.build()
    model.save_pretrained(folder)
    expected = type(model).from_pretrained(folder, dtype="auto", local_files_only=True).eval()
    found: Any = load_transformers_model(folder, None)
    assert_same(found, expected)
    assert found.config.to_diff_dict() == expected.config.to_diff_dict()


def assert_same(found: nn.Module, expected: nn.Module) -> None:
    ours, theirs = found.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
    assert not found.training


# Configs that ask for more than the files hold.


def plain_folder(folder: Path, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"some.weight": torch.ones(2, 2)}, folder / "model.safetensors", {"format": "pt"})
    return folder


TEXT = {"model_type": "llama", "num_hidden_layers": 1_000_000}
BOMBS: dict[str, dict[str, object]] = {
    "a million layers": {"model_type": "gpt_neox", "num_hidden_layers": 1_000_000},
    "a million layers of a known family": {"model_type": "llama", "num_hidden_layers": 1_000_000, "mine": 1},
    "a billion layers": {"model_type": "gemma2", "num_hidden_layers": 10**9},
    "layers within a nested config": {"model_type": "llava", "text_config": TEXT},
    "layers in a list": {"model_type": "swin", "depths": [2, 10**6]},
    "a million experts": {"model_type": "mixtral", "num_local_experts": 10**6},
    "a billion labels": {"model_type": "vit", "num_labels": 10**9},
    "as many layers as any file may have": {"model_type": "gpt_neox", "num_hidden_layers": 2**15},
    "a huge vocabulary": {"model_type": "gpt_neox", "vocab_size": 10**9},
    "a huge width": {"model_type": "gpt_neox", "hidden_size": 2**22, "num_attention_heads": 2**10},
    "huge positions": {"model_type": "roberta", "max_position_embeddings": 2**33},
    "models inside a model": {
        "model_type": "rag",
        "architectures": ["RagModel"],
        "question_encoder": {"model_type": "dpr"},
        "generator": {"model_type": "bart"},
    },
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_config_cannot_ask_for_more_than_its_files_hold(
    case: str, tmp_path: Path, connections: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = count_modules(monkeypatch)
    folder = plain_folder(tmp_path / "model", **BOMBS[case])
    with LargestInMemory() as largest, pytest.raises(CheckpointError, match=r"files of this size|than its files hold"):
        load(folder)
    assert modules[0] <= 2 * MIN_MODULES
    assert largest.elements <= 10**6
    assert not connections


class LargestInMemory(LargestTensor):
    """Leaves out tensors on the meta device, which take no memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.device.type != "meta":
            self.elements = max(self.elements, result.numel())
        return result


def count_modules(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the modules that are made from now on."""
    made = [0]
    begin = nn.Module.__init__

    def counted(self: nn.Module, *args: Any, **options: Any) -> None:
        made[0] += 1
        begin(self, *args, **options)

    monkeypatch.setattr(nn.Module, "__init__", counted)
    return made


def test_limits_hold_for_the_thread_that_builds_and_no_other() -> None:
    limits = BuildLimits(repeats=9, modules=2, elements=100, source="config.json")
    built: list[nn.Module] = []
    with limits.enforce():
        thread = threading.Thread(target=lambda: built.append(nn.Sequential(*(nn.Linear(99, 99) for _ in range(9)))))
        thread.start()
        thread.join()
        nn.Linear(9, 10, bias=False)
        with pytest.raises(CheckpointError, match="more than 100 numbers, far more than its files hold"):
            nn.Linear(11, 10)
    assert len(built) == 1
    with limits.enforce(), pytest.raises(CheckpointError, match="more than 2 modules"):
        nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())
    nn.Linear(99, 99)


# No network for what is in a folder.


SMALL = {"model_type": "gpt_neox", "vocab_size": 9, "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
DEPTH = {"model_type": "dpt", "architectures": ["DPTForDepthEstimation"], "is_hybrid": False}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "detr", "backbone": "some/where", "use_timm_backbone": False}, "but nothing is fetched for it"),
        (DEPTH | {"backbone": "some/where"}, "but nothing is fetched for it"),
        ({"model_type": "mask2former", "backbone": "some/where"}, "but nothing is fetched for it"),
        (SMALL | {"attn_implementation": "some/kernel"}, "has no tensor for"),
        (SMALL | {"_name_or_path": "some/model"}, "has no tensor for"),
    ],
)
def test_a_folder_does_not_lead_to_the_network(
    config: dict[str, object], message: str, tmp_path: Path, connections: list[object]
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(plain_folder(tmp_path / "model", **config))
    assert not connections


def test_sound_folders_need_no_network(folder: Path, connections: list[object]) -> None:
    load(folder)
    load(folder, using="transformers")
    assert not connections


def test_an_adapter_does_not_lead_to_another_model(folder: Path, connections: list[object]) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/model"}))
    (folder / "adapter_model.bin").write_bytes(pickle.dumps({}))
    load(folder, using="transformers")
    assert not connections


def test_only_the_thread_that_loads_has_no_network() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    reached: list[bool] = []

    def connect() -> None:
        with socket.create_connection(listening.getsockname()):
            reached.append(True)

    with listening, no_network("this config names another place"):
        with pytest.raises(CheckpointError, match="this config names another place, but nothing is fetched for it"):
            connect()
        thread = threading.Thread(target=connect)
        thread.start()
        thread.join()
        one, other = socket.socketpair()  # within this machine
        with one, other:
            one.sendall(b"hello")
            assert other.recv(5) == b"hello"
    assert reached == [True]
    with socket.create_server(("127.0.0.1", 0)) as again:
        socket.create_connection(again.getsockname()).close()


AT_EXIT = """
import socket
import sys
from attnscope.recording import offline

class Last:
    def __del__(self, audit=sys.audit):
        audit("an event after all modules are cleared")

with offline.no_network("this config names another place"):
    pass
socket.last = Last()  # of a module that is cleared after that of the hook
sys.kept = offline, socket
"""


def test_the_hook_is_silent_when_python_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True)
    assert ended.stderr == ""


# Tokenizers.


def write_vocabulary(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "to", "be"]))


def test_a_vocabulary_that_attnscope_does_not_read_comes_from_transformers(llama: Path) -> None:
    write_vocabulary(llama)
    (llama / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    model, tokenizer = load(llama)
    assert isinstance(model, Decoder)
    assert tokenizer.texts([5, 6]) == ["to", "be"]


def test_settings_of_a_tokenizer_name_neither_code_nor_files(
    llama: Path, tmp_path: Path, connections: list[object]
) -> None:
    write_vocabulary(llama)
    (tmp_path / "other.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "secret", "words"]))
    (llama / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Evil: ...\n")
    settings = {
        "tokenizer_class": "BertTokenizer",
        "auto_map": {"AutoTokenizer": [None, "evil.Evil"]},
        "vocab_file": str(tmp_path / "other.txt"),
        "name_or_path": "some/model",
    }
    (llama / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load(llama)[1]
    assert tokenizer.texts([5, 6]) == ["to", "be"]
    assert not (tmp_path / "ran").exists()
    assert not connections


def test_a_tokenizer_that_transformers_cannot_build_is_none_with_the_reason(llama: Path) -> None:
    (llama / "tokenizer.model").write_bytes(b"not a model of sentencepiece")
    with pytest.warns(UserWarning, match=r"cannot build its tokenizer: \w+Error: .*; the tokenizer is None") as warned:
        model, tokenizer = load(llama)
    assert isinstance(model, Decoder)
    assert tokenizer is None
    assert warned[0].filename == __file__


def test_a_tokenizer_that_attnscope_refuses_is_not_given_to_transformers(folder: Path) -> None:
    write_vocabulary(folder)
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "BPE"}}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is invalid or not supported"):
        load_tokenizer(folder)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is invalid or not supported"):
        load(folder)


def test_a_scalar_in_a_file_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.tensor(3), "b": torch.zeros(0, 2)}, tmp_path / "model.safetensors")
    with ExitStack() as files:
        found: dict[str, Tensor] = {
            name: stored.whole() for name, stored in open_file(tmp_path / "model.safetensors", files).items()
        }
    assert found["a"].item() == 3
    assert found["b"].shape == (0, 2)
