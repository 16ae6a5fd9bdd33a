import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.errors import CheckpointError, VocabularyError
from attnscope.models.text.character_tokenizer import CharacterTokenizer


@given(st.text())
def test_text_comes_back_from_its_ids(text):
    tokenizer = CharacterTokenizer.from_text(text)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokenizer.texts(tokens) == list(text)
    assert sorted(set(tokens)) == list(range(tokenizer.vocab_size))


def test_ids_follow_the_order_of_code_points():
    tokenizer = CharacterTokenizer.from_text("banana\n🦜é")
    assert tokenizer.texts(range(tokenizer.vocab_size)) == ["\n", "a", "b", "n", "é", "🦜"]


def test_nothing_begins_ends_or_pads_a_text():
    tokenizer = CharacterTokenizer.from_text("ab")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.pad_token_id, tokenizer.chat_template) == (
        None,
        frozenset(),
        None,
        None,
    )
    assert tokenizer.encode("ab", add_special_tokens=True) == tokenizer.encode("ab", add_special_tokens=False) == [0, 1]


def test_a_stream_gives_each_character_at_once():
    stream = CharacterTokenizer.from_text("ab🦜").stream()
    assert [stream.add(token) for token in (2, 0, 1)] == ["🦜", "a", "b"]
    assert stream.finish() == ""


def test_ids_may_be_a_tensor():
    assert CharacterTokenizer.from_text("abc").decode(torch.tensor([2, 0])) == "ca"


def test_an_unknown_character_is_refused_by_name():
    tokenizer = CharacterTokenizer.from_text("plain")
    with pytest.raises(
        VocabularyError, match=r"'é' \(LATIN SMALL LETTER E WITH ACUTE\) at position 4 is none of the 5"
    ):
        tokenizer.encode("plané")
    with pytest.raises(VocabularyError, match=r"'\\x00' \(U\+0000\) .* make the tokenizer from a text that has it"):
        tokenizer.encode("\x00")


@pytest.mark.parametrize("token", [-1, 3])
def test_an_unknown_id_is_refused(token):
    with pytest.raises(VocabularyError, match=f"id {token} .* 0 to 2"):
        CharacterTokenizer.from_text("abc").decode([token])


@pytest.mark.parametrize(("entries", "reason"), [(["a", "bc"], "got 'bc'"), (["a", "a"], "occurs twice")])
def test_entries_that_are_not_different_characters_are_refused(entries, reason):
    with pytest.raises(ValueError, match=reason):
        CharacterTokenizer(entries)


def test_a_saved_tokenizer_is_read_back_to_the_same(tmp_path):
    tokenizer = CharacterTokenizer.from_text('a\n"\\\x00é🦜\u2028\ud800')
    tokenizer.save(tmp_path / "new")
    assert CharacterTokenizer.load(tmp_path / "new") == tokenizer


@pytest.mark.parametrize("content", ["{}", '{"characters": ["a"]}', '{"characters": "aa"}', "a"])
def test_a_damaged_file_is_refused_by_name(tmp_path, content):
    (tmp_path / "characters.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"characters\.json(: expected .*'characters'| is not valid JSON)"):
        CharacterTokenizer.load(tmp_path)
