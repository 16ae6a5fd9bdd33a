"""Files that were changed at random places load or are refused by name: no other error, and no crash."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from attnscope.errors import CheckpointError, VocabularyError
from attnscope.models import load_tokenizer
from attnscope.models.checkpoint import load
from attnscope.models.text.tokenizer import Tokenizer
from tests.models.checkpoint.gguf_files import CONFIGS, write
from tests.models.checkpoint.theirs import DECODERS, make

SEED = 7
WHOLE = (0, 1, 2, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
"""Numbers at which sizes overflow."""

VALUES: tuple[Any, ...] = (None, True, "", "x" * 5000, [], {}, [[]], -1, 0, 1, 10**9, 10**30, 0.5, 1e308, {"a": [None]})
"""What stands in the place of a value of JSON."""


def mutate_bytes(content: bytes, generator: random.Random, end: int) -> bytes:
    """Change up to three places before `end`: a bit, some bytes, a number, or a cut."""
    changed = bytearray(content)
    for _ in range(generator.randint(1, 3)):
        place = generator.randrange(min(end, len(changed)))
        match generator.randrange(6):
            case 0:
                changed[place] ^= 1 << generator.randrange(8)
            case 1:
                changed[place : place + 8] = generator.choice(WHOLE).to_bytes(8, "little")
            case 2:
                changed[place : place + 4] = (generator.choice(WHOLE) % 2**32).to_bytes(4, "little")
            case 3:
                del changed[place : place + generator.randint(1, 16)]
            case 4:
                changed[place:place] = generator.randbytes(generator.randint(1, 16))
            case _:
                changed[place : place + 16] = changed[: generator.randint(1, 16)]
    return bytes(changed)


def mutate_json(value: Any, generator: random.Random) -> Any:
    """Change one value of a parsed JSON text, at any depth."""
    places = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not places or generator.random() < 0.1:
        return generator.choice(VALUES)
    place = generator.choice(places)
    if isinstance(value, dict) and generator.random() < 0.1:
        return {name: inner for name, inner in value.items() if name != place}
    changed = value.copy()
    changed[place] = mutate_json(value[place], generator)
    return changed


def try_all(count: int, change: Callable[[random.Random], object], use: Callable[[], object]) -> int:
    """Use what was changed, `count` times; return how often it was refused."""
    generator, refused = random.Random(SEED), 0
    for number in range(count):
        change(generator)
        try:
            use()
        except (CheckpointError, VocabularyError):
            refused += 1
        except BaseException as error:
            raise AssertionError(f"change {number} ended in {type(error).__name__}: {error}") from error
    return refused


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_changed_gguf_file_loads_or_is_refused(family: str, tmp_path: Path) -> None:
    tokens = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [chr(97 + number % 26) + str(number) for number in range(61)],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
    }
    path = write(tmp_path / "m.gguf", make(CONFIGS[family]), kind=GGMLQuantizationType.Q8_0, metadata=tokens)
    content = path.read_bytes()
    end = content.index(b"token_embd") + 4000  # the numbers are whatever they are

    def use() -> None:
        load(path)
        load_tokenizer(path).encode("to be")

    refused = try_all(400, lambda generator: path.write_bytes(mutate_bytes(content, generator, end)), use)
    assert refused > 100


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_a_changed_folder_loads_or_is_refused(family: str, tmp_path: Path) -> None:
    make(DECODERS[family]).save_pretrained(tmp_path, max_shard_size="30KB")
    files = [tmp_path / "config.json", tmp_path / "model.safetensors.index.json"]
    shard = min(tmp_path.glob("*.safetensors"))
    contents = {path: path.read_bytes() for path in (*files, shard)}

    def change(generator: random.Random) -> None:
        for path, content in contents.items():
            path.write_bytes(content)
        path = generator.choice(list(contents))
        if path in files and generator.random() < 0.7:
            path.write_text(json.dumps(mutate_json(json.loads(contents[path]), generator)))
        else:
            end = len(contents[path]) if path in files else 8 + int.from_bytes(contents[path][:8], "little")
            path.write_bytes(mutate_bytes(contents[path], generator, end))

    assert try_all(300, change, lambda: load(tmp_path)) > 100


def test_a_changed_tokenizer_loads_or_is_refused(tmp_path: Path) -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "to", "be", "##s", "or"]
    backend = Backend(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("x", "to")])
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    config = {"bos_token": "[CLS]", "eos_token": {"content": "[SEP]"}, "chat_template": "{{ messages }}"}
    Tokenizer(backend, config=config, eos_token_ids=[2]).save(tmp_path)
    contents = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def change(generator: random.Random) -> None:
        for path, content in contents.items():
            path.write_bytes(content)
        path = generator.choice(list(contents))
        if generator.random() < 0.7 and path.suffix == ".json":
            path.write_text(json.dumps(mutate_json(json.loads(contents[path]), generator)))
        else:
            path.write_bytes(mutate_bytes(contents[path], generator, len(contents[path])))

    def use() -> None:
        tokenizer = load_tokenizer(tmp_path)
        ids = tokenizer.encode("to be or not to be, x")
        tokenizer.decode(ids, skip_special_tokens=False)
        tokenizer.texts(ids)

    assert try_all(600, change, use) > 100
