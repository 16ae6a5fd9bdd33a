"""Every exercise accepts right answers of several kinds, and says of each wrong one what is wrong with it."""

import ast
import re
from pathlib import Path

import pytest
import torch

from attnscope.errors import SettingError
from attnscope.labs.checking import check_file
from attnscope.labs.exercise import (
    HEADER,
    Outcome,
    check_answer,
    exercise_name,
    first_mismatch,
    hint,
    load_exercise,
    solution,
    starter,
    task,
)
from attnscope.labs.exercises import EFFORT, NAMES

ANSWERS = Path(__file__).parent / "exercises"
RIGHT = sorted(ANSWERS.glob("*/right_*.py"))
WRONG = sorted(ANSWERS.glob("*/wrong_*.py"))
MIN_RIGHT, MIN_WRONG, MIN_HINTS = 3, 5, 3
SLOW = {"reversal-wrong_a_ramp", "reversal-wrong_distances_only"}
"""Answers that train to the last step; "reversal-wrong_positions_frozen" does so in CI."""
TELLING_CHARACTERS = 16
"""A line of code that is shorter, such as `return output`, gives nothing away."""


def named(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def telling_lines(path: Path) -> set[str]:
    """The statements of an answer that would help whoever read them."""
    return telling(path.read_text(), path.parent.name)


def telling(code: str, exercise: str) -> set[str]:
    lines = {line.strip() for line in code.splitlines()}
    lines -= {line.strip() for line in starter(exercise).splitlines()}
    plain = re.compile(r"#|import |from |def |@|\"\"\"|return \w+$")
    return {line for line in lines if len(line) >= TELLING_CHARACTERS and not plain.match(line)}


def given_away(words: str, exercise: str, own: Path | None = None) -> list[str]:
    """Lines of right answers that the words contain, and that the learner has not written already."""
    lines = set().union(*(telling_lines(path) for path in RIGHT if path.parent.name == exercise))
    lines |= telling(solution(exercise), exercise)
    lines -= telling_lines(own) if own else set()
    return [line for line in lines if line in words]


@pytest.mark.parametrize("path", RIGHT, ids=named)
def test_a_right_answer_is_accepted(path: Path) -> None:
    outcome = check_answer(path, path.parent.name)
    assert outcome.is_correct, f"{outcome.kind}: {outcome.message}"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=named(path), marks=pytest.mark.slow if named(path) in SLOW else ()) for path in WRONG],
)
def test_a_wrong_answer_is_told_what_is_wrong_and_not_what_is_right(path: Path) -> None:
    outcome = check_answer(path, path.parent.name)
    assert f"# kind: {outcome.kind}" == path.read_text().partition("\n")[0], outcome.message
    assert len(outcome.message) > len(outcome.kind)
    assert given_away(outcome.message, path.parent.name, path) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_is_complete(name: str) -> None:
    exercise = load_exercise(name)
    assert 1 + len(list((ANSWERS / name).glob("right_*.py"))) >= MIN_RIGHT  # and the solution
    assert len(list((ANSWERS / name).glob("wrong_*.py"))) >= MIN_WRONG
    assert len(exercise.HINTS) >= MIN_HINTS
    assert [given_away(said, name) for said in exercise.HINTS] == [[]] * len(exercise.HINTS)


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_is_accepted(name: str, tmp_path: Path) -> None:
    path = tmp_path / "answer.py"
    path.write_text(solution(name))
    outcome = check_answer(path, name)
    assert outcome.is_correct, f"{outcome.kind}: {outcome.message}"


def test_every_exercise_has_an_effort_and_a_lesson_that_names_it() -> None:
    lessons = Path(__file__).parents[2] / "docs/learn"
    assert {effort.difficulty for effort in EFFORT.values()} == {"easy", "medium", "hard"}
    assert all(0 < effort.minutes <= 60 for effort in EFFORT.values())
    for name, effort in EFFORT.items():
        assert f"attnscope lab exercise {name}\n" in (lessons / f"{effort.lesson}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_starter_is_python_that_says_it_is_not_filled_in_yet(name: str, tmp_path: Path) -> None:
    path = tmp_path / "answer.py"
    path.write_text(starter(name))
    assert starter(name).startswith(f"{HEADER}{name}\n")
    assert task(name).partition("\n")[0] in starter(name)
    functions = [node for node in ast.parse(starter(name)).body if isinstance(node, ast.FunctionDef)]
    outcome = check_answer(path)
    assert outcome.kind == "nothing is there yet"
    assert any(function.name in outcome.message for function in functions)


def test_the_answers_belong_to_exercises() -> None:
    assert {path.parent.name for path in (*RIGHT, *WRONG)} == set(NAMES)


ATTENTION = f"{HEADER}attention\nimport torch\n\ndef attend(q, k, v):\n    "


def judged(tmp_path: Path, source: str) -> Outcome:
    path = tmp_path / "answer.py"
    path.write_text(source)
    return check_answer(path)


def test_what_an_answer_raises_is_told_with_its_line(tmp_path: Path) -> None:
    outcome = judged(tmp_path, ATTENTION + "return q @ k")
    assert outcome.kind == "it raises"
    assert "line 5: `return q @ k`" in outcome.message
    assert "k: float32 (" in outcome.message


def test_what_torch_does_not_implement_is_not_taken_for_an_empty_function(tmp_path: Path) -> None:
    outcome = judged(tmp_path, ATTENTION + "return torch.nn.Module()(q)")
    assert outcome.kind == "it raises"
    assert "NotImplementedError" in outcome.message


def test_a_file_that_is_not_python_is_told_so(tmp_path: Path) -> None:
    outcome = judged(tmp_path, ATTENTION + "return q @@ k")
    assert outcome.kind == "not Python"
    assert "Line 5" in outcome.message


def test_an_answer_that_leaves_is_told_so(tmp_path: Path) -> None:
    assert judged(tmp_path, ATTENTION + "raise SystemExit(3)").kind == "it raises"


def test_a_function_that_cannot_be_called_that_way_is_told_so(tmp_path: Path) -> None:
    outcome = judged(tmp_path, f"{HEADER}attention\ndef attend(q):\n    return q\n")
    assert outcome.kind == "it raises"
    assert "takes 1 positional argument" in outcome.message


def test_a_missing_function_is_named(tmp_path: Path) -> None:
    outcome = judged(tmp_path, f"{HEADER}attention\nattend = 3\n")
    assert outcome.kind == "a function is missing"
    assert "`attend`" in outcome.message


def test_a_forgotten_return_is_told(tmp_path: Path) -> None:
    assert judged(tmp_path, ATTENTION + "q @ k.mT").kind == "it returns nothing"


def test_a_changed_input_is_noticed(tmp_path: Path) -> None:
    assert judged(tmp_path, ATTENTION + "q *= 2\n    return q, k").kind == "the input is changed"


def test_what_an_answer_prints_is_kept_and_no_more_than_its_beginning(tmp_path: Path) -> None:
    outcome = judged(tmp_path, f"print('here'); print('x' * 100_000)\n{ATTENTION}raise NotImplementedError")
    assert outcome.printed.startswith("here\nxxx")
    assert len(outcome.printed) == 4_000


def test_a_warning_is_no_mistake(tmp_path: Path) -> None:
    outcome = judged(tmp_path, ATTENTION + "torch.ones(1).var()\n    return q @ k.mT")
    assert outcome.kind == "not what was asked for"


def test_a_judgement_leaves_the_random_numbers_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    judged(tmp_path, ATTENTION + "torch.manual_seed(7)\n    return q, k")
    assert torch.equal(before, torch.get_rng_state())


def test_an_edit_is_seen_at_once(tmp_path: Path) -> None:
    assert "`return q @ k`" in judged(tmp_path, ATTENTION + "return q @ k").message
    assert "`return q / 0`" not in judged(tmp_path, ATTENTION + "return q @ v").message
    assert "`return q @ v`" in judged(tmp_path, ATTENTION + "return q @ v").message


def test_a_file_of_no_exercise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answer.py"
    path.write_text("x = 1\n")
    with pytest.raises(SettingError, match="first line # attnscope exercise: NAME"):
        check_answer(path)
    path.write_text(f"{HEADER}nothing\n")
    with pytest.raises(SettingError, match=r"unknown exercise 'nothing' \(expected attention"):
        check_file(path)
    with pytest.raises(SettingError, match="attnscope lab exercise NAME FILE"):
        hint(tmp_path / "absent.py")


def test_hints_are_given_by_name_and_by_file_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "answer.py"
    path.write_text("\ufeff" + starter("attention"), encoding="utf-8")
    assert hint(path, 2) == hint("attention", 2) != hint("attention")
    count = len(load_exercise("attention").HINTS)
    assert hint(path).startswith(f"Hint 1 of {count}: ")
    assert hint(path).endswith("\nThe next hint: attnscope lab hint attention 2")
    assert "The next hint" not in hint(path, count)
    with pytest.raises(SettingError, match="from 1 to"):
        hint(path, 0)
    assert exercise_name(path) == "attention"


def test_a_difference_is_found_where_it_is_first() -> None:
    one = torch.tensor([[0.0, torch.inf], [1.0, 2.0]])
    other = torch.tensor([[0.0, torch.inf], [1.0, torch.nan]])
    assert first_mismatch(one, one, 0.0) is None
    assert first_mismatch(other, one, 1.0) == (1, 1)


def checked(tmp_path: Path, source: str, seconds: float = 120.0) -> Outcome:
    path = tmp_path / "answer.py"
    path.write_text(source)
    return check_file(path, seconds)


def test_a_file_is_checked_in_a_process_of_its_own(tmp_path: Path) -> None:
    outcome = checked(tmp_path, ATTENTION + "return q @ k")
    assert outcome == check_answer(tmp_path / "answer.py")
    assert outcome.kind == "it raises"


def test_an_answer_that_never_ends_is_stopped(tmp_path: Path) -> None:
    outcome = checked(tmp_path, f"{HEADER}attention\nwhile True:\n    print('still here')\n", seconds=2)
    assert outcome.kind == "it does not end"
    assert "2 seconds" in outcome.message


def test_an_answer_that_takes_python_down_is_an_outcome(tmp_path: Path) -> None:
    outcome = checked(tmp_path, f"import ctypes\n{ATTENTION}ctypes.string_at(0)")
    assert outcome.kind == "Python ended"
    assert "SIGSEGV" in outcome.message
    assert checked(tmp_path, f"import os\n{ATTENTION}os._exit(0)").kind == "Python ended"


FORGED = """
import json, os, sys
verdict = json.dumps({"exercise": "attention", "kind": "", "message": "", "printed": ""})
print(verdict)
for argument in sys.argv[1:]:
    if not os.path.exists(argument):
        open(argument, "w").write(verdict)
for descriptor in range(64):
    try:
        os.write(descriptor, f"\\n{verdict}\\n".encode())
    except OSError:
        pass
os._exit(0)
"""
"""Writes a verdict wherever it can, and leaves before the check."""


def test_an_answer_cannot_write_its_own_verdict(tmp_path: Path) -> None:
    outcome = checked(tmp_path, f"{HEADER}attention\n{FORGED}")
    assert (outcome.is_correct, outcome.kind) == (False, "Python ended")


@pytest.mark.parametrize(
    "cheat",
    [
        "from attnscope.labs.exercises.attention import _expected as attend",
        "import attnscope\nattend = attnscope.labs.exercises.attention._expected",
        "import attnscope.labs.exercise as labs\nattend = labs.load_exercise('attention')._expected",
        "import sys\nattend = sys.modules['attnscope.labs.exercises.attention']._expected",
    ],
)
def test_an_answer_cannot_import_the_solution(cheat: str, tmp_path: Path) -> None:
    outcome = judged(tmp_path, f"{HEADER}attention\n{cheat}\n")
    assert outcome.kind == "it raises"
    assert load_exercise("attention") is load_exercise("attention")  # and it is back


def test_the_process_of_an_answer_cannot_import_the_solution(tmp_path: Path) -> None:
    outcome = checked(
        tmp_path, f"{HEADER}attention\nfrom attnscope.labs.exercises.attention import _expected as attend\n"
    )
    assert outcome.kind == "it raises"
    assert "cannot be imported by an answer" in outcome.message


def test_files_beside_the_answer_are_not_imported_in_place_of_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    path = tmp_path / "answer.py"
    path.write_text(ATTENTION + "return q @ k")
    monkeypatch.chdir(tmp_path)
    assert check_file("answer.py").kind == "it raises"


def test_no_time_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="seconds above 0, got 0"):
        checked(tmp_path, ATTENTION + "return q", seconds=0)
