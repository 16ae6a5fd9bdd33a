"""What may stand next on a command line."""

import pytest

from attnscope.bench import NAMES as BENCHMARKS
from attnscope.cli.candidates import candidates, names_in
from attnscope.cli.main import build_parser
from attnscope.labs import NAMES as LABS
from attnscope.labs.exercises import NAMES as EXERCISES


def offered(*words: str) -> list[str]:
    return list(candidates(build_parser(), words))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("su",), ["survey"]),
        (("",), ["look", "explore", "heads", "survey", "generate", "train", "lab", "doctor", "bench", "completion"]),
        (("--v",), ["--version"]),
        (("survey", ""), ["show", "diff"]),
        (("survey", "s"), ["show"]),
        (("survey", "show", "--he"), ["--help", "--head"]),
        (("survey", "a-model", ""), []),
        (("lab", "ch"), ["check"]),
        (("train", "re"), ["reversal"]),
        (("train", "reversal", ""), []),
        (("train", "reversal", "--b"), ["--batch", "--bf16"]),
        (("bench", "attention", "--size", ""), ["small", "full"]),
        (("bench", "attention", "--size", "full", "--si"), []),
        (("generate", "m", "--stop", "a", "--sto"), ["--stop"]),
        (("generate", "--dtype", "bf", "--dtyp"), []),
        (("generate", "--dtype", "b"), ["bfloat16"]),
        (("generate", "--dtype=b"), ["--dtype=bfloat16"]),
        (("generate", "--dtype", "=", "b"), ["bfloat16"]),
        (("generate", "--dtype", "="), ["auto", "float32", "bfloat16", "float16"]),
        (("look", "--tokens", "su"), []),
        (("look", ""), []),
        (("nothing", "su"), []),
        ((), ["look", "explore", "heads", "survey", "generate", "train", "lab", "doctor", "bench", "completion"]),
    ],
)
def test_a_word_is_offered_where_it_may_stand(words: tuple[str, ...], expected: list[str]) -> None:
    assert offered(*words) == expected


def test_names_are_those_of_labs_exercises_and_benchmarks() -> None:
    assert offered("lab", "run", "") == list(LABS)
    assert offered("lab", "notebook", "two") == ["two_relations"]
    assert offered("lab", "exercise", "") == list(EXERCISES)
    assert offered("bench", "") == list(BENCHMARKS)
    with pytest.raises(AssertionError, match="has no NOTHING"):
        names_in("version.py", "NOTHING")


def test_words_come_with_what_they_mean() -> None:
    found = candidates(build_parser(), ["train"])
    assert found == {"train": "Train a model"}
    assert candidates(build_parser(), ["look", "--tok"]) == {
        "--tokens": "read no more than the first N tokens of the text"
    }
