from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from attnscope.errors import SettingError, UnsupportedError
from attnscope.models.text.any_tokenizer import AnyTokenizer, load_tokenizer
from attnscope.models.text.character_tokenizer import CharacterTokenizer
from attnscope.models.text.document_encoder import CHUNK_SIZE
from attnscope.models.text.tokenizer import Tokenizer
from attnscope.survey.corpus.documents import Document
from attnscope.survey.corpus.passages import Passage, PassageSplitter, find_special_tokens
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.settings import Settings

MODELS = Path(__file__).parents[3] / ".cache" / "models"
CHARACTERS = CharacterTokenizer.from_text("abcdefgh ")


@pytest.fixture(scope="module")
def minilm() -> AnyTokenizer:
    return load_tokenizer(MODELS / "minilm-l6")


@pytest.fixture(scope="module")
def smollm() -> AnyTokenizer:
    return load_tokenizer(MODELS / "smollm2-135m")


def settings_of(window: int | None) -> Settings:
    return Settings(model="model", sources=("a.txt",), max_length=window)


def passages(text: str, tokenizer: AnyTokenizer, window: int | None) -> list[Passage]:
    found = list(PassageSplitter(tokenizer, settings_of(window)).split([Document(text, "a.txt", 5)]))
    kept = [each for each in found if isinstance(each, Passage)]
    assert kept == found
    assert all((each.file, each.start) == ("a.txt", 5) for each in kept)
    return kept


def words(template: str) -> Tokenizer:
    """A tokenizer of words that puts something around a text."""
    vocabulary = {"?": 0, "<": 1, ">": 2, "word": 3}
    backend = Backend(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<", ">"])
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<", 1), (">", 2)])
    return Tokenizer(backend)


@given(st.text("abcdefgh ", max_size=60), st.integers(2, 20))
def test_windows_are_the_text_in_order_and_say_where_they_begin(text, window):
    found = passages(text, CHARACTERS, window)
    expected = [text[at : at + window] for at in range(0, len(text), window)]
    assert [CHARACTERS.decode(each.ids) for each in found] == [each for each in expected if len(each) >= 2]
    assert [each.offset for each in found] == [at * window for at, each in enumerate(expected) if len(each) >= 2]


def test_a_document_is_whole_without_windows(smollm):
    text = "A rose is a rose. " * 5000
    assert len(text) > CHUNK_SIZE
    [passage] = passages(text, smollm, None)
    assert passage.ids == smollm.encode(text)


def test_windows_of_a_long_document_are_those_of_all_its_tokens(smollm):
    text = "A rose is a rose,\n and 1234 é.\n\n" * 4000
    ids = smollm.encode(text)
    found = passages(text, smollm, 100)
    assert [each.ids for each in found] == [ids[at : at + 100] for at in range(0, len(ids), 100)]


def test_bert_has_its_special_tokens_around_each_passage(minilm):
    assert minilm.texts(find_special_tokens(minilm).before) == ["[CLS]"]
    assert minilm.texts(find_special_tokens(minilm).after) == ["[SEP]"]
    found = passages("a rose is a rose is a rose", minilm, 5)
    assert [minilm.texts(each.ids) for each in found] == [
        ["[CLS]", "a", "rose", "is", "[SEP]"],
        ["[CLS]", "a", "rose", "is", "[SEP]"],
        ["[CLS]", "a", "rose", "[SEP]"],
    ]
    assert [each.offset for each in found] == [0, 3, 6]
    [whole] = passages("a rose is a rose", minilm, None)
    assert whole.ids == minilm.encode("a rose is a rose")


def test_smollm_has_nothing_around_a_passage(smollm):
    assert find_special_tokens(smollm) == ([], [])
    [passage] = passages("a rose", smollm, 512)
    assert passage.ids == smollm.encode("a rose", add_special_tokens=False)


@pytest.mark.parametrize(("model", "special"), [("smollm", "<|endoftext|>"), ("minilm", "[SEP]")])
def test_what_looks_like_a_special_token_is_text(request, model, special):
    tokenizer = request.getfixturevalue(model)
    [passage] = passages(f"one {special} two", tokenizer, None)
    around = find_special_tokens(tokenizer)
    body = passage.ids[len(around.before) : len(passage.ids) - len(around.after)]
    [number] = tokenizer.encode(special, add_special_tokens=False)
    assert number not in body
    assert "".join(tokenizer.decode(body).split()) == "".join(f"one {special} two".split()).lower()


@pytest.mark.parametrize(
    ("template", "around"),
    [
        ("$A", ([], [])),
        ("< $A", ([1], [])),
        ("$A >", ([], [2])),
        ("< $A >", ([1], [2])),
        ("< < $A <", ([1, 1], [1])),
    ],
)
def test_what_a_tokenizer_puts_around_a_text_is_found(template, around):
    assert find_special_tokens(words(template)) == around


def test_a_tokenizer_whose_border_cannot_be_told_is_refused():
    class Odd(Tokenizer):
        def encode(self, text, *, add_special_tokens=True):
            return [0] * (len(text) + 2 * add_special_tokens)

    with pytest.raises(UnsupportedError, match="special tokens"):
        find_special_tokens(Odd(words("$A").backend))


def test_a_window_without_room_for_text_is_refused(minilm):
    with pytest.raises(SettingError, match=r"2 special tokens.*max_length.*at least 3"):
        PassageSplitter(minilm, settings_of(2)).split([])


def test_a_lone_token_is_left_out_unless_something_stands_around_it(minilm, smollm):
    assert passages("a", smollm, 10) == []
    assert [len(each.ids) for each in passages("a", minilm, 10)] == [3]
    assert passages(" \n ", minilm, 10) == []
    assert [len(each.ids) for each in passages("abcdefg", CHARACTERS, 3)] == [3, 3]


def test_problems_are_passed_on_and_a_document_that_is_refused_is_one():
    problem = Problem("a.txt", "byte 3", "is not UTF-8")
    documents = [
        Document("abc", "a.txt", 0),
        problem,
        Document("a?c", "a.txt", 1234),
        Document("a?c", "b.parquet", 17),
        Document("def", "a.txt", 9),
    ]
    first, second, third, fourth, last = PassageSplitter(CHARACTERS, settings_of(8)).split(documents)
    assert second == problem
    assert (third[0], third[1], fourth[0], fourth[1]) == ("a.txt", "byte 1,234", "b.parquet", "row 17")
    assert isinstance(third, Problem)
    assert "'?'" in third.reason
    assert [CHARACTERS.decode(each.ids) for each in (first, last) if isinstance(each, Passage)] == ["abc", "def"]


def test_the_tokenizer_is_not_changed_and_serves_many_shards(smollm):
    before = smollm.encode("<|endoftext|>")
    cutting = PassageSplitter(smollm, settings_of(4))
    found = [list(cutting.split([Document(f"number {shard} of many shards", "a.txt", 0)])) for shard in range(3)]
    assert found == [passages_of_text(f"number {shard} of many shards", smollm) for shard in range(3)]
    assert smollm.encode("<|endoftext|>") == before
    assert len(before) == 1


def passages_of_text(text: str, tokenizer: AnyTokenizer) -> list[Passage | Problem]:
    return list(PassageSplitter(tokenizer, settings_of(4)).split([Document(text, "a.txt", 0)]))
