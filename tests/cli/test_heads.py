"""`attnscope heads` on SmolLM2, MiniLM, a saved trace and a training run; in processes where pipes matter."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from attnscope.heads import SCORES, HeadTable, assign_labels
from attnscope.models import Decoder, DecoderConfig
from attnscope.models.checked_log import encode_line
from attnscope.recording import load, read
from attnscope.version import __version__
from tests.cli.running import Result, assert_mistake, run_command

MODELS = Path(__file__).resolve().parents[2] / ".cache" / "models"
SMOLLM2, MINILM = MODELS / "smollm2-135m", MODELS / "minilm-l6"
TEXT = (
    "When Mary and John went to the store, John gave a drink to Mary. "
    "When Ann and Bob went to the park, Bob gave a ball to Ann."
)


def run_heads(*arguments: str | Path, columns: int = 100) -> Result:
    """Run `attnscope heads` in this process."""
    return run_command("heads", *arguments, columns=columns)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def heads_in(output: str) -> list[tuple[str, str]]:
    """Layer and head of each printed row."""
    return re.findall(r"^(\d+) +(\d+) +-?\d", output, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def everything(folder: Path) -> Result:
    """One run of SmolLM2 that writes all it can."""
    options = ("--tokens", "24", "--top", "7", "--parquet", folder / "heads.parquet", "--pictures", folder / "pictures")
    return run_heads(SMOLLM2, TEXT, "--csv", "-", *options, columns=80)


@pytest.fixture(scope="module")
def tiny_trace(folder: Path) -> Path:
    """A trace of a tiny model that has read some tokens."""
    torch.manual_seed(0)
    model = Decoder(
        DecoderConfig(
            vocab_size=30, hidden_size=32, num_layers=3, num_heads=4, intermediate_size=48, max_position_embeddings=64
        )
    ).eval()
    read(model, torch.arange(20) % 12).save(folder / "trace")
    return folder / "trace"


def test_csv_on_standard_output_is_all_heads_and_nothing_else(everything: Result) -> None:
    assert everything.code == 0
    rows = rows_of(everything.output)
    assert len(rows) == everything.output.count("\n") - 1 == 270
    scores = [score for score in SCORES if score not in ("next", "leakage")]
    assert list(rows[0]) == ["layer", "head", "induction_probe", "duplicate_probe", *scores, "labels"]
    assert {(row["layer"], row["head"]) for row in rows} == {
        (f"blocks.{layer}.attention", str(head)) for layer in range(30) for head in range(9)
    }
    best = max(rows, key=lambda row: float(row["induction_probe"]))
    assert float(best["induction_probe"]) > 0.5
    assert "induction" in best["labels"].split("+")


def test_what_is_for_people_goes_to_standard_error_then(everything: Result) -> None:
    lines = everything.errors.splitlines()
    assert lines[0].startswith("270 heads on ")
    assert len(heads_in(everything.errors)) == 7
    assert "no room for" in everything.errors
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in everything.errors


def test_labels_are_counted_over_all_heads(everything: Result) -> None:
    first = " ".join(everything.errors.partition("\n\n")[0].split())
    told = {label: int(count) for count, label in re.findall(r"(\d+) (\w+)", first)}
    assert told.pop("heads") == 270
    del told["tokens"]
    labels = [label for row in rows_of(everything.output) for label in row["labels"].split("+")]
    assert told == {label: labels.count(label) for label in set(labels)}


def test_the_heads_that_do_most_of_the_most_telling_come_first(everything: Result) -> None:
    rows = [row for row in rows_of(everything.output) if "induction" in row["labels"]]
    rows.sort(key=lambda row: -float(row["induction_probe"]))
    wanted = [(row["layer"].split(".")[1], row["head"]) for row in rows]
    assert heads_in(everything.errors)[: len(wanted)] == wanted[:7]


def test_parquet_is_the_same_table(everything: Result, folder: Path) -> None:
    opened = pyarrow.parquet.read_table(folder / "heads.parquet").to_pylist()
    assert [{name: str(cell) for name, cell in row.items()} for row in opened] == rows_of(everything.output)


def test_each_label_has_a_picture(everything: Result, folder: Path) -> None:
    labels = {label for row in rows_of(everything.output) for label in row["labels"].split("+")} - {"mixed"}
    files = {path.stem: path.read_bytes() for path in (folder / "pictures").iterdir()}
    assert set(files) == labels
    assert all(content.startswith(b"\x89PNG") and len(content) > 5000 for content in files.values())


def test_no_more_tokens_are_read_than_asked_for(everything: Result) -> None:
    model, tokenizer = load(SMOLLM2)
    ids = tokenizer.encode(TEXT)
    assert len(ids) > 24
    trace = read(model, ids[:24], tokenizer, layers=[0])
    wanted = trace.summary("blocks.0.attention").entropy[0, 0, 1:].double().mean()
    # The same numbers from one layer alone: equal but for the order of sums.
    assert float(rows_of(everything.output)[0]["entropy"]) == pytest.approx(float(wanted), rel=1e-5)


def test_json_is_all_heads_with_labels_and_scores(tiny_trace: Path) -> None:
    code, output, errors = run_heads(tiny_trace, "--json")
    assert (code, errors) == (0, "")
    found = json.loads(output)
    assert (found["attnscope"], found["model"], found["find"]) == (__version__, str(tiny_trace), None)
    assert found["input"] == "20 tokens"
    rows = {(row["layer"], row["head"]): row for row in rows_of(run_heads(tiny_trace, "--csv", "-")[1])}
    assert len(found["heads"]) == len(rows) == 12
    for head in found["heads"]:
        row = rows[head["layer"], str(head["head"])]
        assert head["labels"] == row["labels"].split("+")
        assert {name: str(score) for name, score in head["scores"].items()} == {
            name: row[name].replace("nan", "None") for name in head["scores"]
        }
    best = json.loads(run_heads(tiny_trace, "--json", "--by", "sink", "--top", "3")[1])["heads"]
    sinks = sorted((head["scores"]["sink"] for head in found["heads"]), reverse=True)
    assert [head["scores"]["sink"] for head in best] == sinks[:3]


def test_json_of_found_heads_holds_what_ablation_changes() -> None:
    code, output, errors = run_heads(MINILM, TEXT, "--find", "previous", "--json", "--top", "1")
    assert (code, errors) == (0, "")
    found = json.loads(output)
    assert (len(found["heads"]), found["find"]["label"]) == (1, "previous")
    assert "predicts tokens" in found["find"]["ablation"]["reason"]
    found = json.loads(run_heads(SMOLLM2, "--find", "induction", "--json").output)
    ablation = found["find"]["ablation"]
    assert ablation["heads"] == sum("induction" in head["labels"] for head in found["heads"])
    (first, second), (others_first, others_second) = ablation["change"], ablation["change_of_others"]
    assert second > 3, "what came before is no longer of use"
    assert abs(first) < 0.5, "what is new was never predicted"
    assert abs(others_second) < 3 / 4
    assert abs(others_first) < 0.5


def test_finding_heads_describes_and_ranks_them_and_shows_the_ablation(monkeypatch: pytest.MonkeyPatch) -> None:
    ablation = {"heads": 6, "draws": 5, "loss": [13.4, 3.0], "change": [-0.001, 10.18], "change_of_others": [0.06, 0.5]}
    monkeypatch.setattr("attnscope.cli.heads.measure_ablation", lambda subject, table, label: ablation)
    done = run_heads(MINILM, TEXT, "--find", "previous", "--top", "8", columns=160)
    assert (done.code, done.errors) == (0, "")
    assert done.output.startswith("previous: Attends to the previous token")
    assert len(heads_in(done.output)) == 8
    scores = [float(score) for score in re.findall(r"^\d+ +\d+ +(\d\.\d\d)", done.output, re.MULTILINE)]
    assert len(scores) == 8
    assert scores == sorted(scores, reverse=True)
    rows = [line.strip().rsplit(maxsplit=2) for line in done.output.split("\n\n")[-1].splitlines()[1:]]
    assert rows == [
        ["loss with all heads", "13.40", "3.00"],
        ["change when 6 with the label are ablated", "+0.00", "+10.18"],
        ["change when 6 others are, mean of 5 draws", "+0.06", "+0.50"],
    ]


@pytest.fixture(scope="module")
def from_file(folder: Path) -> Result:
    """One run of MiniLM over a file, ranked by a score."""
    (folder / "text.txt").write_text(TEXT)
    return run_heads(MINILM, folder / "text.txt", "--by", "next", "--top", "3", "--csv", folder / "minilm.csv")


def test_an_encoder_is_scored_from_a_file_by_a_score(from_file: Result, folder: Path) -> None:
    assert (from_file.code, from_file.errors) == (0, "")
    rows = rows_of((folder / "minilm.csv").read_text())
    assert len(rows) == 72
    best = sorted(rows, key=lambda row: -float(row["next"]))[:3]
    assert heads_in(from_file.output) == [(row["layer"].split(".")[1], row["head"]) for row in best]
    header = from_file.output.split("\n\n")[1].splitlines()[1]
    assert header.split()[:3] == ["layer", "head", "next"]


def test_a_text_from_standard_input_gives_what_its_file_gives(from_file: Result, folder: Path) -> None:
    piped = run_command("heads", MINILM, "-", "--csv", "-", stdin=TEXT.encode())
    assert len(rows_of(piped.output)) == 72
    assert piped.output == (folder / "minilm.csv").read_text()


def test_an_encoder_is_not_asked_what_it_predicts() -> None:
    code, output, errors = run_heads(MINILM, TEXT, "--find", "previous", "--top", "4")
    assert (code, errors) == (0, "")
    assert heads_in(output)[0] == ("0", "2")
    assert "nats per token" not in output


def test_a_label_that_no_head_earns_is_told_so() -> None:
    code, output, errors = run_heads(MINILM, TEXT, "--find", "induction", "--top", "2")
    assert (code, errors) == (0, "")
    assert output.rstrip().endswith("No head reaches the threshold of this label, 0.3.")


def test_a_label_that_most_heads_have_is_still_found() -> None:
    code, output, errors = run_heads(SMOLLM2, "--find", "sink", "--top", "3")
    assert (code, errors) == (0, ""), "too few others to compare with are no mistake of the user"
    assert output.startswith("sink: ")
    assert len(heads_in(output)) == 3


def test_a_saved_trace_is_scored_without_its_model(tiny_trace: Path) -> None:
    done = run_heads(tiny_trace, "--csv", "-")
    assert done.code == 0
    rows = rows_of(done.output)
    assert len(rows) == 12
    assert "induction" in rows[0]
    assert "induction_probe" not in rows[0]
    assert done.errors.startswith("12 heads on 20 tokens: ")


def test_a_saved_trace_has_its_own_text_and_no_sentences(tiny_trace: Path) -> None:
    for arguments, message in (
        ((TEXT,), "is a saved trace with its own text; leave out TEXT"),
        (("--relations",), "built-in sentences, which need a model"),
        (("--find", "agreement"), "built-in sentences, which need a model"),
    ):
        code, output, errors = run_heads(tiny_trace, *arguments)
        assert (code, output) == (2, "")
        assert message in errors


@pytest.fixture
def training_run(tmp_path: Path) -> Path:
    """A run in which a head learns to look back by step 300, and another to repeat by step 1,200."""
    (tmp_path / "heads").mkdir()
    for step, previous, induction in ((100, 0.1, 0.0), (300, 0.5, 0.1), (1200, 0.876, 0.625)):
        numbers = {"previous": torch.tensor([0.0, previous]), "induction_probe": torch.tensor([induction, 0.0])}
        table = HeadTable(("blocks.1.attention", "blocks.0.attention"), (3, 1), numbers)
        assign_labels(table).to_csv(tmp_path / "heads" / f"step-{step:08d}.csv")
    lines = [{"step": 100, "loss": 3.0}, {"step": 1200, "validation_loss": 2.0}]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(map(encode_line, lines)))
    return tmp_path


TABLE_OVER_TRAINING = """\
label      step  layer  head  final score
induction  1200      1     3         0.62
previous    300      0     1         0.88
"""


def test_a_training_run_is_a_table_on_standard_output_and_a_figure_in_its_folder(training_run: Path) -> None:
    code, output, errors = run_heads("--over-training", training_run)
    assert (code, output) == (0, TABLE_OVER_TRAINING)
    picture = training_run / "heads-over-training.png"
    assert errors.splitlines()[-2:] == ["3 steps recorded, the last is 1,200", str(picture)]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_figure_of_a_training_run_goes_to_another_folder_if_asked(training_run: Path, tmp_path: Path) -> None:
    code, _, errors = run_heads("--over-training", training_run, "--pictures", tmp_path / "new" / "folder")
    assert code == 0
    assert errors.splitlines()[-1] == str(tmp_path / "new" / "folder" / "heads-over-training.png")
    assert (tmp_path / "new" / "folder" / "heads-over-training.png").is_file()
    assert not (training_run / "heads-over-training.png").exists()


def test_a_training_run_of_one_step_without_losses_and_labels_is_shown(training_run: Path) -> None:
    for name in ("heads/step-00000300.csv", "heads/step-00001200.csv", "metrics.jsonl"):
        (training_run / name).unlink()
    code, output, errors = run_heads("--over-training", training_run)
    assert (code, output.split()) == (0, ["label", "step", "layer", "head", "final", "score"])
    assert "1 step recorded, the last is 100" in errors
    assert (training_run / "heads-over-training.png").is_file()


@pytest.mark.slow
def test_a_reader_of_a_training_run_who_has_seen_enough_ends_it_quietly(training_run: Path) -> None:
    program = f"'{sys.executable}' -m attnscope.cli.main heads --over-training '{training_run}' | true"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120, check=False)
    for word in ("Traceback", "Broken", "Exception"):
        assert word not in done.stderr


OVER_TRAINING_MISTAKES = {
    "a model": (("model",), "MODEL cannot be combined with --over-training"),
    "a model and a text": (("model", TEXT), "MODEL cannot be combined with --over-training"),
    "tokens": (("--tokens", "5"), "--tokens cannot be combined with --over-training"),
    "top": (("--top", "0"), "--top cannot be combined with --over-training"),
    "by": (("--by", "sink"), "--by cannot be combined with --over-training"),
    "find": (("--find", "sink"), "--find cannot be combined with --over-training"),
    "relations": (("--relations",), "--relations cannot be combined with --over-training"),
    "json": (("--json",), "--json cannot be combined with --over-training"),
    "csv": (("--csv", "-"), "--csv cannot be combined with --over-training"),
    "parquet": (("--parquet", "heads.parquet"), "--parquet cannot be combined with --over-training"),
    "a folder that is a file": (("--pictures", __file__), "test_heads.py is a file; expected a folder"),
    "a folder inside a file": (("--pictures", f"{__file__}/in"), "heads-over-training.png cannot be written"),
}


@pytest.mark.parametrize("mistake", OVER_TRAINING_MISTAKES)
def test_what_makes_no_sense_for_a_training_run_is_refused(mistake: str, training_run: Path) -> None:
    arguments, message = OVER_TRAINING_MISTAKES[mistake]
    code, _, errors = run_heads(*arguments, "--over-training", training_run)
    assert code == 2
    assert errors.splitlines()[-1].startswith("attnscope: heads: ")
    assert message in errors
    assert not (training_run / "heads-over-training.png").exists()


def test_a_folder_that_is_no_watched_run_says_how_to_train_one(tmp_path: Path) -> None:
    assert_mistake(run_heads("--over-training", tmp_path), "train with --heads-every N")
    assert_mistake(run_heads("--over-training", __file__), "test_heads.py is not a folder")


def test_a_damaged_table_of_a_run_is_one_line(training_run: Path) -> None:
    (training_run / "heads" / "step-00000300.csv").write_text("layer,head\n")
    assert_mistake(run_heads("--over-training", training_run), "got 0 heads")
    (training_run / "metrics.jsonl").write_text("{\n{\n")
    (training_run / "heads" / "step-00000300.csv").unlink()
    assert_mistake(run_heads("--over-training", training_run), "metrics.jsonl, line 1")


MISTAKES = {
    "JSON and CSV": ((MINILM, TEXT, "--json", "--csv", "-"), "--json and --csv - both write to standard output"),
    "neither model nor run": ((), "give a MODEL to score, or a training run with --over-training RUN"),
    "a label": ((MINILM, TEXT, "--find", "inductive"), "unknown label 'inductive' (did you mean 'induction'?)"),
    "a score": ((MINILM, TEXT, "--by", "sinks"), "--by: unknown score 'sinks' (did you mean 'sink'?)"),
    "a file": ((MINILM, "missing.txt"), "'missing.txt' looks like a file name"),
    "a path": ((MINILM, "some/where"), "'some/where' looks like a file name"),
    "no heads": ((MINILM, TEXT, "--top", "0"), "--top must be at least 1, got 0"),
    "no tokens": ((MINILM, TEXT, "--tokens", "-3"), "--tokens must be at least 1, got -3"),
    "an empty text": ((MINILM, ""), "empty"),
    "a folder to write CSV in": ((MINILM, TEXT, "--csv", "/nowhere/at/all.csv"), "/nowhere/at/all.csv"),
    "a folder to write Parquet in": ((MINILM, TEXT, "--parquet", "/nowhere/at/all"), "/nowhere/at/all"),
    "a folder that is a file": ((MINILM, TEXT, "--pictures", __file__), "test_heads.py"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_two(mistake: str) -> None:
    arguments, message = MISTAKES[mistake]
    assert_mistake(run_heads(*arguments), message)


def test_a_model_that_is_not_there_is_one_line_and_exit_code_two() -> None:
    assert_mistake(run_heads(MODELS / "nowhere", TEXT), "is neither a folder, nor a .gguf file, nor a name on")


def test_a_file_that_is_no_text_is_one_line_and_exit_code_two(folder: Path) -> None:
    (folder / "picture.bin").write_bytes(b"\xff\xfe\x00\x80" * 20)
    assert_mistake(run_heads(MINILM, folder / "picture.bin"), "picture.bin")


@pytest.mark.parametrize(
    ("options", "reader"),
    [("--top 12", "head -3"), pytest.param("--top 12", "true", marks=pytest.mark.slow), ("--csv -", "true")],
)
def test_a_reader_who_has_seen_enough_ends_it_quietly(tiny_trace: Path, options: str, reader: str) -> None:
    program = f"'{sys.executable}' -m attnscope.cli.main heads '{tiny_trace}' {options} | {reader}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("\n") == (3 if reader == "head -3" else 0)
    for word in ("Traceback", "Broken", "Exception"):
        assert word not in done.stderr


def test_a_link_ranks_heads_and_says_which_tokens_it_means() -> None:
    result = run_heads(SMOLLM2, TEXT, "--link", "gave a ball to -> Bob", "--top", "3")
    assert re.match(r"query: \d+ ' to'\nkey: \d+ ' Bob'\n", result.output)
    assert len(heads_in(result.output)) == 3
    found = json.loads(run_heads(SMOLLM2, TEXT, "--link", "gave a ball to -> Bob", "--top", "3", "--json").output)
    assert [head["scores"].keys() for head in found["heads"]] == [{"weight": 0}.keys()] * 3
    weights = [head["scores"]["weight"] for head in found["heads"]]
    assert weights == sorted(weights, reverse=True)
    assert 0.1 < weights[0] <= 1


def test_a_link_in_a_saved_trace_is_given_by_positions(tiny_trace: Path) -> None:
    result = run_heads(tiny_trace, "--link", "19 -> 7..9")
    assert len(heads_in(result.output)) == 12


def test_mistakes_of_links(tiny_trace: Path) -> None:
    assert_mistake(run_heads(tiny_trace, "--link", "99 -> 7"), "no layer has query")
    assert_mistake(run_heads(tiny_trace, "--link", "1 -> 0", "--find", "induction"), "leave out --find")
    assert_mistake(run_heads(SMOLLM2, "--link", "is -> it"), "--link needs a TEXT")
