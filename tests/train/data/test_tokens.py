import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.errors import CheckpointError, SettingError, VocabularyError
from attnscope.models import CharacterTokenizer, Tokenizer, load_tokenizer, train_bpe
from attnscope.models.checked_json import encode_checked_json
from attnscope.train.data.tokens import Tokens, open_tokens, train_validation_split, write_tokens

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXTS = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]
LETTERS = CharacterTokenizer("abcdefgh")
BPE = train_bpe(TEXTS, 500)


class Wide(CharacterTokenizer):
    """A vocabulary of any size, and ids at its end."""

    size, first, eos_token_ids = 2**16, 2**16 - 8, frozenset({5, 7})

    @property
    def vocab_size(self) -> int:
        return self.size

    def encode(self, text, *, add_special_tokens=True):
        return [self.first + number for number in super().encode(text)]


def listed(tokens: Tokens) -> list[int]:
    return tokens.window(0, len(tokens)).tolist()


@pytest.mark.parametrize("shard_tokens", [997, 2**27])
def test_every_document_comes_back_with_its_end(tmp_path, shard_tokens):
    reports = []
    tokens = write_tokens(iter(TEXTS), BPE, tmp_path / "a", shard_tokens=shard_tokens, progress=reports.append)
    [end] = BPE.eos_token_ids
    borders = [*tokens.starts.tolist(), len(tokens)]
    found = [tokens.window(start, stop - start).tolist() for start, stop in pairwise(borders)]
    assert [ids[-1] for ids in found] == [end] * len(TEXTS)
    assert [BPE.decode(ids[:-1], skip_special_tokens=False) for ids in found] == TEXTS
    assert reports == borders[1:]


@given(
    st.lists(st.text("abcdefgh", min_size=1, max_size=9), min_size=1, max_size=6),
    st.integers(1, 8),
    st.data(),
)
def test_any_stretch_is_that_of_all_documents_in_a_row(tmp_path_factory, texts, shard_tokens, data):
    folder = tmp_path_factory.mktemp("tokens") / "new"
    tokens = write_tokens(texts, LETTERS, folder, shard_tokens=shard_tokens)
    whole = [token for text in texts for token in LETTERS.encode(text)]
    numbers = [number for number, text in enumerate(texts) for _ in text]
    shards = sorted(path.name for path in folder.glob("tokens-*.bin"))
    assert shards == [f"tokens-{number:05}.bin" for number in range(-(-len(whole) // shard_tokens))]
    first = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(first + 1, len(whole)))
    part = tokens.part(first, stop)
    assert len(part) == stop - first
    assert listed(part) == whole[first:stop]
    assert part.starts.tolist() == [
        at for at in range(stop - first) if not at or numbers[first + at - 1 : first + at] != [numbers[first + at]]
    ]
    start = data.draw(st.integers(0, len(part) - 1))
    length = data.draw(st.integers(1, len(part) - start))
    begin = first + start
    assert part.window(start, length).tolist() == whole[begin : begin + length]
    assert part.document_ids(start, length).tolist() == [
        number - numbers[begin] for number in numbers[begin : begin + length]
    ]
    assert part.window(start, length).dtype == part.document_ids(start, length).dtype == torch.int64


@pytest.mark.parametrize(("size", "dtype"), [(2**16, "uint16"), (2**16 + 1, "uint32"), (200_000, "uint32")])
def test_ids_take_as_many_bytes_as_the_vocabulary_needs(tmp_path, size, dtype, monkeypatch):
    monkeypatch.setattr(Wide, "size", size)
    monkeypatch.setattr(Wide, "first", size - 8)
    tokens = write_tokens(["hag", "h"], Wide("abcdefgh"), tmp_path / "a")
    assert listed(tokens) == [size - 1, size - 8, size - 2, 5, size - 1, 5]
    assert json.loads((tmp_path / "a" / "tokens.json").read_text())["dtype"] == dtype
    stored = np.fromfile(tmp_path / "a" / "tokens-00000.bin", {"uint16": "<u2", "uint32": "<u4"}[dtype])
    assert stored.tolist() == listed(tokens)


def test_an_id_beyond_the_vocabulary_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Wide, "first", 2**16 - 7)
    with pytest.raises(VocabularyError, match=r"document 1: .*vocab_size, 65,536, got 65,536"):
        write_tokens(["abc", "h"], Wide("abcdefgh"), tmp_path / "a")


def test_documents_without_tokens_are_left_out(tmp_path):
    tokens = write_tokens(["", "ab", "", "", "c", ""], LETTERS, tmp_path / "a")
    assert tokens.starts.tolist() == [0, 2]
    with pytest.raises(SettingError, match=r"write_tokens: .*at least one token"):
        write_tokens(["", ""], LETTERS, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_end_inside_a_document_does_not_end_it(tmp_path):
    text = "before <|endoftext|> after"
    tokens = write_tokens([text, "more"], BPE, tmp_path / "a")
    [end] = BPE.eos_token_ids
    assert listed(tokens).count(end) == 2
    assert BPE.decode(tokens.window(0, int(tokens.starts[1]) - 1)) == text


def test_what_the_vocabulary_lacks_is_refused_with_its_document_and_leaves_nothing(tmp_path):
    with pytest.raises(VocabularyError, match=r"document 1: the character 'z' .* at position 2"):
        write_tokens(["ab", "abz"], LETTERS, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_off_write_leaves_nothing(tmp_path):
    def documents():
        yield "abc"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tokens(documents(), LETTERS, tmp_path / "a", shard_tokens=1)
    assert list(tmp_path.iterdir()) == []


def test_tokens_that_are_there_are_not_written_over(tmp_path):
    (tmp_path / "a").mkdir()
    write_tokens(["ab"], LETTERS, tmp_path / "a")
    with pytest.raises(SettingError, match=r"write_tokens: .*a; .*open_tokens"):
        write_tokens(["cd"], LETTERS, tmp_path / "a")
    assert listed(open_tokens(tmp_path / "a")) == [0, 1]
    (tmp_path / "b").touch()
    with pytest.raises(SettingError, match=r"write_tokens: .*b; .*open_tokens"):
        write_tokens(["cd"], LETTERS, tmp_path / "b")


def test_others_may_read_the_folder_as_they_may_any(tmp_path):
    (tmp_path / "usual").mkdir()
    write_tokens(["ab"], LETTERS, tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("tokenizer", [LETTERS, BPE], ids=["characters", "bpe"])
def test_a_cache_knows_its_tokenizer(tmp_path, tokenizer):
    write_tokens(["abc"], tokenizer, tmp_path / "a")
    tokenizer.save(tmp_path / "tokenizer")
    assert (
        listed(open_tokens(tmp_path / "a", load_tokenizer(tmp_path / "tokenizer")))[:1] == tokenizer.encode("abc")[:1]
    )
    others = [CharacterTokenizer("abcdefg"), CharacterTokenizer("hgfedcba"), train_bpe(TEXTS, 499)]
    for other in [*others, Tokenizer(BPE.backend), train_bpe(TEXTS, 500, end="<end>")]:
        with pytest.raises(CheckpointError, match="another tokenizer"):
            open_tokens(tmp_path / "a", other)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("tokens-00001.bin", lambda content: content[:-1], r"tokens-00001\.bin: expected 6 bytes, got 5 bytes; delete"),
        ("tokens-00000.bin", lambda content: content + b"\0\0", r"tokens-00000\.bin: expected 6 bytes, got 8"),
        ("tokens-00002.bin", None, r"tokens-00002\.bin: expected .* got no file"),
        ("documents.bin", lambda content: content[:8], r"documents\.bin: expected 16 bytes, got 8"),
        ("documents.bin", lambda content: content[8:] + content[:8], r"documents\.bin .* tokens\.json"),
        ("documents.bin", lambda content: content[:9] + b"\1" + content[10:], r"documents\.bin .* tokens\.json"),
        ("tokens-00001.bin", lambda content: b"\1" + content[1:], r"tokens-00001\.bin is damaged: its checksum"),
        ("tokens.json", lambda content: content.replace(b"uint16", b"uint32"), "tokens.json is damaged: its checksum"),
        ("tokens.json", None, r"no tokens\.json; .*write_tokens"),
        ("tokens.json", lambda content: content[:-9], r"tokens\.json is not valid JSON"),
        ("tokens.json", lambda content: b"{}", r"tokens\.json .*not a manifest"),
        ("tokens.json", lambda content: content.replace(b'version": 2', b'version": 1'), "version 2, got 1; del"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_refused_by_name(tmp_path, name, change, reason):
    write_tokens(["abcd", "efg"], LETTERS, tmp_path / "a", shard_tokens=3)
    path = tmp_path / "a" / name
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        assert change(content) != content
        path.write_bytes(change(content))
    with pytest.raises(CheckpointError, match=reason):
        open_tokens(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "float8"}, "dtype: 'float8'"),
        ({"dtype": "uint32"}, "expected 12 bytes, got 6"),
        ({"documents": True}, "documents: True"),
        ({"shards": [0, 0, 1]}, r"shards: \[0, 0, 1\]"),
        ({"vocab_size": None}, "vocab_size: None"),
        ({"crc32": []}, r"crc32: \[\]"),
        ({"crc32": {}}, "crc32 does not have the checksums of all files"),
        ({"crc32": {"../a/documents.bin": "0"}}, "crc32 does not have the checksums of all files"),
        ({"more": 1}, "more: 1;"),
    ],
)
def test_a_manifest_with_other_fields_and_the_right_checksum_is_refused(tmp_path, change, reason):
    write_tokens(["abcd", "efg"], LETTERS, tmp_path / "a", shard_tokens=3)
    path = tmp_path / "a" / "tokens.json"
    path.write_bytes(encode_checked_json(json.loads(path.read_bytes()) | change))
    with pytest.raises(CheckpointError, match=reason):
        open_tokens(tmp_path / "a")


def test_every_flipped_bit_of_the_tokens_is_found(tmp_path):
    before = listed(write_tokens(["abcd", "efg"], LETTERS, tmp_path / "a", shard_tokens=3))
    for path in sorted((tmp_path / "a").iterdir()):
        whole = path.read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            if path.suffix == ".bin" or json_or_none(damaged) != json.loads(whole):
                with pytest.raises(CheckpointError):
                    open_tokens(tmp_path / "a")
        path.write_bytes(whole)
    assert listed(open_tokens(tmp_path / "a")) == before


def json_or_none(content):
    try:
        return json.loads(bytes(content))
    except ValueError:
        return None


def test_what_a_killed_process_left_behind_is_removed(tmp_path):
    (tmp_path / ".unfinished-a-0123" / "tokens").mkdir(parents=True)
    write_tokens(["abcd"], LETTERS, tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_can_be_moved(tmp_path):
    write_tokens(["abcd"], LETTERS, tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert listed(open_tokens(tmp_path / "b")) == [0, 1, 2, 3]


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 0), (0, 5), (4, 1), (3, -1)])
def test_what_is_not_there_is_refused(tmp_path, start, length):
    tokens = write_tokens(["abcdef"], LETTERS, tmp_path / "a").part(1, 5)
    for ask in (tokens.window, tokens.document_ids, lambda start, length: tokens.part(start, start + length)):
        with pytest.raises(SettingError, match="within 0 to 4, got "):
            ask(start, length)


@pytest.mark.parametrize(
    ("documents", "share", "training"),
    [
        ((50, 50), 0.5, 50),
        ((88, 12), 0.1, 88),  # moved back to a document's beginning
        ((93, 7), 0.1, 93),  # or on to one
        ((86, 6, 8), 0.1, 92),  # the nearer one
        ((70, 30), 0.1, 90),  # too far
        ((98, 2), 0.1, 90),
        ((100,), 0.1, 90),
        ((1,) * 100, 0.25, 75),
    ],
)
def test_the_last_share_is_for_validation(tmp_path, documents, share, training):
    texts = ["abcdefgh"[number % 8] * size for number, size in enumerate(documents)]
    tokens = write_tokens(texts, LETTERS, tmp_path / "a")
    first, second = train_validation_split(tokens, share)
    assert len(first) == training
    assert listed(first) + listed(second) == listed(tokens)


def test_a_part_can_be_split_again(tmp_path):
    tokens = write_tokens(["a" * 10, "b" * 10, "c" * 10], LETTERS, tmp_path / "a").part(5, 30)
    first, second = train_validation_split(tokens, 0.4)
    assert (listed(first), listed(second)) == ([0] * 5 + [1] * 10, [2] * 10)
    assert first.starts.tolist() == [0, 5]
    assert second.document_ids(0, 10).tolist() == [0] * 10


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(tmp_path, share):
    tokens = write_tokens(["abc"], LETTERS, tmp_path / "a")
    with pytest.raises(SettingError, match="between 0 and 1"):
        train_validation_split(tokens, share)
    with pytest.raises(SettingError, match="leaves one part empty"):
        train_validation_split(tokens, 0.01)


def test_wrong_questions_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"write_tokens: .*\[text\]"):
        write_tokens("abc", LETTERS, tmp_path / "a")
    with pytest.raises(SettingError, match=r"shard_tokens .* got 0"):
        write_tokens(["abc"], LETTERS, tmp_path / "a", shard_tokens=0)
