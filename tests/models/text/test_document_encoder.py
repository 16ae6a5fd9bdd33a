from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from attnscope.errors import VocabularyError
from attnscope.models import CharacterTokenizer, Tokenizer, train_bpe
from attnscope.models.text import document_encoder
from attnscope.models.text.document_encoder import DocumentEncoder

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXTS = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]
END = "<|endoftext|>"
TOKENIZER = train_bpe(TEXTS, 1000)
DIGITS = train_bpe(TEXTS, 1000)
DIGITS.backend.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)


def ids_of(tokenizer, text: str) -> list[int]:
    return [token for piece in DocumentEncoder(tokenizer).encode_chunks(text) for token in piece]


@pytest.mark.parametrize("texts", [[f"the {END} of it"], [END * 50, f" {END}"] * 3])
def test_the_end_inside_a_document_stays_text(texts):
    tokenizer = train_bpe(texts, 400)
    [end] = tokenizer.eos_token_ids
    for text in texts:
        assert end in tokenizer.encode(text, add_special_tokens=False), "a prompt may hold the end, a document may not"
        ids = ids_of(tokenizer, text)
        assert end not in ids
        assert tokenizer.decode(ids) == text
        assert end in tokenizer.encode(text), "the tokenizer itself is unchanged"


def test_an_end_that_cannot_be_told_from_text_is_refused_in_a_document():
    tokenizer = train_bpe(["to be or not to be"], 300)
    [be] = tokenizer.encode(" be")
    tokenizer = Tokenizer(tokenizer.backend, eos_token_ids=[be])
    assert ids_of(tokenizer, "to do") == tokenizer.encode("to do")
    with pytest.raises(VocabularyError, match="the document contains ' be'"):
        ids_of(tokenizer, "to be")


@settings(max_examples=300)
@given(st.text(alphabet="ab1's.,!< \n\t\r\u00a0\u2003\x1cé中", max_size=40))
def test_pieces_are_those_of_the_whole_wherever_words_stand(text):
    for tokenizer in (TOKENIZER, DIGITS, CharacterTokenizer.from_text(text)):
        whole = tokenizer.encode(text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(document_encoder, "CHUNK_SIZE", 2)
            assert ids_of(tokenizer, text) == whole


def test_pieces_are_as_small_as_words_allow(monkeypatch):
    monkeypatch.setattr(document_encoder, "CHUNK_SIZE", 2)
    for tokenizer in (TOKENIZER, DIGITS):
        found = [
            tokenizer.decode(piece) for piece in DocumentEncoder(tokenizer).encode_chunks("what 1  12\n is, \n a head")
        ]
        assert found == ["what", " 1", "  12", "\n is,", " \n a", " head"]


def test_a_long_document_is_encoded_in_pieces():
    text = "".join(TEXTS) * 3
    pieces = list(DocumentEncoder(TOKENIZER).encode_chunks(text))
    assert len(pieces) == -(-len(text) // document_encoder.CHUNK_SIZE) >= 3
    assert [token for piece in pieces for token in piece] == TOKENIZER.encode(text)


def test_a_tokenizer_that_looks_further_takes_the_whole_document(monkeypatch):
    tokenizer, pre = train_bpe(TEXTS, 1000), pre_tokenizers
    tokenizer.backend.pre_tokenizer = pre.Sequence([pre.Split("s a", "isolated"), pre.ByteLevel(use_regex=False)])
    monkeypatch.setattr(document_encoder, "CHUNK_SIZE", 2)
    assert [*DocumentEncoder(tokenizer).encode_chunks("heads attend")] == [tokenizer.encode("heads attend")]


def test_what_cannot_be_encoded_is_found_at_its_place_in_the_document(monkeypatch):
    monkeypatch.setattr(document_encoder, "CHUNK_SIZE", 2)
    with pytest.raises(VocabularyError, match=r"'é' .* at position 6 "):
        ids_of(CharacterTokenizer.from_text("plain"), "plainpé")
    with pytest.raises(VocabularyError, match=r"'\\ud800'\) at position 6;"):
        ids_of(TOKENIZER, "a b c \ud800")
