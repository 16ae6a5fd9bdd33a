"""A table of heads picks, joins, exports and prints its rows without changing a number."""

from __future__ import annotations

import csv
import io
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pyarrow.parquet
import pytest
import torch
from rich.console import Console
from torch import Tensor

from attnscope.errors import CheckpointError, SettingError
from attnscope.heads import SCORES, HeadTable
from attnscope.heads.printing import shorten_names
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording import record

NAN = math.nan
LAYERS = ("model.layers.0.self_attn", "model.layers.0.self_attn", "model.layers.11.self_attn")
LABELS = (("induction", "sink"), ("mixed",), ("sink",))


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def table() -> HeadTable:
    return HeadTable(LAYERS, (0, 1, 0), {"sink": column(0.2, 0.9, 0.5), "reach": column(7.0, NAN, 1234.5)}, LABELS)


def awkward() -> HeadTable:
    """Numbers that only come back from a text that has all of their digits."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(100, dtype=torch.float64, generator=generator)
    scores[:8] = column(0.1 + 0.2, 1 / 3, 1e-300, 5e-324, 1e22, -0.0, math.pi, NAN)
    single = torch.rand(100, generator=generator)
    names = tuple(f"blocks.{at // 10}.attention" for at in range(100))
    return HeadTable(names, tuple(at % 10 for at in range(100)), {"one": scores, "two": single}, (("mixed",),) * 100)


def rows_of(table: HeadTable) -> list[tuple[str, int]]:
    return list(zip(table.layers, table.heads, strict=True))


def printed(table: HeadTable, width: int) -> str:
    """What a terminal of this width shows, without the blanks that fill its lines."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_a_score_is_that_of_all_heads_and_an_unknown_one_is_named_with_those_there_are(table: HeadTable) -> None:
    assert table["sink"].tolist() == [0.2, 0.9, 0.5]
    for use in (lambda: table["sinks"], lambda: table.top("sinks"), lambda: table.with_first_columns("sinks")):
        with pytest.raises(SettingError, match=r"unknown score 'sinks' \(did you mean 'sink'\?\)"):
            use()


def test_the_top_is_the_highest_first_and_equals_keep_their_order(table: HeadTable) -> None:
    assert rows_of(table.top("sink")) == [(LAYERS[0], 1), (LAYERS[2], 0), (LAYERS[0], 0)]
    assert rows_of(table.top("sink", 1)) == [(LAYERS[0], 1)]
    assert len(table.top("sink", 100)) == 3
    same = HeadTable(("a",) * 40, tuple(range(40)), {"sink": torch.ones(40)})
    assert same.top("sink").heads == tuple(range(40))
    signs = HeadTable(("a",) * 3, (0, 1, 2), {"sink": column(-math.inf, -2.0, math.inf)})
    assert signs.top("sink").heads == (2, 1, 0)


def test_a_head_with_no_score_is_left_out_of_the_top(table: HeadTable) -> None:
    assert rows_of(table.top("reach")) == [(LAYERS[2], 0), (LAYERS[0], 0)]
    assert rows_of(table.top("reach", 3)) == [(LAYERS[2], 0), (LAYERS[0], 0)]
    assert len(HeadTable(("a",), (0,), {"sink": column(NAN)}).top("sink")) == 0


def test_some_rows_come_in_the_order_asked_for_with_all_that_belongs_to_them(table: HeadTable) -> None:
    some = table.rows([2, 0])
    assert rows_of(some) == [(LAYERS[2], 0), (LAYERS[0], 0)]
    assert some.columns["reach"].tolist() == [1234.5, 7.0]
    assert some.labels == (LABELS[2], LABELS[0])
    assert len(table.rows([])) == 0
    assert HeadTable(("a",), (0,), {}).rows([0]).labels is None


def test_heads_with_a_label_are_those_whose_labels_hold_it(table: HeadTable) -> None:
    assert rows_of(table.with_label("sink")) == [(LAYERS[0], 0), (LAYERS[2], 0)]
    assert rows_of(table.with_label("induction")) == [(LAYERS[0], 0)]
    assert len(table.with_label("broad")) == 0


def test_leading_scores_come_first_and_nothing_is_lost(table: HeadTable) -> None:
    assert list(table.with_first_columns("reach").columns) == ["reach", "sink"]
    assert list(table.with_first_columns("reach", "sink").columns) == ["reach", "sink"]
    assert list(table.columns) == ["sink", "reach"]
    assert table.with_first_columns("reach")["sink"] is table["sink"]


def test_a_row_is_all_scores_of_one_head(table: HeadTable) -> None:
    assert table.head_scores(LAYERS[2], 0) == {"sink": 0.5, "reach": 1234.5}
    assert math.isnan(table.head_scores(LAYERS[0], 1)["reach"])


def test_a_row_that_is_not_there_is_refused_by_its_name(table: HeadTable) -> None:
    with pytest.raises(SettingError, match=r"head 7 of model\.layers\.0\.self_attn"):
        table.head_scores(LAYERS[0], 7)


def test_chosen_heads_are_those_of_the_rows_as_record_takes_them(table: HeadTable) -> None:
    assert table.heads_by_layer == {LAYERS[0]: [0, 1], LAYERS[2]: [0]}
    assert table.top("sink", 2).heads_by_layer == {LAYERS[0]: [1], LAYERS[2]: [0]}
    torch.manual_seed(0)
    model = Decoder(
        DecoderConfig(
            vocab_size=9, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=8, max_position_embeddings=16
        )
    ).eval()
    chosen = HeadTable(("blocks.1.attention", "blocks.0.attention"), (1, 0), {}).heads_by_layer
    with torch.no_grad(), record(model, heads=chosen) as trace:
        model(torch.arange(5)[None])
    assert {name: trace[name].shape[1] for name in trace} == {"blocks.0.attention": 1, "blocks.1.attention": 1}


def test_a_head_of_a_layer_that_ran_twice_is_chosen_once() -> None:
    twice = HeadTable(("mixing", "mixing", "mixing#2", "mixing#2"), (0, 1, 0, 1), {})
    assert twice.heads_by_layer == {"mixing": [0, 1]}
    assert twice.rows([1, 3]).heads_by_layer == {"mixing": [1]}


def test_tables_are_joined_head_by_head_in_whatever_order_the_other_has_them(table: HeadTable) -> None:
    other = HeadTable(LAYERS, (0, 1, 0), {"agreement": column(1.0, 2.0, 3.0)}, (("other",),) * 3)
    both = table.join(other.rows([2, 0, 1]))
    assert list(both.columns) == ["sink", "reach", "agreement"]
    assert both["agreement"].tolist() == [1.0, 2.0, 3.0]
    assert rows_of(both) == rows_of(table)
    assert both.labels == LABELS
    assert table.rows([1]).join(other)["agreement"].tolist() == [2.0]


def test_a_head_that_the_other_table_lacks_is_named(table: HeadTable) -> None:
    message = r"head 0 of model\.layers\.11\.self_attn is not in the other table"
    with pytest.raises(SettingError, match=message):
        table.join(table.rows([0, 1]))


def assert_same_bits(found: list[float], wanted: Tensor) -> None:
    numbers = torch.tensor(found, dtype=torch.float64)
    wanted = wanted.double()
    assert torch.equal(numbers.isnan(), wanted.isnan())
    known = ~wanted.isnan()
    assert torch.equal(numbers[known].view(torch.int64), wanted[known].view(torch.int64))


def test_csv_gives_every_number_back_to_the_last_bit(tmp_path: Path) -> None:
    table = awkward()
    table.to_csv(tmp_path / "heads.csv")
    with (tmp_path / "heads.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["layer", "head", "one", "two", "labels"]
    assert [(row["layer"], int(row["head"])) for row in rows] == rows_of(table)
    exact: dict[str, Any] = (
        {} if pandas.__version__ >= "3" else {"float_precision": "round_trip"}
    )  # the default since 3
    frame = pandas.read_csv(tmp_path / "heads.csv", **exact)
    for score in ("one", "two"):
        assert_same_bits([float(row[score]) for row in rows], table[score])
        assert_same_bits(frame[score].tolist(), table[score])
    assert frame["layer"].tolist() == list(table.layers)
    assert frame["labels"].tolist() == ["mixed"] * 100


def test_csv_goes_to_a_path_by_either_name_and_to_a_stream_alike(table: HeadTable, tmp_path: Path) -> None:
    stream = io.StringIO()
    table.to_csv(stream)
    table.to_csv(tmp_path / "one.csv")
    table.to_csv(str(tmp_path / "two.csv"))
    assert stream.getvalue().splitlines() == [
        "layer,head,sink,reach,labels",
        "model.layers.0.self_attn,0,0.2,7.0,induction+sink",
        "model.layers.0.self_attn,1,0.9,nan,mixed",
        "model.layers.11.self_attn,0,0.5,1234.5,sink",
    ]
    assert not stream.closed
    for name in ("one.csv", "two.csv"):
        assert (tmp_path / name).read_bytes() == stream.getvalue().encode()


def test_a_table_read_back_from_csv_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    table = awkward()
    table.to_csv(tmp_path / "heads.csv")
    for back in (HeadTable.from_csv(tmp_path / "heads.csv"), HeadTable.from_csv(str(tmp_path / "heads.csv"))):
        assert rows_of(back) == rows_of(table)
        assert back.labels == table.labels
        assert back.short_names == table.short_names
        assert list(back.columns) == ["one", "two"]
        for score in ("one", "two"):
            assert back[score].dtype == torch.float64
            assert_same_bits(back[score].tolist(), table[score])


@pytest.mark.parametrize(
    "table",
    [
        HeadTable(("a", "a"), (0, 1), {"sink": column(math.inf, -math.inf)}),
        HeadTable(("a", "b"), (3, 3), {}, (("sink", "local"), ())),
        HeadTable(("a", "b"), (0, 0), {}),
        HeadTable((), (), {"sink": column()}, ()),
        HeadTable(('quoted ", name', ""), (0, 0), {"a, b": column(0.5, NAN)}, (("mixed",),) * 2),
    ],
)
def test_a_table_of_any_form_comes_back_through_a_stream(table: HeadTable) -> None:
    stream, again = io.StringIO(), io.StringIO()
    table.to_csv(stream)
    stream.seek(0)
    back = HeadTable.from_csv(stream)
    assert (rows_of(back), back.labels, list(back.columns)) == (rows_of(table), table.labels, list(table.columns))
    back.to_csv(again)
    assert again.getvalue() == stream.getvalue()


def test_a_table_with_the_line_ends_of_another_system_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "heads.csv").write_bytes(b"layer,head,sink,labels\r\na,0,0.5,sink\r\n")
    assert HeadTable.from_csv(tmp_path / "heads.csv").labels == (("sink",),)


GOOD = "layer,head,sink,labels\na,0,0.5,sink\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "expected the columns layer, head"),
        ("step,loss\n1,2\n", 1, "expected the columns layer, head"),
        ("head,layer,sink\n0,a,0.5\n", 1, "expected the columns layer, head"),
        ("layer,head,sink,sink\na,0,1,2\n", 1, "each once"),
        ("layer,head,si\x1b[31mnk\na,0,1\n", 1, "expected the columns"),
        (GOOD + "a,1,0.5\n", 3, "expected 4 cells, got 3"),
        (GOOD + "a,1,0.5,sink,more\n", 3, "expected 4 cells, got 5"),
        (GOOD + "\n" + "a,1,0.5,sink\n", 3, "expected 4 cells, got 0"),
        (GOOD + "a,1,high,sink\n", 3, "'high'"),
        (GOOD + "a,1,,sink\n", 3, "could not convert"),
        (GOOD + "a,-1,0.5,sink\n", 3, "index of a head, got '-1'"),
        (GOOD + "a,1.0,0.5,sink\n", 3, "index of a head, got '1.0'"),
        (GOOD + "a,²,0.5,sink\n", 3, "index of a head, got '²'"),
        (GOOD + f"a,{'9' * 5000},0.5,sink\n", 3, "index of a head"),
        (GOOD + "a,0,0.25,mixed\n", 3, "duplicate head 0 of a"),
        (GOOD + "a\x1b[2J,1,0.5,sink\n", 3, "invalid layer name"),
        (GOOD + "a,1,0.5,si", 3, "truncated"),
        (GOOD + '"a,1,0.5,sink\n', 3, "unexpected end of data"),
        (GOOD + '"a"b,1,0.5,sink\n', 3, "expected after"),
        (GOOD + "a" * 200_000 + ",1,0.5,sink\n", 3, "field larger than field limit"),
    ],
)
def test_a_file_that_is_no_table_of_heads_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    (tmp_path / "heads.csv").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError) as refused:
        HeadTable.from_csv(tmp_path / "heads.csv")
    message = str(refused.value).removeprefix(str(tmp_path / "heads.csv"))
    assert message.startswith(f", line {line}: not a table written by HeadTable.to_csv: ")
    assert reason in message
    assert len(message) < 300


def test_a_file_that_is_no_text_or_not_there_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "heads.csv").write_bytes(b"layer,head\n\xff\xfe,0\n")
    with pytest.raises(CheckpointError, match=r"heads\.csv is not UTF-8 text"):
        HeadTable.from_csv(tmp_path / "heads.csv")
    with pytest.raises(CheckpointError, match=r"none\.csv does not exist"):
        HeadTable.from_csv(tmp_path / "none.csv")


def test_parquet_and_pandas_have_every_number_to_the_last_bit(tmp_path: Path) -> None:
    table = awkward()
    table.to_parquet(tmp_path / "heads.parquet")
    opened, frame = pyarrow.parquet.read_table(tmp_path / "heads.parquet"), table.to_pandas()
    assert opened.column_names == list(frame.columns) == ["layer", "head", "one", "two", "labels"]
    for score in ("one", "two"):
        assert_same_bits(opened[score].to_pylist(), table[score])
        assert_same_bits(frame[score].tolist(), table[score])
    for name in ("layer", "head", "labels"):
        assert opened[name].to_pylist() == frame[name].tolist() == table.to_dict()[name]


def test_a_table_without_labels_exports_none(table: HeadTable) -> None:
    plain = HeadTable(table.layers, table.heads, table.columns)
    assert list(plain.to_dict()) == ["layer", "head", "sink", "reach"]
    assert "labels" not in str(plain)


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], []),
        (["model.layers.0.attn"], ["model.layers.0.attn"]),
        (["model.layers.0.attn"] * 2, ["model.layers.0.attn"] * 2),
        (["blocks.0.attention", "blocks.1.attention", "blocks.0.attention"], ["0", "1", "0"]),
        (["h.1.attn", "h.11.attn"], ["1", "11"]),
        (["mixing", "mixing#2"], ["mixing", "mixing#2"]),
        (["model.mixing", "model.mixing#2"], ["mixing", "mixing#2"]),
        (
            ["model.encoder.layers.0.self_attn", "model.decoder.layers.0.encoder_attn"],
            ["encoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"],
        ),
        (["encoder.0.attention", "decoder.0.attention"], ["encoder", "decoder"]),
    ],
)
def test_names_of_layers_lose_what_all_of_them_share(names: list[str], short: list[str]) -> None:
    assert shorten_names(names) == dict(zip(names, short, strict=True))


@pytest.mark.parametrize("names", [["mixing", "mixing.inner"], ["a.b", "a.b.c", "a.b.d"], ["outer.mixing", "mixing"]])
def test_a_layer_inside_another_leaves_neither_without_a_name(names: list[str]) -> None:
    short = shorten_names(names).values()
    assert all(short)
    assert len(set(short)) == len(names)


def all_scores(heads: int = 5) -> HeadTable:
    columns = {name: torch.linspace(0, 1, heads, dtype=torch.float64) for name in SCORES}
    layers = tuple(f"model.layers.{at}.self_attn" for at in range(heads))
    return HeadTable(layers, tuple(range(heads)), columns, (("induction", "local", "sink"),) * heads)


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_a_printed_table_fits_and_says_what_was_left_out(width: int) -> None:
    text = printed(all_scores(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "induction+local+sink" in text
    assert "…" not in text
    heading, _, left_out = text.partition("no room for ")
    hidden = left_out.replace("\n", " ").split(", ")
    assert 0 < len(hidden) < len(SCORES)
    assert set(hidden) < set(SCORES)
    for score in SCORES:
        last_word = score.rpartition("_")[2]
        assert (last_word in heading.replace("induction+local+sink", "").split()) == (score not in hidden), score


def test_a_wide_terminal_shows_everything() -> None:
    text = printed(all_scores(), 250)
    assert "no room" not in text
    assert len(text.splitlines()) == 2 + 5
    assert all(word in text for score in SCORES for word in score.split("_"))


def test_numbers_are_short_and_unknown_ones_are_blank(table: HeadTable) -> None:
    assert str(table).splitlines() == [
        "layer head sink reach labels",
        "0        0 0.20     7 induction+sink",
        "0        1 0.90       mixed",
        "11       0 0.50 1,234 sink",
    ]


def test_a_printed_string_has_no_blanks_at_the_end_of_lines() -> None:
    assert all(line == line.rstrip() for line in str(all_scores()).splitlines())
    assert str(all_scores()) == printed(all_scores(), 200)


def test_a_string_has_no_codes_of_a_terminal_even_where_colour_is_forced() -> None:
    program = (
        "import torch; from attnscope.heads import HeadTable; "
        "print(HeadTable(('a', 'b'), (0, 1), {'sink': torch.zeros(2)}, (('mixed',),) * 2))"
    )
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert "mixed" in done.stdout
    assert "\x1b" not in done.stdout


def test_markup_in_the_name_of_a_layer_is_printed_as_it_is() -> None:
    names = ("net.[red].attn", "net.[/].attn")
    marked = HeadTable(names, (0, 0), {"a_[bold]": torch.zeros(2)}, (("[blue]",),) * 2)
    for text in (str(marked), printed(marked, 80)):
        for words in ("[red]", "[/]", "[blue]", "[bold]"):
            assert words in text
    assert "a_[bold]" in printed(marked, 24)
