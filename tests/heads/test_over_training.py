"""A run's tables and losses are read back as they were written, and labels appear at the steps that were put there."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from attnscope.checksums import crc32_file
from attnscope.errors import CheckpointError, SettingError
from attnscope.heads import HeadTable, assign_labels, read_over_training
from attnscope.models.checked_log import encode_line

NAN = math.nan
LAYERS, HEADS = ("blocks.0.attention", "blocks.0.attention", "blocks.1.attention"), (0, 1, 0)


def write(run: Path, scores: dict[int, dict[str, list[float]]]) -> Path:
    """A run with a table of three heads for each step."""
    (run / "heads").mkdir(parents=True, exist_ok=True)
    for step, columns in scores.items():
        numbers = {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}
        assign_labels(HeadTable(LAYERS, HEADS, numbers)).to_csv(run / "heads" / f"step-{step:08d}.csv")
    return run


def rise(name: str, *rows: list[float]) -> dict[int, dict[str, list[float]]]:
    """One score at steps 100, 200, ..."""
    return {100 * (at + 1): {name: row} for at, row in enumerate(rows)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    both = {
        1000: {"previous": [0.1, 0.2, 0.9], "induction_probe": [0.0, 0.35, 0.4]},
        20: {"previous": [0.1, 0.6, 0.7], "induction_probe": [0.0, 0.1, 0.2]},
        300: {"previous": [0.5, 0.2, 0.8], "induction_probe": [0.0, 0.3, 0.2]},
    }
    return write(tmp_path, both)


def test_steps_come_in_the_order_of_their_numbers(run: Path) -> None:
    found = read_over_training(str(run))
    assert found.steps == (20, 300, 1000)
    assert found.scores("previous").tolist() == [[0.1, 0.6, 0.7], [0.5, 0.2, 0.8], [0.1, 0.2, 0.9]]
    assert found.tables[1].labels == (("previous",), ("induction",), ("previous",))
    with pytest.raises(SettingError, match=r"unknown score 'sink' \(expected previous or induction_probe\)"):
        found.scores("sink")


def test_the_number_of_a_step_may_have_any_width(tmp_path: Path) -> None:
    write(tmp_path, rise("sink", [0.1, 0.2, 0.3]))
    (tmp_path / "heads" / "step-00000100.csv").rename(tmp_path / "heads" / "step-9.csv")
    write(tmp_path, {10: {"sink": [0.4, 0.5, 0.6]}})
    assert read_over_training(tmp_path).steps == (9, 10)


def test_the_strongest_is_the_highest_deciding_score_of_each_step(run: Path) -> None:
    found = read_over_training(run)
    assert found.max_scores("previous").tolist() == [0.7, 0.8, 0.9]
    assert found.max_scores("induction").tolist() == [0.2, 0.3, 0.4]
    with pytest.raises(SettingError, match=r"broad needs the score evenness, .* previous, induction_probe"):
        found.max_scores("broad")
    with pytest.raises(SettingError, match=r"unknown label 'bread' \(did you mean 'broad'\?\)"):
        found.max_scores("bread")


def test_a_label_appears_where_the_first_head_begins_to_have_it_to_the_end(run: Path) -> None:
    assert read_over_training(run).appearances() == [
        ("induction", 300, "blocks.0.attention", 1),
        ("previous", 20, "blocks.1.attention", 0),
    ]


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([[0.1, 0, 0], [0.5, 0, 0], [0.6, 0, 0]], [(200, 0)]),
        ([[0.1, 0, 0], [0.4999, 0, 0], [0.5, 0, 0]], [(300, 0)]),
        ([[0.9, 0, 0], [0.1, 0, 0], [0.6, 0, 0]], [(300, 0)]),  # had it, lost it, has it again
        ([[0.9, 0, 0], [0.1, 0.7, 0], [0.1, 0.8, 0]], [(200, 1)]),  # another head has taken over
        ([[0.9, 0, 0], [0.9, 0, 0], [0.1, 0, 0]], []),  # lost at the end
        ([[0.9, 0, 0], [0.9, 0, 0], [NAN, 0, 0]], []),
        ([[0.9, 0, 0], [NAN, 0, 0], [0.9, 0, 0]], [(300, 0)]),
        ([[NAN, NAN, NAN], [0.9, 0, NAN], [0.9, 0, NAN]], [(200, 0)]),
        ([[0, 0, 0], [0.9, 0.6, 0], [0.7, 0.8, 0]], [(200, 1)]),  # of two at once, the stronger at the end
        ([[0, 0, 0], [0, 0.6, 0], [0.9, 0.6, 0]], [(200, 1)]),  # the first, not the strongest
        ([[0, 0, 0], [0, 0, 0], [0, 0, 0.2]], []),
        ([[0, 0, 0.5]], [(100, 2)]),
    ],
)
def test_appearances_follow_their_definition(rows: list[list[float]], wanted: list, tmp_path: Path) -> None:
    found = read_over_training(write(tmp_path, rise("sink", *rows))).appearances()
    assert found == [("sink", step, LAYERS[row], HEADS[row]) for step, row in wanted]


def test_labels_are_those_that_scores_earn_today_whatever_the_file_says(tmp_path: Path) -> None:
    write(tmp_path, rise("sink", [0.9, 0.1, 0.2]))
    file = tmp_path / "heads" / "step-00000100.csv"
    file.write_text(file.read_text().replace(",sink\n", ",broad\n"))
    assert [found.label for found in read_over_training(tmp_path).appearances()] == ["sink"]


def test_a_score_within_its_error_earns_nothing(tmp_path: Path) -> None:
    scores = [0.2, 0.3, 0.05]
    write(tmp_path, {7: {"agreement": scores, "agreement_error": [0.05, 0.01, 0.0]}})
    assert read_over_training(tmp_path).appearances() == [("agreement", 7, LAYERS[1], 1)]


def test_a_step_that_lacks_a_score_has_nan_and_no_other_score_decides_there(tmp_path: Path) -> None:
    steps = {1: {"induction": [0.9, 0.9, 0.9]}, 2: {"induction_probe": [0.1, 0.5, 0.0], "induction": [0.9, 0.9, 0.9]}}
    found = read_over_training(write(tmp_path, steps))
    assert found.scores("induction_probe")[0].isnan().all()
    assert found.max_scores("induction")[0].isnan()
    assert found.appearances() == [("induction", 2, LAYERS[1], 1)]


def metrics(run: Path, *lines: str | dict, end: str = "\n") -> None:
    """Write lines with their checksums, and texts as they are."""
    texts = [line if isinstance(line, str) else encode_line(line).decode().rstrip("\n") for line in lines]
    (run / "metrics.jsonl").write_text("\n".join(texts) + end)


def test_losses_are_read_by_step_and_all_else_is_left(run: Path) -> None:
    metrics(
        run,
        {"step": 200, "loss": 2.5, "tokens": 9, "learning_rate": "warm"},
        {"step": 100, "loss": 3},
        {"step": 200, "validation_loss": 2.75},
        {"loss": 9.0},
        {"step": 300},
        {"step": 300, "loss": None},
        {"step": 200, "loss": 2.25},
        {"step": 400, "loss": NAN},
    )
    found = read_over_training(run)
    assert list(found.loss) == [100, 200, 400]
    assert (found.loss[100], found.loss[200]) == (3.0, 2.25), "a run that was resumed writes a step again"
    assert math.isnan(found.loss[400])
    assert found.validation_loss == {200: 2.75}


def test_a_run_without_metrics_has_no_losses(run: Path) -> None:
    found = read_over_training(run)
    assert (found.loss, found.validation_loss) == ({}, {})


def test_the_line_that_a_run_is_still_writing_is_left(run: Path) -> None:
    metrics(run, {"step": 1, "loss": 2.0}, '{"step": 2, "lo', end="")
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: left out line 2, which is not complete"):
        assert read_over_training(run).loss == {1: 2.0}
    metrics(run, {"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}, end="")
    assert read_over_training(run).loss == {1: 2.0, 2: 1.0}


@pytest.mark.parametrize(
    "line",
    [
        {"step": "2", "loss": 1.0},
        {"step": -1, "loss": 1.0},
        {"step": True, "loss": 1.0},
        {"step": math.inf, "loss": 1.0},
        {"step": 10**15, "loss": 1.0},
        {"step": 2, "loss": "low"},
        {"step": 2, "validation_loss": [1.0]},
        {"step": 2, "loss": 10**400},
        {"step": 2, "heads_crc32": 7},
    ],
)
def test_an_invalid_line_of_metrics_is_named(run: Path, line: dict) -> None:
    metrics(run, {"step": 1, "loss": 2.0}, line)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl, line 2: expected metrics") as refused:
        read_over_training(run)
    assert len(str(refused.value)) < 400 + len(str(run))


@pytest.mark.parametrize("line", ['{"step": 2, "lo', "[1, 2]", '{"step": 2, "loss": 1.0}', "", "[" * 100_000, "\x00"])
def test_a_damaged_line_of_metrics_is_named(run: Path, line: str) -> None:
    metrics(run, {"step": 1, "loss": 2.0}, line, {"step": 3, "loss": 2.0})
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl, line 2: damaged, its checksum does not match"):
        read_over_training(run)


def test_a_table_that_was_changed_is_refused_by_the_checksum_in_the_metrics(run: Path) -> None:
    file = sorted((run / "heads").iterdir())[0]
    step = int(file.stem.removeprefix("step-"))
    metrics(run, {"step": step, "heads_crc32": crc32_file(file)})
    before = read_over_training(run).tables[0]
    content = file.read_bytes()
    place = next(number for number, byte in enumerate(content) if chr(byte) in "13579")
    file.write_bytes(content[:place] + bytes([content[place] ^ 2]) + content[place + 1 :])
    with pytest.raises(CheckpointError, match=rf"{file.name} is not the table that the run wrote"):
        read_over_training(run)
    file.write_bytes(content)
    assert read_over_training(run).tables[0].columns.keys() == before.columns.keys()


def test_metrics_that_are_no_text_or_no_file_are_refused(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl, line 1: damaged"):
        read_over_training(run)
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is not a file"):
        read_over_training(run)


def test_a_folder_without_tables_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--heads-every N"):
        read_over_training(tmp_path)
    (tmp_path / "heads").mkdir()
    with pytest.raises(SettingError, match=r"--heads-every N"):
        read_over_training(tmp_path)
    with pytest.raises(SettingError, match=r"nowhere is not a folder; .*--heads-every N"):
        read_over_training(tmp_path / "nowhere")


def test_other_files_beside_the_tables_are_left(run: Path) -> None:
    (run / "heads" / "step-00000020.csv.part").write_text("half")
    (run / "heads" / "notes.txt").write_text("about this run")
    assert read_over_training(run).steps == (20, 300, 1000)


@pytest.mark.parametrize("name", ["step-.csv", "step-1e3.csv", "step--5.csv", "step-²².csv", f"step-{'9' * 30}.csv"])
def test_a_table_whose_name_tells_no_step_is_refused(run: Path, name: str) -> None:
    (run / "heads" / name).write_bytes((run / "heads" / "step-00000020.csv").read_bytes())
    with pytest.raises(CheckpointError, match=r"step-00000100\.csv"):
        read_over_training(run)


def test_two_tables_of_one_step_are_refused(run: Path) -> None:
    (run / "heads" / "step-20.csv").write_bytes((run / "heads" / "step-00000020.csv").read_bytes())
    with pytest.raises(CheckpointError, match=r"step-20\.csv and .*step-00000020\.csv are of the same step"):
        read_over_training(run)


def test_a_damaged_table_is_named(run: Path) -> None:
    file = run / "heads" / "step-00000300.csv"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(CheckpointError, match=r"step-00000300\.csv, line 4: not a table"):
        read_over_training(run)


def test_tables_of_other_heads_are_refused(run: Path) -> None:
    table = HeadTable.from_csv(run / "heads" / "step-00000300.csv")
    for rows in ([0, 1], [1, 0, 2]):
        table.rows(rows).to_csv(run / "heads" / "step-00000300.csv")
        with pytest.raises(CheckpointError, match=r"step-00000300\.csv: expected the 3 heads of .*step-00000020\.csv"):
            read_over_training(run)


def test_a_table_without_heads_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "heads" / "step-1.csv").write_text("layer,head,sink,labels\n")
    with pytest.raises(CheckpointError, match=r"step-1\.csv has no heads"):
        read_over_training(tmp_path)


def curves(run: Path) -> dict[str, list[float]]:
    """The thick lines of the scores, by name."""
    lines = read_over_training(run).figure().axes[0].get_lines()
    return {str(line.get_label()): line.get_ydata().tolist() for line in lines if str(line.get_label())[0] != "_"}


def test_labels_that_appear_are_drawn_and_no_others(run: Path) -> None:
    write(run, {300: {"previous": [0, 0, 0.8], "induction_probe": [0, 0.3, 0.2], "self": [0.9, 0, 0]}})
    assert curves(run) == {"induction": [0.2, 0.3, 0.4], "previous": [0.7, 0.8, 0.9]}


def test_of_many_labels_the_six_most_telling_are_drawn(tmp_path: Path) -> None:
    names = ("evenness", "sink", "local", "self", "next", "previous", "duplicate", "induction")
    drawn = curves(write(tmp_path, {5: {name: [0.9, 0.0, 0.1] for name in names}}))
    assert set(drawn) == {"induction", "duplicate", "previous", "next", "self", "local"}


def test_where_none_has_appeared_the_most_telling_are_drawn(tmp_path: Path) -> None:
    scores = {"sink": 0.1, "self": 0.4, "previous": 0.2, "duplicate": 0.1, "evenness": 0.3, "induction": NAN}
    drawn = curves(write(tmp_path, {5: {name: [value] * 3 for name, value in scores.items()}}))
    assert drawn == {"duplicate": [0.1], "previous": [0.2], "self": [0.4]}


def test_tables_without_any_deciding_score_are_not_drawn(tmp_path: Path) -> None:
    found = read_over_training(write(tmp_path, {5: {"entropy": [1.0, 2.0, 3.0]}}))
    assert found.appearances() == []
    with pytest.raises(SettingError, match="no score of these tables decides a label: entropy"):
        found.figure()
