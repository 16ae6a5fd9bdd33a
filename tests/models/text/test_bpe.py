from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.errors import SettingError, VocabularyError
from attnscope.models import Tokenizer, train_bpe

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXTS = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]
END = "<|endoftext|>"
TOKENIZER = train_bpe(TEXTS, 1000)


@given(st.text())
def test_any_text_comes_back_from_its_ids(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=False) == text


def test_all_bytes_are_tokens_and_words_of_the_texts_are_too():
    assert TOKENIZER.vocab_size == 1000
    assert TOKENIZER.decode(TOKENIZER.encode("".join(map(chr, range(0x3000))))) == "".join(map(chr, range(0x3000)))
    assert len(TOKENIZER.encode(" attention")) == 1
    assert len({TOKENIZER.backend.id_to_token(token) for token in range(256)}) == 256
    assert all(len(TOKENIZER.backend.id_to_token(token)) == 1 for token in range(256))
    assert sum(len(TOKENIZER.encode(text)) for text in TEXTS) < 0.5 * sum(map(len, TEXTS))


def test_the_same_texts_give_the_same_tokens_on_any_number_of_threads(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    alone = train_bpe(TEXTS, 1000).backend.to_str()
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    assert train_bpe(iter(TEXTS), 1000).backend.to_str() == TOKENIZER.backend.to_str() == alone
    assert train_bpe(TEXTS[1:], 1000).backend.to_str() != alone


def test_the_end_is_kept_by_saving(tmp_path):
    tokenizer = train_bpe(TEXTS[:2], 300, end="<end>")
    assert (tokenizer.eos_token_ids, tokenizer.special_tokens) == ({299}, {"eos_token": "<end>"})
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (again.eos_token_ids, again.vocab_size) == ({299}, 300)
    assert again.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    assert again.decode([299, 298], skip_special_tokens=False).startswith("<end>")


def test_training_says_how_far_it_is_and_prints_nothing(capfd):
    reports = []
    train_bpe(["one", "two!"], 300, progress=reports.append)
    assert reports == [3, 7]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("end", ["e", "the", "Ġthe"])
def test_an_end_that_words_are_made_of_is_refused(end):
    with pytest.raises(SettingError, match=f"end is '{end}', which occurs in words of these texts"):
        train_bpe(TEXTS, 1000, end=end)


@pytest.mark.parametrize(
    ("texts", "size", "end", "reason"),
    [
        (TEXTS, 256, END, "expected a vocab_size of at least 257, .* got 256"),
        ("text", 300, END, r"got one string; pass \[text\]"),
        ([], 300, END, "there are no texts to learn from"),
        (TEXTS, 300, "", "end is empty"),
    ],
)
def test_what_cannot_be_learned_is_refused(texts, size, end, reason):
    with pytest.raises(SettingError, match=reason):
        train_bpe(texts, size, end=end)


def test_half_a_character_is_refused_by_its_place():
    with pytest.raises(VocabularyError, match=r"text 1 has half a character \('\\udc80'\) at position 2"):
        train_bpe(["fine", "no\udc80"], 300)
