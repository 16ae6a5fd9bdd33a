"""`attnscope lab`, run as a user runs it: lists, runs, files, exit codes, exercises and mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from attnscope.errors import MissingExtraError
from attnscope.labs import CLAIMS, Lab, Measurement, Verdict
from attnscope.labs.exercise import hint, solution, starter
from attnscope.labs.notebooks import notebook
from tests.cli.running import Result, assert_mistake, run_command

ANSWERS = Path(__file__).resolve().parents[1] / "labs" / "exercises"


def run_lab(*arguments: str | Path) -> Result:
    """Run `attnscope lab` in this process."""
    return run_command("lab", *arguments)


def settles(lab: Lab) -> None:
    """One claim with a verdict."""
    lab.decide("38", Verdict.HOLDS, "as said", Measurement(name="seed", value=float(lab.seed), low=0.0))


def settles_at_seed_zero(lab: Lab) -> None:
    """One claim with a verdict at seed 0, and an inconclusive one at other seeds."""
    lab.table("what was asked", ("size", "seed"), [(lab.size, lab.seed)])
    reason, measurement = "because of the seed", Measurement(name="the seed", value=float(lab.seed), high=0.0)
    lab.decide("1a", Verdict.HOLDS_WHEN, reason, measurement, condition="the seed is 0")


def cannot_run(_: Lab) -> None:
    """Nothing."""
    raise MissingExtraError("something is needed,\n  and is not there")


@pytest.fixture
def three_labs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of all labs, three that take no time, of which the last cannot run."""
    for name, part in (("one", settles), ("other", settles_at_seed_zero), ("none", cannot_run)):
        module = ModuleType(f"attnscope.labs.experiments.{name}", f"What of {name}?\n")
        module.PARTS = (part,)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    only(monkeypatch, "one", "other", "none")


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for place in ("attnscope.labs.NAMES", "attnscope.labs.catalogue.NAMES"):
        monkeypatch.setattr(place, names)


def test_the_list_in_a_pipe_is_a_line_for_each_lab_and_each_exercise() -> None:
    code, output, errors = run_lab("list")
    assert (code, errors) == (0, "")
    labs, exercises = ([line.split("\t") for line in block.splitlines()] for block in output.strip().split("\n\n"))
    assert labs[0] == ["lab", "topic", "claims", "seconds"]
    assert labs[1][:2] == ["scaling", "Attention scaling"]
    assert sorted(claim for row in labs[1:-1] for claim in row[2].split()) == sorted(CLAIMS)
    assert exercises[0] == ["exercise", "topic", "difficulty", "minutes"]
    assert "causal_mask" in [row[0] for row in exercises]


def test_a_real_lab_runs_prints_and_writes(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "worked_examples"
    code, output, errors = run_command("lab", "run", "worked_examples", "--out", tmp_path / "new", columns=40)
    assert (code, errors) == (0, f"written to {folder}\n")
    assert output.startswith("lab\tworked_examples\tsmall\t0\t")
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    printed = [line.split("\t") for line in output.splitlines() if line.startswith("claim\t")]
    assert [row[1] for row in printed] == [claim["claim"] for claim in found["claims"]]
    figures = {f"{figure['name']}.{form}" for figure in found["figures"] for form in ("png", "svg")}
    assert {path.name for path in folder.iterdir()} == {"result.json", *figures}


def test_an_inconclusive_verdict_is_exit_code_one(three_labs: None) -> None:
    code, output, _ = run_lab("run", "other")
    assert code == 0
    assert "claim\t1a\tholds when the seed is 0" in output
    code, output, _ = run_lab("run", "other", "--seed", "3", "--size", "full")
    assert code == 1
    assert "claim\t1a\tinconclusive" in output
    assert "\nfull\t3\n" in output


def test_all_labs_give_one_table_in_the_order_of_claims_and_files(
    three_labs: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only(monkeypatch, "one", "other")
    code, output, errors = run_lab("run", "all", "--out", tmp_path)
    assert (code, errors) == (0, "")
    assert [line.split("\t") for line in output.splitlines()] == [
        ["claim", "text", "verdict", "lab"],
        ["1a", CLAIMS["1a"].text, "holds when the seed is 0", "other"],
        ["38", CLAIMS["38"].text, "holds", "one"],
    ]
    assert json.loads((tmp_path / "one" / "result.json").read_text())["lab"] == "one"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [(claim["claim"], claim["verdict"], claim["condition"], claim["lab"]) for claim in summary["claims"]] == [
        ("1a", "holds when", "the seed is 0", "other"),
        ("38", "holds", "", "one"),
    ]
    assert (summary["size"], summary["seed"], summary["not_run"]) == ("small", 0, {})


def test_a_lab_that_cannot_run_does_not_keep_others_from_it_and_is_exit_code_one(
    three_labs: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only(monkeypatch, "none", "one")
    code, output, errors = run_lab("run", "all", "--out", tmp_path)
    assert code == 1
    assert output.splitlines()[1:] == [f"38\t{CLAIMS['38'].text}\tholds\tone"]
    assert errors == "attnscope: lab none did not run: something is needed, and is not there\n"
    assert json.loads((tmp_path / "summary.json").read_text())["not_run"] == {
        "none": "something is needed, and is not there"
    }


def test_all_labs_say_which_number_settled_nothing(three_labs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "one", "other")
    code, output, _ = run_lab("run", "all", "--seed", "2")
    assert code == 1
    assert "measurement\t1a\tthe seed\t2\toutside\tat most 0" in output
    assert output.count("\nclaim\t") == 1, "what is settled is in the table alone"


def test_an_exercise_is_written_once_and_never_over_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output, errors = run_lab("exercise", "attention")
    assert (code, errors) == (0, "")
    assert output.endswith("attnscope lab check attention.py\n")
    assert (tmp_path / "attention.py").read_text(encoding="utf-8") == starter("attention")
    (tmp_path / "attention.py").write_text("my work")
    assert_mistake(run_lab("exercise", "attention"), "attention.py already exists")
    assert (tmp_path / "attention.py").read_text() == "my work"
    assert run_lab("exercise", "attention", "new/mine.py")[0] == 0
    assert (tmp_path / "new" / "mine.py").is_file()
    assert run_lab("exercise", "attention", "-")[:2] == (0, starter("attention"))


def test_a_right_answer_is_exit_code_zero_and_what_it_printed_comes_first(tmp_path: Path) -> None:
    right = (ANSWERS / "attention" / "right_1.py").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(f"# attnscope exercise: attention\n{right}\nprint('[bold]here')\n")
    code, output, errors = run_lab("check", tmp_path / "mine.py")
    assert (code, errors) == (0, "")
    assert output.startswith("your answer printed:\n[bold]here\n\nCorrect.\n")


def test_a_wrong_answer_is_told_in_words_and_exit_code_one(tmp_path: Path) -> None:
    wrong = sorted((ANSWERS / "attention").glob("wrong_*.py"))[0].read_text(encoding="utf-8")
    kind = wrong.partition("\n")[0].removeprefix("# kind: ")
    (tmp_path / "mine.py").write_text(f"# attnscope exercise: attention\n{wrong}")
    code, output, errors = run_lab("check", tmp_path / "mine.py")
    assert (code, errors) == (1, "")
    first, *_, last = output.splitlines()
    assert first == f"Not yet: {kind}."
    assert last == f"For a hint: attnscope lab hint {tmp_path / 'mine.py'}"
    assert output.count("\n") == 3, "nothing is wrapped in a pipe"


def test_the_solution_is_printed_after_a_right_answer_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("# attnscope exercise: attention\ndef attend(q, k, v):\n    return q, k\n")
    code, output, errors = run_lab("solution", tmp_path / "mine.py")
    assert (code, errors) == (1, "")
    assert "def attend" not in output
    assert f"attnscope lab check {tmp_path / 'mine.py'}" in output
    (tmp_path / "mine.py").write_text(f"# attnscope exercise: attention\n{solution('attention')}")
    assert run_lab("solution", tmp_path / "mine.py") == (0, solution("attention"), "")


@pytest.mark.slow
def test_a_fresh_file_is_told_what_to_fill_in_without_saying_so_twice(tmp_path: Path) -> None:
    run_lab("exercise", "attention", tmp_path / "mine.py")
    code, output, _ = run_lab("check", tmp_path / "mine.py")
    assert code == 1
    assert output.startswith("Not yet.\nNothing is there yet: fill in ")


def test_an_answer_that_never_ends_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("# attnscope exercise: attention\nwhile True:\n    pass\n")
    code, output, _ = run_lab("check", tmp_path / "mine.py", "--seconds", "0.5")
    assert code == 1
    assert output.startswith("Not yet: it does not end.\n")
    assert "0.5 seconds" in output


def test_hints_come_one_at_a_time_for_a_file_and_for_a_name(tmp_path: Path) -> None:
    run_lab("exercise", "attention", tmp_path / "mine.py")
    assert run_lab("hint", tmp_path / "mine.py") == (0, hint("attention", 1) + "\n", "")
    assert run_lab("hint", "attention", "2") == (0, hint("attention", 2) + "\n", "")


def test_a_notebook_is_written(tmp_path: Path) -> None:
    code, output, errors = run_lab("notebook", "scaling", tmp_path / "mine.ipynb")
    assert (code, errors) == (0, "")
    assert output.endswith(f"jupyter lab {tmp_path / 'mine.ipynb'}\n")
    assert json.loads((tmp_path / "mine.ipynb").read_text(encoding="utf-8")) == notebook("scaling")


MISTAKES = {
    "a lab": (("run", "nothing"), "unknown lab 'nothing' (expected scaling, training_without_scaling"),
    "a folder that is a file": (
        ("run", "worked_examples", "--out", __file__),
        "test_lab.py is a file; expected a folder",
    ),
    "an exercise": (("exercise", "nothing"), "unknown exercise 'nothing' (expected attention"),
    "a notebook": (("notebook", "nothing"), "unknown lab 'nothing'"),
    "a place for a notebook": (("notebook", "scaling", f"{__file__}/in/it"), "it cannot be written: Not a directory"),
    "a file": (("check", "nowhere.py"), "nowhere.py not found"),
    "another file": (("check", __file__), "names no exercise"),
    "a hint": (("hint", "attention", "9"), "from 1 to 3 for attention, got 9"),
    "no time": (("check", __file__, "--seconds", "0"), "seconds above 0, got 0.0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_two(mistake: str) -> None:
    arguments, message = MISTAKES[mistake]
    assert_mistake(run_lab(*arguments), message)


def test_a_reader_who_has_seen_enough_ends_it_quietly() -> None:
    program = f"'{sys.executable}' -m attnscope.cli.main lab run worked_examples | true"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120, check=False)
    for word in ("Traceback", "Broken", "Exception"):
        assert word not in done.stderr
