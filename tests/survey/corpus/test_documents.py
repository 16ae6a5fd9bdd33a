import errno
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import fsspec
import pyarrow as arrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from attnscope.errors import CheckpointError, SettingError
from attnscope.survey.corpus import documents, lines
from attnscope.survey.corpus.documents import Document, ShardDocuments
from attnscope.survey.corpus.files import AccessError
from attnscope.survey.corpus.plan import Problem, Shard, Span, plan_shards
from attnscope.survey.settings import Settings

FACTOR = 8  # times `MAX_TEXT_BYTES`: a line is held as blocks, as bytes, as text that takes four bytes a character

ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\r", ""])
WORDS = st.text(st.sampled_from("ab -é€😀\u2028\x0b\x85"), max_size=6)


def settings_of(*sources, **settings) -> Settings:
    return Settings(model="model", sources=tuple(map(str, sources)), **settings)


def read(settings: Settings) -> list[Document | Problem]:
    """Everything that all shards give, in their order."""
    return [found for shard in plan_shards(settings).shards for found in ShardDocuments(shard, settings)]


def whole(settings: Settings) -> list[Document]:
    """All documents of a corpus that has no problems."""
    found = read(settings)
    kept = [each for each in found if isinstance(each, Document)]
    assert kept == found
    return kept


def texts(settings: Settings) -> list[str]:
    return [document.text for document in whole(settings)]


def problems(settings: Settings) -> list[Problem]:
    return [each for each in read(settings) if isinstance(each, Problem)]


def write_parquet(path: Path, values: list, *, rows: int = 2, dtype=None, **options) -> Path:
    table = arrow.table({"id": list(range(len(values))), "text": arrow.array(values, dtype or arrow.string())})
    parquet.write_table(table, path, row_group_size=rows, **options)
    return path


@given(st.lists(st.tuples(WORDS, ENDS)), st.integers(1, 40))
def test_the_parts_of_an_undivided_text_are_the_file_byte_for_byte(tmp_path_factory, pieces, most):
    content = "".join(word + end for word, end in pieces).encode() or b"x"
    path = tmp_path_factory.mktemp("undivided") / "a.txt"
    path.write_bytes(content)
    found = whole(settings_of(path, shard_bytes=most))
    assert b"".join(document.text.encode() for document in found) == content
    assert all(content[document.start :].startswith(document.text.encode()) for document in found)
    starts = [document.start for document in found]
    assert all(start == 0 or content[start - 1 : start] == b"\n" for start in starts)


@given(st.lists(st.tuples(st.one_of(WORDS, st.just("--")), ENDS)), st.integers(1, 40), st.sampled_from(["--", "", "é"]))
def test_any_division_gives_the_same_separated_documents(tmp_path_factory, pieces, most, separator):
    content = "".join(word + end for word, end in pieces).encode() or b"x"
    path = tmp_path_factory.mktemp("separated") / "a.txt"
    path.write_bytes(content)
    expected, start, held = [], 0, b""
    for line in content.split(b"\n"):
        ended = start + len(held) + len(line) < len(content)  # every line but the last has lost its end
        full = line + b"\n" * ended
        if line.removesuffix(b"\r") == separator.encode() and full:
            expected.append((held.decode(), start))
            start, held = start + len(held) + len(full), b""
        else:
            held += full
    expected.append((held.decode(), start))
    found = whole(settings_of(path, shard_bytes=most, separator=separator))
    assert [(document.text, document.start) for document in found] == [each for each in expected if each[0]]


@given(st.lists(st.tuples(st.one_of(st.none(), WORDS), st.sampled_from(["\n", "\r\n", "\n\n \n"]))), st.integers(1, 60))
def test_any_division_gives_the_same_lines_of_json(tmp_path_factory, values, most):
    path, expected = tmp_path_factory.mktemp("json") / "a.jsonl", []
    content = b""
    for number, (text, end) in enumerate(values):
        line = json.dumps({"id": number, "text": text}, ensure_ascii=number % 2 == 0).encode()
        expected += [(text, len(content))] if text != "" else []
        content += line + end.encode()
    last = json.dumps({"text": "last"}).encode()
    path.write_bytes(content + last)
    found = read(settings_of(path, shard_bytes=most))
    places = [int(each.start if isinstance(each, Document) else each.location[5:].replace(",", "")) for each in found]
    assert places == [start for _, start in expected] + [len(content)]
    kept = [each.text if isinstance(each, Document) else None for each in found]
    assert kept == [text for text, _ in expected] + ["last"]


@given(st.lists(st.one_of(st.none(), st.text(max_size=4)), min_size=1), st.integers(1, 5), st.integers(1, 200))
def test_any_division_gives_the_same_rows_of_parquet(tmp_path_factory, values, rows, most):
    path = write_parquet(tmp_path_factory.mktemp("rows") / "a.parquet", values, rows=rows)
    found = whole(settings_of(path, shard_bytes=most))
    assert [(each.text, each.start) for each in found] == [(text, row) for row, text in enumerate(values) if text]


def test_documents_come_from_disk_and_memory_in_the_order_of_the_sources(tmp_path):
    system = fsspec.filesystem("memory")
    system.pipe("/corpus/b.txt", "é\r\n".encode())
    system.pipe("/corpus/a.jsonl", b'{"body": "a"}\n')
    write_parquet(tmp_path / "c.parquet", ["not asked for"])
    (tmp_path / "c.jsonl").write_text('{"body": "c"}')
    try:
        settings = settings_of(tmp_path / "c.jsonl", "memory://corpus/*", field="body")
        assert texts(settings) == ["c", "a", "é\r\n"]
    finally:
        system.rm("/corpus", recursive=True)


def test_what_cannot_be_held_is_passed_over_in_every_form(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_TEXT_BYTES", 20)
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 20)
    path = tmp_path / "a.txt"
    path.write_bytes(b"before\n" + b"x" * 50 + b"\nafter\n")
    for most in (1, 5, 30, 1000):
        found = read(settings_of(path, shard_bytes=most))
        assert "".join(each.text for each in found if isinstance(each, Document)) == "before\nafter\n"
        assert [each.location for each in found if isinstance(each, Problem)] == ["byte 7"]
    path.write_bytes(b"a\n--\n" + b"short\n" * 10 + b"--\nb\n--\n" + b"y" * 50)
    for most in (1, 5, 30, 1000):
        found = read(settings_of(path, shard_bytes=most, separator="--"))
        assert [each.text if isinstance(each, Document) else each.location for each in found] == [
            "a\n",
            "byte 5",
            "b\n",
            "byte 73",
        ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "' + b"x" * 50 + b'"}\n{"text": "b"}\n')
    for most in (1, 5, 30, 1000):
        found = read(settings_of(path, shard_bytes=most))
        assert [each.text if isinstance(each, Document) else each.location for each in found] == ["a", "byte 14", "b"]
    path = write_parquet(tmp_path / "a.parquet", ["a", "x" * 21, "b"])
    assert [each.text if isinstance(each, Document) else each.location for each in read(settings_of(path))] == [
        "a",
        "row 1",
        "b",
    ]


def test_a_text_that_cannot_be_held_at_once_comes_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 20)
    path = tmp_path / "a.txt"
    path.write_bytes(b"seven b\n" * 6)
    assert texts(settings_of(path)) == ["seven b\nseven b\n"] * 3


MEASURE = """
import sys, resource
from attnscope.survey.corpus.documents import Document, ShardDocuments
from attnscope.survey.corpus.plan import plan_shards
from attnscope.survey.settings import Settings
settings = Settings(model="model", sources=(sys.argv[1],), shard_bytes=int(sys.argv[2]), separator=sys.argv[3] or None)
plan = plan_shards(settings)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for shard in plan.shards:
    for found in ShardDocuments(shard, settings):
        print(found.text if isinstance(found, Document) else found.location)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(
    ("name", "most", "separator", "expected"),
    [
        ("a.jsonl", 2**30, "", ["a", "byte 14", "b"]),
        ("a.jsonl", 2**24, "", ["a", "byte 14", "b"]),
        ("a.txt", 2**30, "", ['{"text": "a"}', "", "byte 14", '{"text": "b"}']),
        ("a.txt", 2**24, "--", ["byte 0"]),
    ],
)
def test_a_line_of_200_megabytes_is_a_problem_and_takes_no_memory(tmp_path, name, most, separator, expected):
    size = 200_000_000
    with open(tmp_path / name, "wb") as file:
        file.write(b'{"text": "a"}\n')
        file.seek(size)  # zeros, which take no room on the disk
        file.write(b'\n{"text": "b"}')
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / name), str(most), separator],
        capture_output=True,
        text=True,
        check=True,
    )
    *found, kibibytes = done.stdout.splitlines()
    assert found == expected
    assert int(kibibytes) * 1024 < FACTOR * lines.MAX_TEXT_BYTES


def test_bad_utf8_is_a_problem_with_its_byte_and_the_line_is_left_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nth\xffree\nfour\n\xc3\n\xc3")
    for told in ({}, {"separator": "--"}):
        found = read(settings_of(path, **told))
        assert [(each.text, each.start) if isinstance(each, Document) else each.location for each in found] == [
            ("one\ntwo\n", 0),
            "byte 10",
            ("four\n", 15),
            "byte 20",
            "byte 22",
        ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n{"text": "b"}\n')
    found = read(settings_of(path))
    assert [each.text if isinstance(each, Document) else each.location for each in found] == ["a", "byte 24", "b"]


def test_a_file_in_another_encoding_has_a_few_problems_and_then_their_number(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xe9t\xe9\n" * 1000 + b"good\n")
    found = read(settings_of(path))
    assert len([each for each in found if isinstance(each, Problem)]) == documents.MAX_PROBLEMS_PER_SPAN + 1
    assert isinstance(found[-1], Problem)
    assert "has 900 more problems" in found[-1].reason
    assert [each.text for each in found if isinstance(each, Document)] == ["good\n"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": ', "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b'["text"]', "not an object with a field 'text'"),
        (b'{"body": "a"}', "has no field 'text'"),
        (b'{"text": null}', "has a field 'text' that is not a string"),
        (b'{"text": ["a"]}', "has a field 'text' that is not a string"),
        (b'{"text": "\\ud83d"}', "surrogate"),
    ],
)
def test_a_broken_line_of_json_is_a_problem_with_its_byte(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n' + line + b'\r\n{"text": "\\ud83d\\ude00"}\n')
    first, problem, last = read(settings_of(path))
    assert isinstance(first, Document)
    assert isinstance(last, Document)
    assert (first.text, last.text) == ("a", "😀")
    assert isinstance(problem, Problem)
    assert (problem.file, problem.location) == (str(path), "byte 17")
    assert reason in problem.reason


def test_a_damaged_row_group_is_a_problem_and_the_others_are_read(tmp_path):
    values = [f"text {number} " * 50 for number in range(6)]
    told = {"use_dictionary": False, "compression": "zstd", "write_page_checksum": True}
    path = write_parquet(tmp_path / "a.parquet", values, **told)
    group = parquet.ParquetFile(path).metadata.row_group(1).column(1)
    content = bytearray(path.read_bytes())
    end = group.data_page_offset + group.total_compressed_size  # a page begins with a header, and ends with values
    content[end - 12 : end - 4] = b"\xff" * 8
    path.write_bytes(content)
    for most in (1, 2**20):
        found = read(settings_of(path, shard_bytes=most))
        assert [each.text if isinstance(each, Document) else each.location for each in found] == [
            *values[:2],
            "row group 1",
            *values[4:],
        ]
    assert "is damaged" in problems(settings_of(path))[0].reason


def test_rows_that_are_not_utf8_are_problems(tmp_path):
    raw = arrow.array([b"a", b"\xff", "é".encode()], arrow.binary())
    column = arrow.Array.from_buffers(arrow.string(), 3, raw.buffers())
    parquet.write_table(arrow.table({"text": column}), tmp_path / "a.parquet")
    found = read(settings_of(tmp_path))
    assert [each.text if isinstance(each, Document) else each.location for each in found] == ["a", "row 1", "é"]


def test_large_strings_are_text(tmp_path):
    write_parquet(tmp_path / "a.parquet", ["a", None, "é"], dtype=arrow.large_string())
    assert texts(settings_of(tmp_path)) == ["a", "é"]


def rewrite(path: Path) -> None:
    """Other bytes, as many as before, a moment later."""
    stamp = path.stat().st_mtime_ns
    path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))
    os.utime(path, ns=(stamp + 10**9, stamp + 10**9))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace_parquet(path: Path) -> None:
    """A file that is valid, with fewer row groups."""
    write_parquet(path, ["a"])


@pytest.mark.parametrize(
    ("name", "change"),
    [("a.txt", rewrite), ("a.txt", cut), ("a.jsonl", cut), ("a.parquet", rewrite), ("a.parquet", replace_parquet)],
)
def test_a_file_that_changes_after_the_plan_is_an_error(tmp_path, name, change):
    path = tmp_path / name
    if name.endswith(".parquet"):
        write_parquet(path, ["some text"] * 8)
    else:
        path.write_text('{"text": "line"}\n' * 10)
    settings = settings_of(path, shard_bytes=25)
    shards = plan_shards(settings).shards
    assert [list(ShardDocuments(shard, settings)) for shard in shards]
    change(path)
    for shard in shards:
        with pytest.raises(CheckpointError, match=rf"{name} has changed while the survey ran.*another folder"):
            list(ShardDocuments(shard, settings))


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [f"text {number}" for number in range(1000)])
    settings = settings_of(path)
    (shard,) = plan_shards(settings).shards
    documents = iter(ShardDocuments(shard, settings))
    assert isinstance(next(documents), Document)
    stamp = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(stamp, stamp))
    with pytest.raises(CheckpointError, match="has changed while the survey ran"):
        list(documents)


def test_a_file_that_is_gone_is_an_error_of_access_and_no_problem(tmp_path):
    for name in ("a.txt", "b.jsonl", "c.parquet"):
        path = write_parquet(tmp_path / name, ["a", "b"])
        settings = settings_of(path)
        (shard,) = plan_shards(settings).shards if name != "b.jsonl" else [Shard(0, (Span(str(path), "jsonl", 0, 9),))]
        path.unlink()
        with pytest.raises(AccessError, match=rf"{name} cannot be read: No such file or directory"):
            list(ShardDocuments(shard, settings))


def test_a_file_that_ends_early_is_an_error_of_access(tmp_path):
    (tmp_path / "a.txt").write_text("line\n")
    with pytest.raises(AccessError, match="ends at byte 5, before byte 9"):
        list(ShardDocuments(Shard(0, (Span(str(tmp_path / "a.txt"), "text", 0, 9),)), settings_of(tmp_path)))


def test_a_failing_disk_is_an_error_and_no_problem(tmp_path, monkeypatch):
    for name, format in (("a.txt", "text"), ("b.parquet", "parquet")):
        path = write_parquet(tmp_path / name, ["a"])
        shard = Shard(0, (Span(str(path), format, 0, 1),))

        def fail(*arguments):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr("fsspec.implementations.local.LocalFileOpener.read", fail, raising=False)
            patch.setattr("fsspec.implementations.local.LocalFileOpener.seek", fail)
            with pytest.raises(AccessError, match="Input/output"):
                list(ShardDocuments(shard, settings_of(path)))


def test_a_disk_that_fails_within_a_row_group_is_an_error_and_no_damage(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", ["text" * 1000] * 100, rows=10, use_dictionary=False)
    settings, reads = settings_of(path, shard_bytes=2**30), 0
    (shard,) = plan_shards(settings).shards

    def fail(self, *arguments):
        nonlocal reads
        reads += 1
        if reads > 8:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.f.read(*arguments)

    monkeypatch.setattr("fsspec.implementations.local.LocalFileOpener.read", fail, raising=False)
    found = list[Document | Problem]()
    with pytest.raises(AccessError, match="Input/output"):
        found.extend(ShardDocuments(shard, settings))
    assert reads == 9
    assert not any(isinstance(each, Problem) for each in found)


def test_a_damaged_member_of_an_archive_is_a_problem_and_the_others_are_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a.txt", "first member")
        archive.writestr("b.txt", "second member")
    content = (tmp_path / "all.zip").read_bytes()
    (tmp_path / "all.zip").write_bytes(content.replace(b"first member", b"FIRST member"))
    found = read(settings_of(f"zip://*.txt::{tmp_path}/all.zip"))
    assert [each.text if isinstance(each, Document) else each.reason[:24] for each in found] == [
        "is in a damaged archive:",
        "second member",
    ]


def test_a_problem_says_how_much_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_TEXT_BYTES", 20)
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 20)
    monkeypatch.setattr(documents, "MAX_PROBLEMS_PER_SPAN", 2)
    contents = {
        "a.jsonl": (b'{"text": "a"}\n{"text": "' + b"x" * 50 + b'"}\n\xff\n[]\n{"text": 3}\n', [63, 2, 3 + 12]),
        "a.txt": (b"good\n" + b"y" * 30 + b"\nb\xffd\ngood\n", [31, 4]),
        "b.md": (b"--\n" + b"short\n" * 10 + b"--\nb\n--\n" + b"y" * 50, [60, 50]),
    }
    for name, (content, expected) in contents.items():
        (tmp_path / name).write_bytes(content)
        separator = "--" if name == "b.md" else None
        found = problems(settings_of(tmp_path / name, separator=separator))
        assert [problem.skipped_bytes for problem in found] == expected
    write_parquet(tmp_path / "a.parquet", ["a", "x" * 21, "b"])
    assert [problem.skipped_bytes for problem in problems(settings_of(tmp_path / "a.parquet"))] == [21]


def test_the_digest_is_that_of_what_was_read_and_known_at_the_end(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n" * 100)
    settings = settings_of(tmp_path, shard_bytes=300)
    readings = [ShardDocuments(shard, settings) for shard in plan_shards(settings).shards]
    for reading in readings:
        with pytest.raises(SettingError, match="after its last document"):
            _ = reading.digest
        assert len(list(reading)) == reading.num_documents == 1
    digests = [reading.digest for reading in readings]
    assert digests[0] == hashlib.sha256(b"one\ntwo\n" * 50 + b"\0end of span\0").hexdigest()
    list(readings[0])
    assert readings[0].digest == digests[0]
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n" * 99 + b"one\nTwo\n")
    changed = [ShardDocuments(shard, settings) for shard in plan_shards(settings).shards]
    for reading in changed:
        list(reading)
    assert changed[0].digest == digests[0]
    assert changed[1].digest != digests[1]


def test_the_digest_of_parquet_follows_values_and_nulls(tmp_path):
    def digest(values):
        path = write_parquet(tmp_path / "a.parquet", values)
        documents = ShardDocuments(Shard(0, (Span(str(path), "parquet", 0, 1),)), settings_of(path))
        list(documents)
        return documents.digest

    assert digest(["a", "b"]) == digest(["a", "b"])
    assert len({digest(values) for values in (["a", "b"], ["ab", ""], ["", "ab"], [None, "ab"], ["a", "c"])}) == 5
