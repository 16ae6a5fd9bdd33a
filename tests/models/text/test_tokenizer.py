"""Tokenizers of trained models, held to transformers' own reading of the same folders."""

import base64
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, processors
from transformers import AutoTokenizer

from attnscope.errors import CheckpointError, VocabularyError
from attnscope.models.text import tokenizer as module
from attnscope.models.text.tokenizer import Tokenizer

MODELS = Path(__file__).resolve().parents[3] / ".cache" / "models"
SMOLLM2, MINILM = MODELS / "smollm2-135m", MODELS / "minilm-l6"
FOLDERS = [SMOLLM2, MINILM]
CONFIGURATION = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
TEXTS = [
    "",
    " ",
    "The old keeper told Anna that the storm would pass.",
    "  two  spaces, 3.14159 and 2048\n\n\ttabs\r\n",
    "Crème brûlée, naïve, Straße, ﬁne, İstanbul",
    "👩‍👩‍👧‍👦 flags 🇩🇪 and 汉字 and ٣٤ and ½²",
    "\x00\x01\x1b[31m\x7f\u2028\u200b\ufeff\ufffd",
    "<|im_start|>user\nHello<|im_end|> [CLS] [MASK] [SEP]",
    "don't DON'T y'all'll 's",
    "a" * 500,
]


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.load(SMOLLM2)


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    return Tokenizer.load(MINILM)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of SmolLM2's tokenizer that can be damaged."""
    for name in CONFIGURATION:
        shutil.copy(SMOLLM2 / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.name)
def test_ids_and_text_are_those_of_transformers(path):
    ours, theirs = Tokenizer.load(path), AutoTokenizer.from_pretrained(path, local_files_only=True)
    assert ours.vocab_size == len(theirs)
    for text in TEXTS:
        tokens = theirs(text)["input_ids"]
        assert ours.encode(text) == tokens
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)
        assert ours.decode(tokens, skip_special_tokens=False) == theirs.decode(tokens)


def test_the_files_beside_the_vocabulary_are_read(smollm2, minilm):
    assert (smollm2.bos_token_id, smollm2.eos_token_ids, smollm2.pad_token_id, smollm2.vocab_size) == (1, {2}, 2, 49152)
    assert smollm2.chat_template == (SMOLLM2 / "chat_template.jinja").read_text()
    assert smollm2.special_tokens["bos_token"] == "<|im_start|>"
    assert (minilm.bos_token_id, minilm.eos_token_ids, minilm.pad_token_id, minilm.chat_template) == (
        None,
        set(),
        0,
        None,
    )
    assert minilm.special_tokens["cls_token"] == "[CLS]"


def test_truncation_and_padding_of_the_file_are_left_out(minilm):
    stored = json.loads((MINILM / "tokenizer.json").read_text())
    assert (stored["truncation"]["max_length"], stored["padding"]["strategy"]) == (128, {"Fixed": 128})
    assert len(minilm.encode("word")) == 3
    assert len(minilm.encode("word " * 300)) == 302


def test_all_ways_to_write_what_ends_a_text_are_read(folder):
    generation = folder / "generation_config.json"
    for written, expected in (([0, 17], {0, 2, 17}), (0, {0, 2}), (None, {2})):
        generation.write_text(json.dumps({"eos_token_id": written}))
        assert Tokenizer.load(folder).eos_token_ids == expected
    for name in CONFIGURATION[1:]:
        (folder / name).unlink()
    bare = Tokenizer.load(folder)
    assert (bare.bos_token_id, bare.eos_token_ids, bare.pad_token_id, bare.chat_template) == (None, set(), None, None)
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert Tokenizer.load(folder).eos_token_ids == {2}


def test_a_chat_template_is_also_found_in_the_configuration(folder):
    (folder / "chat_template.jinja").unlink()
    for written in ("one", [{"name": "tools", "template": "other"}, {"name": "default", "template": "one"}]):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": written}))
        assert Tokenizer.load(folder).chat_template == "one"


def test_tokens_are_shown_as_text(smollm2, minilm):
    tokens = smollm2.encode("<|im_start|>Is the café\nopen?")
    assert smollm2.texts(tokens) == ["<|im_start|>", "Is", " the", " café", "\n", "open", "?"]
    assert "".join(smollm2.texts(smollm2.encode("🦜"))) == r"\xf0\x9f\xa6\x9c"
    assert minilm.texts(minilm.encode("unbelievable")) == ["[CLS]", "unbelievable", "[SEP]"]
    assert minilm.texts(minilm.encode("Sightseers", add_special_tokens=False)) == ["sights", "##eers"]


def test_offsets_are_the_characters_of_each_token(smollm2, minilm):
    text = "The 🦜 said: Crème!"
    words = [text[start:end] for _, start, end in minilm.offsets(text, add_special_tokens=False)]
    assert words == ["The", "🦜", "said", ":", "Cr", "ème", "!"]
    spans = smollm2.offsets(text)
    assert [span.token for span in spans] == smollm2.encode(text)
    parrot = [text[span.start : span.end] for span in spans if text[span.start : span.end].strip() == "🦜"]
    assert len(parrot) > 1, "the pieces of a character all point to it"
    assert minilm.offsets(text)[0] == (101, 0, 0), "a special token has no characters"


@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_a_stream_gives_the_text_of_any_ids(name, request):
    tokenizer = request.getfixturevalue(name)
    token = st.one_of(st.integers(0, tokenizer.vocab_size - 1), st.integers(0, 400))

    @given(st.lists(token, max_size=30))
    @settings(max_examples=300)
    def check(tokens):
        stream = tokenizer.stream()
        pieces = [stream.add(token) for token in tokens]
        assert "".join(pieces) + stream.finish() == tokenizer.decode(tokens)
        assert stream.finish() == ""

    check()


def test_a_stream_holds_back_a_character_until_it_is_whole(smollm2):
    tokens = smollm2.encode("Hi 🦜!")
    stream = smollm2.stream()
    pieces = [stream.add(token) for token in tokens]
    assert "".join(pieces) == "Hi 🦜!"
    assert "" in pieces
    assert not any("\ufffd" in piece for piece in pieces)
    stream = smollm2.stream()
    assert [stream.add(token) for token in smollm2.encode("🦜")[:2]] == ["", ""]
    assert stream.finish() == "\ufffd"


def test_a_saved_tokenizer_is_read_back_to_the_same(tmp_path):
    for path in FOLDERS:
        original = Tokenizer.load(path)
        original.save(tmp_path / path.name)
        again = Tokenizer.load(tmp_path / path.name)
        theirs = AutoTokenizer.from_pretrained(tmp_path / path.name, local_files_only=True)
        for attribute in (
            "bos_token_id",
            "eos_token_ids",
            "pad_token_id",
            "chat_template",
            "special_tokens",
            "vocab_size",
        ):
            assert getattr(again, attribute) == getattr(original, attribute)
        for text in TEXTS:
            assert again.encode(text) == original.encode(text) == theirs(text)["input_ids"]
        assert (theirs.bos_token_id, theirs.pad_token_id) == (original.bos_token_id, original.pad_token_id)
        assert theirs.chat_template == original.chat_template


def test_saving_keeps_every_end_and_leaves_nothing_of_another_tokenizer(folder, tmp_path):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2], "temperature": 0.6}))
    original = Tokenizer.load(folder)
    original.save(tmp_path / "new")
    assert Tokenizer.load(tmp_path / "new").eos_token_ids == {0, 2}
    Tokenizer.load(MINILM).save(folder)
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<|im_start|>"}))
    over = Tokenizer.load(folder)
    assert (over.bos_token_id, over.eos_token_ids, over.chat_template, over.vocab_size) == (None, set(), None, 30522)
    assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.6


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", "", r"tokenizer\.json .*EOF"),
        ("tokenizer.json", "{}", r"tokenizer\.json .*Model missing"),
        ("tokenizer.json", '{"model": {"type": "Oracle"}}', r"tokenizer\.json .*ModelUntagged"),
        ("tokenizer.json", b"\xff\xfe", r"tokenizer\.json is not UTF-8 text"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json is not valid JSON"),
        ("tokenizer_config.json", "[]", r"tokenizer_config\.json: .* list"),
        ("tokenizer_config.json", "[" * 100_000, r"tokenizer_config\.json is not valid JSON"),
        (
            "tokenizer_config.json",
            '{"eos_token": "</s>"}',
            r"names '</s>' as eos_token, but tokenizer\.json has no such",
        ),
        ("tokenizer_config.json", '{"eos_token": 7}', "eos_token: .*got 7"),
        ("generation_config.json", '{"eos_token_id": ["2"]}', r"eos_token_id: .*got \['2'\]"),
        ("generation_config.json", '{"eos_token_id": -1}', "eos_token_id: .*got -1"),
    ],
)
def test_damaged_files_are_refused_by_name(folder, name, content, reason):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CheckpointError, match=reason):
        Tokenizer.load(folder)


def test_a_chat_template_of_a_wrong_kind_is_refused(folder):
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text('{"chat_template": 5}')
    with pytest.raises(CheckpointError, match="chat_template"):
        Tokenizer.load(folder)


def test_missing_and_oversized_files_are_refused_by_name(folder, tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match=r"nowhere/tokenizer\.json does not exist"):
        Tokenizer.load(tmp_path / "nowhere")
    with (folder / "tokenizer_config.json").open("r+b") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json has more than 16,777,216 bytes"):
        Tokenizer.load(folder)
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has more than 1,000 bytes"):
        Tokenizer.load(folder)


def changed(folder: Path, **parts: object) -> Path:
    """A folder whose tokenizer.json has other parts."""
    stored = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(stored | parts))
    return folder


def test_a_panic_of_the_library_is_an_error_and_an_interruption_is_not(folder):
    unknown = [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": unknown, "pair": unknown, "special_tokens": {}}
    tokenizer = Tokenizer.load(changed(folder, post_processor=template))
    with pytest.raises(CheckpointError, match=r"the tokenizer .*no entry found"):
        tokenizer.encode("a")
    with pytest.raises(KeyboardInterrupt), module._convert_errors("this file"):
        raise KeyboardInterrupt


def test_a_pattern_that_never_ends_is_an_error(folder):
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    with pytest.raises(CheckpointError, match=r"the tokenizer .*.*retry-limit"):
        Tokenizer.load(changed(folder, pre_tokenizer=split)).encode("a" * 60 + "!")


@pytest.mark.parametrize("pattern", [{"String": "a"}, {"Regex": "a"}])
def test_replacements_that_fill_the_memory_are_refused(folder, pattern):
    double = {"type": "Replace", "pattern": pattern, "content": "aa"}
    for part, name in (("normalizer", "normalizers"), ("decoder", "decoders")):
        copy = changed(folder, **{part: {"type": "Sequence", name: [double] * 40}})
        with pytest.raises(CheckpointError, match=r"tokenizer\.json has a Sequence of replacements .* times as long"):
            Tokenizer.load(copy)
        Tokenizer.load(changed(folder, **{part: {"type": "Sequence", name: [double] * 5}}))


@pytest.mark.parametrize("token", [-1, 49152, 2**40])
def test_ids_outside_the_vocabulary_are_refused(smollm2, token):
    for use in (smollm2.decode, smollm2.texts, lambda tokens: smollm2.stream().add(tokens[0])):
        with pytest.raises(VocabularyError, match=f"id {token} is not in the vocabulary, whose ids are 0 to 49151"):
            use([token])


def test_half_a_character_is_refused(smollm2):
    with pytest.raises(VocabularyError, match=r"half a character \('\\ud83e'\) at position 2"):
        smollm2.encode("ab\ud83e")


def test_a_continuation_keeps_the_space_before_its_first_word() -> None:
    backend = Backend(models.WordLevel({"▁a": 0, "▁time": 1, "?": 2}, unk_token="?"))
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode([0, 1]) == "a time"
    assert tokenizer.stream(after=[0]).add(1) == " time"
    assert tokenizer.stream().add(1) == "time"
    stream = tokenizer.stream(after=[0] * 20)
    assert stream.add(1) + stream.finish() == " time"


def test_a_file_that_puts_many_tokens_around_every_text_is_refused() -> None:
    backend = Backend(models.WordLevel({"a": 0, "[X]": 1}, unk_token="a"))
    backend.add_special_tokens(["[X]"])
    single = " ".join(["[X]"] * 5000) + " $A"
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("[X]", 1)])
    with pytest.raises(CheckpointError, match="more than 4,096 special tokens around every text"):
        Tokenizer(backend)


def test_charsmaps_that_lengthen_a_text_without_end_are_refused() -> None:
    # A search tree of one unit, and what it leads to.
    step = {"type": "Precompiled", "precompiled_charsmap": _charsmap(b"a" * 300)}
    assert module._growth(step) == 300
    assert module._growth({"type": "Sequence", "normalizers": [step, step, step]}) == 300**3 > module.MAX_GROWTH


def _charsmap(target: bytes) -> str:
    return base64.b64encode((4).to_bytes(4, "little") + bytes(4) + target + b"\0").decode()
