"""Tokenizers from the key/values of GGUF files, held to those of the folders with the same vocabulary."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from attnscope.errors import CheckpointError
from attnscope.models.text.gguf_tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from attnscope.models.text.tokenizer import _BYTES, Tokenizer

MODELS = Path(__file__).resolve().parents[3] / ".cache" / "models"
HOSTILE = [
    "",
    "0", " 0", "12 345  6,789.00", "1" * 50, "x1y22z333", "٣٤ ½ ² Ⅷ 4️⃣",
    " ", "  ", "   x", "\t\t \n \r\n", "a \n b", "\u00a0\u2003\u2028 ", "x" + " " * 100,
    "😀", "👩‍👩‍👧‍👦🇩🇪", "é e\u0301 ñ ﬁ ß ſ İ", "汉字かな한글", "\u200b\ufeff\ufffd",
    "".join(map(chr, range(32))), "\x7f\x80\x9f", "\U0010ffff\ue000",
    "don't DON'T 'ſ y'all'll '", "<|im_start|>user\n<|im_end|><|im_end", "<repo_name><reponame>", "Ġ Ċ ▁ ##",
    "def f(x):\n    return x**2  # twice\n", "https://example.org/?q=1&r=%20",
]  # fmt: skip


@pytest.fixture(scope="module")
def metadata() -> dict[str, object]:
    reader = GGUFReader(MODELS / "smollm2-135m.gguf")
    return {name: field.contents() for name, field in reader.fields.items()}


@pytest.fixture(scope="module")
def built(metadata) -> Tokenizer:
    return Tokenizer.from_gguf(metadata)


@pytest.fixture(scope="module")
def loaded() -> Tokenizer:
    return Tokenizer.load(MODELS / "smollm2-135m")


def small(**changes: object) -> dict[str, object]:
    """A byte-level vocabulary with one merge and one word that no merge makes."""
    tokens = [*_BYTES, "ab", "xyz", "<s>", "</s>"]
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "merges": ["a b"],
        "token_type": [NORMAL] * 258 + [CONTROL] * 2,
        "bos_token_id": 258,
        "eos_token_id": 259,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items() if value is not None}


def words(pre: str, text: str) -> list[str]:
    """How a way of cutting divides a text, with spaces as _."""
    backend = Tokenizer.from_gguf(small(pre=pre)).backend
    return [word.replace("Ġ", "_").replace("Ċ", "|") for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


def test_hostile_texts_have_the_ids_of_the_folder(built, loaded):
    for text in HOSTILE:
        assert built.encode(text) == loaded.encode(text)
        assert built.decode(loaded.encode(text), skip_special_tokens=False) == loaded.decode(
            loaded.encode(text), skip_special_tokens=False
        )


@given(st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=12)), max_size=6).map("".join))
@settings(max_examples=300)
def test_any_text_has_the_ids_of_the_folder(built, loaded, text):
    assert built.encode(text) == loaded.encode(text)


def test_what_stands_around_the_vocabulary_is_that_of_the_folder(built, loaded):
    for attribute in ("bos_token_id", "eos_token_ids", "pad_token_id", "vocab_size", "chat_template", "special_tokens"):
        assert getattr(built, attribute) == getattr(loaded, attribute)
    assert built.decode(built.encode("<|im_start|>x<|im_end|>")) == "x"


def test_a_built_tokenizer_is_saved_like_any_other(built, tmp_path):
    built.save(tmp_path)
    again, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert (again.bos_token_id, again.eos_token_ids, again.pad_token_id) == (
        built.bos_token_id,
        built.eos_token_ids,
        built.pad_token_id,
    )
    for text in HOSTILE:
        assert again.encode(text) == built.encode(text) == theirs(text)["input_ids"]


def test_each_way_of_cutting_has_its_words():
    text = "It's 12345  x\n\nA'LL"
    gpt2 = ["It", "'s", "_12345", "_", "_x", "|", "|", "A", "'", "LL"]
    assert words("gpt-2", text) == words("phi-2", text) == gpt2
    digits = ["It", "'s", "_", "1", "2", "3", "4", "5", "_", "_x", "|", "|", "A", "'", "LL"]
    assert words("smollm", text) == words("starcoder", text) == words("refact", text) == digits
    assert words("command-r", text) == digits
    llama3 = ["It", "'s", "_", "123", "45", "_", "_x", "||", "A", "'LL"]
    assert words("llama-bpe", text) == words("llama3", text) == words("llama-v3", text) == llama3
    assert words("qwen2", text) == ["It", "'s", "_", "1", "2", "3", "4", "5", "_", "_x", "||", "A", "'LL"]


def test_qwen_composes_characters_and_llama_does_not():
    split, whole = "e\u0301", "\u00e9"
    qwen, llama = (Tokenizer.from_gguf(small(pre=pre, add_bos_token=False)) for pre in ("qwen2", "llama-bpe"))
    assert qwen.encode(split) == qwen.encode(whole)
    assert llama.decode(llama.encode(split)) == split


def test_llama_takes_a_known_word_whole():
    assert Tokenizer.from_gguf(small(pre="llama-bpe")).encode("xyz", add_special_tokens=False) == [257]
    assert len(Tokenizer.from_gguf(small(pre="qwen2")).encode("xyz", add_special_tokens=False)) == 3


def test_a_text_begins_and_ends_as_the_file_says():
    a = list(_BYTES).index("a")
    assert Tokenizer.from_gguf(small()).encode("a") == [a]
    assert Tokenizer.from_gguf(small(pre="llama-bpe")).encode("a") == [258, a]
    assert Tokenizer.from_gguf(small(pre="llama-bpe", add_bos_token=False)).encode("a") == [a]
    assert Tokenizer.from_gguf(small(add_bos_token=True, add_eos_token=True)).encode("a") == [258, a, 259]
    assert Tokenizer.from_gguf(small(add_bos_token=True)).encode("a", add_special_tokens=False) == [a]


def test_all_tokens_that_end_a_turn_end_a_text():
    tokenizer = Tokenizer.from_gguf(small(eot_token_id=258, eom_token_id=3))
    assert tokenizer.eos_token_ids == {259, 258, 3}


def test_a_token_of_the_user_is_found_in_text_and_stays_in_it():
    tokenizer = Tokenizer.from_gguf(small(token_type=[NORMAL] * 257 + [USER_DEFINED] + [CONTROL] * 2))
    assert tokenizer.decode(tokenizer.encode("axyzb<s>")) == "axyzb"
    assert 257 in tokenizer.encode("axyzb")


def test_lists_may_be_arrays_of_numpy():
    types = np.array([NORMAL] * 258 + [CONTROL] * 2, dtype=np.int32)
    assert Tokenizer.from_gguf(small(token_type=types)).encode("ab") == [256]


def sentence_piece(**changes: object) -> dict[str, object]:
    """A small vocabulary of pieces with scores, and all bytes."""
    pieces = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "▁▁", "bc"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    values = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *bytes_, *pieces],
        "scores": [0.0] * 259 + [-100.0, -101.0, -102.0, -103.0, -1.0, -2.0, -3.0, -4.0, -0.5],
        "token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items() if value is not None}


def test_sentence_pieces_are_joined_by_score_and_fall_back_to_bytes():
    tokenizer = Tokenizer.from_gguf(sentence_piece())
    assert tokenizer.texts(tokenizer.encode("ab abc")) == ["<s>", " ab", " a", "bc"]
    assert tokenizer.texts(tokenizer.encode("aé\n")) == ["<s>", " a", r"\xc3", r"\xa9", "\n"]
    for text in ("ab abc", "  a  b", "é🦜\n", "", " "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, {2})


def test_sentence_pieces_without_a_first_space():
    tokenizer = Tokenizer.from_gguf(sentence_piece(add_space_prefix=False, add_bos_token=False))
    assert tokenizer.texts(tokenizer.encode("ab ab")) == ["ab", " ab"]
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"


def word_piece(tokens: list[str]) -> dict[str, object]:
    """BERT's vocabulary as GGUF writes it: pieces that begin a word are marked, not those that go on with one."""

    def written(token: str) -> str:
        if token.startswith("[") and token.endswith("]"):
            return token
        return token[2:] if token.startswith("##") else f"▁{token}"

    named = {"bos": "[CLS]", "seperator": "[SEP]", "unknown": "[UNK]", "padding": "[PAD]", "mask": "[MASK]"}
    numbers = {f"tokenizer.ggml.{key}_token_id": tokens.index(token) for key, token in named.items()}
    types = [CONTROL if token in named.values() else NORMAL for token in tokens]
    lists = {"tokenizer.ggml.tokens": [written(token) for token in tokens], "tokenizer.ggml.token_type": types}
    return {"tokenizer.ggml.model": "bert", **lists, **numbers}


def test_word_pieces_have_the_ids_of_the_folder():
    folder = MODELS / "minilm-l6"
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    built, loaded = Tokenizer.from_gguf(word_piece(list(vocabulary))), Tokenizer.load(folder)
    for text in [*HOSTILE, "Unbelievably Sightless [MASK] Crème brûlée"]:
        assert built.encode(text) == loaded.encode(text)
        assert built.decode(loaded.encode(text)) == loaded.decode(loaded.encode(text))
    for attribute in ("bos_token_id", "eos_token_ids", "pad_token_id", "vocab_size", "special_tokens"):
        assert getattr(built, attribute) == getattr(loaded, attribute)


def test_a_vocabulary_with_capitals_keeps_them():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Anna", "anna", "##s"]
    tokenizer = Tokenizer.from_gguf(word_piece(tokens))
    assert tokenizer.texts(tokenizer.encode("Anna annas")) == ["[CLS]", "Anna", "anna", "##s", "[SEP]"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "model: .*gpt2, llama, bert.*None"),
        (small(model="rwkv"), "model: .*'rwkv'"),
        (small(pre="default"), r"pre: .*gpt-2.*'default'"),
        (small(pre=None), "pre: .*None"),
        (small(add_space_prefix=True), "add_space_prefix is set"),
        (small(tokens=None), "tokens is not in the file"),
        (small(tokens="abc"), "tokens should be a list of str, but is abc"),
        (small(tokens=[1, 2]), "tokens should be a list of str"),
        (small(tokens=["a", "a"], token_type=[1, 1]), "has 'a' twice"),
        (small(token_type=[1]), "260 tokens and 1 token types"),
        (small(token_type=["1"] * 260), "token_type should be a list of int"),
        (small(merges=None), "merges is not in the file"),
        (small(merges=["abc"]), "each should be two tokens"),
        (small(merges=["a nowhere"]), "GGUF file .*out of vocabulary"),
        (small(bos_token_id=260), r"bos_token_id is 260, and the ids are 0 to 259"),
        (small(eos_token_id="x"), "eos_token_id is 'x'"),
        (sentence_piece(scores=[0.0]), "268 tokens and 1 scores"),
        (sentence_piece(scores=[float("nan")] * 268), "that is not finite"),
        (sentence_piece(scores=[0.0] * 268), "have the same score"),
        (sentence_piece(remove_extra_whitespaces=True), "remove_extra_whitespaces is set"),
        ({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["[CLS]"]}, "kind bert needs"),
        ({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a", "▁##a"]}, "same piece of a word"),
    ],
)  # fmt: skip
def test_what_is_not_known_exactly_is_refused_by_name(values, reason):
    with pytest.raises(CheckpointError, match=reason):
        Tokenizer.from_gguf(values)
