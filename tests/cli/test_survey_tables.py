"""`attnscope survey show` and `diff`, as a user runs them, on surveys of made numbers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from attnscope.cli.main import main
from attnscope.cli.survey_tables import BAR_WIDTH, bar, clean, text_around
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.tables.survey import Histogram
from tests.survey.synthetic_surveys import clustered, write_survey

MEANS = np.array([0.1, 0.3, 0.6, 0.9])
HOSTILE = ("so", " \x1b[31mred", " it\n", " is", "\t[bold]", " told")


def scores(means: np.ndarray, seed: int) -> list[dict[str, np.ndarray]]:
    found = []
    for number, share in enumerate(clustered(np.random.default_rng(seed), 40, means)):
        share[3] = number % 2  # all or nothing
        found.append({"sink": share, "previous": 1 - share, "reach": 100 * share})
    return found


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    problem = Problem("/corpus/bad.txt", "byte 1,234", "is not UTF-8")
    folder = tmp_path_factory.mktemp("surveys") / "before"
    return write_survey(folder, scores(MEANS, 1), problems=[problem], words=HOSTILE)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("surveys") / "after"
    return write_survey(folder, scores(np.array([0.1, 0.3, 0.9, 0.9]), 2), digest="another")


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[str, str]:
    assert main(["survey", *map(str, arguments)]) == 0
    found = capsys.readouterr()
    return found.out, found.err


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def table_in(output: str) -> list[dict[str, str]]:
    """The lines with tabs."""
    lines = [line for line in output.splitlines() if "\t" in line]
    return list(csv.DictReader(lines, delimiter="\t"))


def test_a_survey_is_told_in_one_line_and_heads_are_ranked_by_label(
    before: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, errors = run(capsys, "show", before)
    assert errors == ""
    assert output.startswith("made (1,234 parameters) on 1 file, 40 documents, 40 passages, 320 tokens; 1 problem")
    assert "bad.txt byte 1,234: is not UTF-8" in output.splitlines()[0]
    rows = table_in(output)
    assert [row["head"] for row in rows] == ["0.0", "0.1", "1.1", "1.0"]
    assert [row["statistic"] for row in rows] == ["previous", "previous", "previous", "sink"]
    assert float(rows[2]["split"]) == pytest.approx(1.0, abs=1e-6)
    assert max(float(row["split"]) for row in rows if row["head"] != "1.1") < 0.1
    assert "\x1b" not in output
    assert output.count("treat passages as independent") == 1


def test_by_a_statistic_the_most_come_first_and_no_more_than_asked_for(
    before: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table_in(run(capsys, "show", before, "--by", "sink", "--top", "3")[0])
    means = [float(row["mean"]) for row in rows]
    assert means == sorted(means, reverse=True)
    assert {row["statistic"] for row in rows} == {"sink"}
    assert len(rows) == 3


def test_csv_has_every_statistic_of_every_head_and_people_read_elsewhere(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, errors = run(capsys, "show", before, "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(output)))
    assert len(rows) == 4 * 3 == output.count("\n") - 1
    assert {"labels", "count", "passages", "p95", "split"} <= rows[0].keys()
    assert errors.startswith("made (")
    run(capsys, "show", before, "--csv", tmp_path / "all.csv")
    assert (tmp_path / "all.csv").read_text() == output


def test_json_has_every_statistic_of_every_head(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, errors = run(capsys, "show", before, "--json")
    assert errors == ""
    found = json.loads(output)
    assert found["corpus"]["passages"] == 40
    assert found["problems"]["count"] == 1
    rows = list(csv.DictReader(io.StringIO(run(capsys, "show", before, "--csv", "-")[0])))
    cells = {(row["layer"], int(row["head"]), row["statistic"]): row for row in rows}
    for head in found["heads"]:
        for name, numbers in head["statistics"].items():
            row = cells.pop((head["layer"], head["head"], name))
            assert row["labels"].split("+") == head["labels"]
            assert {number: row[number] for number in numbers} == {
                number: "" if value is None else str(value) for number, value in numbers.items()
            }
    assert not cells
    best = json.loads(run(capsys, "show", before, "--json", "--by", "sink", "--top", "2")[0])["heads"]
    assert len(best) == 2
    assert best[0]["statistics"]["sink"]["mean"] >= best[1]["statistics"]["sink"]["mean"]


def test_json_of_one_head_has_its_passages(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "show", before, "--json", "--head", "1.0")[0])
    assert [(head["layer"], head["head"]) for head in found["heads"]] == [("blocks.1.attention", 0)]
    assert found["statistic"] == "sink"
    assert [example["kind"] for example in found["examples"]].count("decile") == 10
    assert found["examples"][0]["text"].startswith("so \x1b[31mred")


def test_one_head_has_all_its_statistics_and_passages_with_a_mark(
    before: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, _ = run(capsys, "show", before, "--head", "1.0")
    assert [row["statistic"] for row in table_in(output)] == ["previous", "sink", "reach"]
    passages = [line for line in output.splitlines() if "made.txt" in line]
    assert sum("»" in line for line in passages) == 4
    assert len(passages) == 4 + 10
    assert "\x1b" not in output
    assert "[bold]" in output
    assert run(capsys, "show", before, "--head", "blocks.1.attention.0")[0] == output


def test_a_terminal_shows_histograms_and_keeps_to_its_width(
    before: Path, terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    output, _ = run(capsys, "show", before, "--by", "sink")
    row = next(line for line in output.splitlines() if line.startswith("1.1"))
    assert row.rstrip("\x1b[0m ").count("█") == 2, "one at either end"
    output, _ = run(capsys, "show", before, "--head", "1.0")
    assert "\x1b[31m" not in output, "passages do not colour the terminal"
    assert "…" not in output.partition("passages with")[0], "numbers are whole"
    printed = [clean(line) for line in output.splitlines() if "made.txt" in line and "»" not in line]
    assert max(map(len, printed)) <= 80


def test_a_difference_names_the_head_and_says_how_sure_that_is(
    before: Path, after: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, errors = run(capsys, "diff", before, after)
    rows = table_in(output)
    assert {row["head"] for row in rows} == {"1.0"}
    assert "1 of 4 heads changed: 1 sink" in output
    assert "warning" not in output
    sink = next(row for row in rows if row["statistic"] == "sink")
    assert float(sink["from"]) < 0.3 < float(sink["to"])
    assert output.count("treat passages as independent") == 1
    assert (errors, "\x1b" in output) == ("", False)
    rows = list(csv.DictReader(io.StringIO(run(capsys, "diff", before, after, "--by", "reach", "--csv", "-")[0])))
    assert [row["statistic"] for row in rows] == ["reach"] * 4


def test_without_a_change_that_is_said(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, _ = run(capsys, "diff", before, before)
    assert "none of 4 heads changed" in output
    assert table_in(output) == []


def test_from_few_documents_no_conclusion_is_printed(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_survey(tmp_path / "one", scores(np.array([0.9, 0.9, 0.1, 0.9]), 2), digest="another", documents=1)
    output, _ = run(capsys, "diff", before, one)
    assert "no conclusion about 4 heads: one survey has only 1 document" in output
    assert "changed" not in output
    assert table_in(output) == []
    rows = list(csv.DictReader(io.StringIO(run(capsys, "diff", before, one, "--csv", "-")[0])))
    assert {(row["changed"], row["low"], row["high"]) for row in rows} == {("False", "nan", "nan")}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--top", "0"), "--top must be at least 1, got 0"),
        (("--by", "size"), "unknown score 'size' (expected previous, sink or reach)"),
        (("--head", "7.1"), "unknown head '7.1' (expected LAYER.HEAD, such as 0.0)"),
        (("--head", "1.9"), "head 9 of blocks.1.attention is not in this table"),
        (("--csv", "/nowhere/at/all.csv"), "folder /nowhere/at does not exist"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(
    before: Path, arguments: tuple[str, str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["survey", "show", str(before), *arguments]) == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert reason in found.err


def test_a_bar_is_highest_where_most_queries_are_and_never_hides_any() -> None:
    bins = Histogram(np.array([0.0, 0.99]), np.array([1e-4, 1.0]), np.array([999, 1]))
    assert bar(bins, "sink", 1.0) == "█" + " " * (BAR_WIDTH - 2) + "▁"


def test_a_passage_is_cut_around_its_mark_wide_characters_and_all() -> None:
    text = "一二三四五六七八九十" * 10
    before, marked, after = text_around(text, (50, 51), 20)
    assert marked == "一"
    assert 2 * len(before.strip("…") + marked + after.strip("…")) <= 20
    assert (before[0], after[-1]) == ("…", "…")
    assert text_around("short", None, 20) == ("", "", "short")
