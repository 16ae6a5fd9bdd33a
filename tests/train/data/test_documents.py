from pathlib import Path

import pyarrow as arrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from attnscope.errors import SettingError
from attnscope.train.data import documents
from attnscope.train.data.documents import read_documents

TEXT = arrow.string()


def write_parquet(path: Path, values: list, *, rows: int = 2, column: str = "text", kind=TEXT) -> Path:
    table = arrow.table({"id": list(range(len(values))), column: arrow.array(values, kind)})
    parquet.write_table(table, path, row_group_size=rows)
    return path


def test_a_text_file_is_one_document_byte_for_byte(tmp_path):
    content = b"\xef\xbb\xbfone\r\ntwo\rthree\n\n\x00\xe2\x82\xac\x0c\x85"[:-1]
    (tmp_path / "a.log").write_bytes(content)
    [document] = read_documents([tmp_path / "a.log"])
    assert document.encode("utf-8") == content


def test_files_come_in_the_given_order_and_those_of_a_folder_by_name(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("z.txt", "b/y.MD", "b/a.txt", "c.md", "picture.png", "b/none.txt"):
        (tmp_path / name).write_text("" if "none" in name else name)
    write_parquet(tmp_path / "b" / "p.parquet", ["row"])
    assert list(read_documents([tmp_path])) == ["b/a.txt", "row", "b/y.MD", "c.md", "z.txt"]
    assert list(read_documents([str(tmp_path / "z.txt"), tmp_path / "b"])) == ["z.txt", "b/a.txt", "row", "b/y.MD"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"a\nb\n--\nc", ["a\nb\n", "c"]),
        (b"--\r\na\r\n--\r\n--\nb\n--", ["a\r\n", "b\n"]),
        (b"a --\n-- \n---\nb", ["a --\n-- \n---\nb"]),
        (b"a\r--\rb", ["a\r--\rb"]),
    ],
)
def test_documents_end_at_lines_that_are_the_separator(tmp_path, content, found):
    (tmp_path / "a.txt").write_bytes(content)
    assert list(read_documents([tmp_path], separator="--")) == found


@given(st.lists(st.text(st.characters(exclude_characters="#", exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_documents_joined_by_separators_come_back(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("joined") / "a.txt"
    path.write_bytes("#\n".join(f"{text}\n" for text in texts).encode())
    assert list(read_documents([path], separator="#")) == [f"{text}\n" for text in texts]


@pytest.mark.parametrize("kind", [TEXT, arrow.large_string()])
def test_rows_of_parquet_are_documents_without_nulls_and_empty_ones(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(documents, "ROWS", 3)
    values = ["a\r\n", None, "", *map(str, range(20)), None, "é"]
    path = write_parquet(tmp_path / "a.parquet", values, kind=kind, rows=4)
    assert parquet.ParquetFile(path).num_row_groups == 7
    assert list(read_documents([path])) == ["a\r\n", *map(str, range(20)), "é"]
    path = write_parquet(tmp_path / "a.parquet", values, column="content", kind=kind)
    assert next(read_documents([path], column="content")) == "a\r\n"


def test_parquet_is_read_as_it_is_asked_for(tmp_path):
    rows, size = 64, 2**18
    path = write_parquet(tmp_path / "a.parquet", [str(row % 10) * size for row in range(rows)], rows=1)
    before = arrow.total_allocated_bytes()
    held = [arrow.total_allocated_bytes() - before for _ in read_documents([path])]
    assert len(held) == rows
    assert max(held) < rows * size / 2


@pytest.mark.parametrize(("separator", "place"), [(None, "6"), ("--", "6"), ("ab", "6")])
def test_bad_utf8_is_refused_with_its_file_and_byte(tmp_path, separator, place):
    (tmp_path / "bad.txt").write_bytes(b"ab\n\xc3\xa9\n\xffx")
    with pytest.raises(SettingError, match=rf"bad\.txt .*UTF-8 at byte {place} \(invalid start byte\)"):
        list(read_documents([tmp_path], separator=separator))


def test_bad_utf8_in_parquet_is_refused_with_its_row(tmp_path):
    content = arrow.array([b"fine", b"fine", b"\xff"], arrow.binary()).buffers()
    values = arrow.StringArray.from_buffers(3, content[1], content[2])
    parquet.write_table(arrow.table({"text": values}), tmp_path / "a.parquet")
    with pytest.raises(SettingError, match=r"row 2 of .*a\.parquet .*UTF-8"):
        list(read_documents([tmp_path]))


def test_what_is_not_there_is_refused_at_once(tmp_path):
    with pytest.raises(SettingError, match=r"nothing\.txt was not found"):
        read_documents([tmp_path / "nothing.txt"])
    with pytest.raises(SettingError, match="not a file or a folder"):
        read_documents(["/dev/null"])


def test_wrong_questions_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"read_documents: .*\['a\.txt'\]"):
        read_documents("a.txt")
    with pytest.raises(SettingError, match=r"read_documents: .*separator"):
        read_documents([tmp_path], separator="--\n")


def test_parquet_that_has_no_such_text_is_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", ["a"], column="content")
    with pytest.raises(SettingError, match=r"a\.parquet has no column 'text'; its columns are id, content"):
        list(read_documents([path]))
    with pytest.raises(SettingError, match=r"column 'id' of .*a\.parquet, got int64"):
        list(read_documents([path], column="id"))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(SettingError, match=r"a\.parquet is damaged or not Parquet"):
        list(read_documents([path]))


def test_sources_without_a_document_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"read_documents: .*no text"):
        list(read_documents([tmp_path]))
    (tmp_path / "a.txt").touch()
    write_parquet(tmp_path / "b.parquet", [None, ""])
    with pytest.raises(SettingError, match=r"no text in .*a\.txt, .*b\.parquet; "):
        list(read_documents([tmp_path]))
