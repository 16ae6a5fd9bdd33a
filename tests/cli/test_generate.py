"""`attnscope generate` on SmolLM2 and MiniLM; a tiny model in a process of its own where signals and pipes matter."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from attnscope import models
from tests.cli.running import assert_mistake, run_command
from tests.survey.survey_process import write_model

MODELS = Path(__file__).resolve().parents[2] / ".cache" / "models"
SMOLLM2, GGUF, MINILM = MODELS / "smollm2-135m", MODELS / "smollm2-135m.gguf", MODELS / "minilm-l6"
PROGRAM = (sys.executable, "-m", "attnscope.cli.main", "generate")
load_once = cache(models.load)


@pytest.fixture
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load a model when the first test asks for it, and keep it for the others."""
    monkeypatch.setattr(models, "load", lambda place, *, dtype, progress: load_once(place, dtype=dtype))


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is loaded at once and takes seconds for thousands of tokens."""
    return write_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=8192)


@pytest.mark.parametrize("model", [SMOLLM2, GGUF], ids=["folder", "gguf"])
def test_the_continuation_and_nothing_else_is_printed(model: Path, loaded_once: None) -> None:
    found = run_command("generate", model, "The capital of France is", "--max-new-tokens", "2")
    assert found == (0, " Paris.\n", "")


def test_a_prompt_can_be_piped_in_and_a_stop_string_ends(loaded_once: None) -> None:
    found = run_command("generate", SMOLLM2, "-", "--stop", ", 7", stdin=b"Count: 1, 2, 3,")
    assert found == (0, " 4, 5, 6\n", "")


def test_chat_goes_through_the_template_of_the_model(loaded_once: None) -> None:
    found = run_command("generate", SMOLLM2, "What is the capital of France?", "--chat", "--max-new-tokens", "12")
    assert found.code == 0
    assert "Paris" in found.output
    assert "im_" not in found.output


def test_a_seed_repeats_a_sampled_text(loaded_once: None) -> None:
    options = ("--temperature", "1.3", "--top-p", "0.95", "--max-new-tokens", "4")
    texts = [run_command("generate", SMOLLM2, "The sea", *options, "--seed", seed).output for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((MINILM, "x"), "is an encoder, which cannot generate text"),
        ((MODELS / "nowhere", "x"), "is neither a folder, nor a .gguf file, nor a name on the hub"),
        ((SMOLLM2, "x", "--top-p", "3"), "Sampling.top_p must be above 0 and at most 1, got 3.0"),
        ((SMOLLM2, "x", "--stop", ""), "stop strings must not be empty"),
        ((SMOLLM2, "x", "--system", "y"), "--system needs --chat"),
        (("a long prompt in the place of the model " * 20, SMOLLM2), "cannot be the place of a model"),
        ((SMOLLM2, "x", "--max-new-tokens", "-4"), "max_new_tokens must be at least 0, got -4"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    arguments: tuple[str | Path, ...], message: str, loaded_once: None
) -> None:
    assert_mistake(run_command("generate", *arguments), message)


def test_tokens_come_one_by_one_and_an_interrupt_ends_quietly(tiny_model: Path) -> None:
    program = [*PROGRAM, str(tiny_model), "rose", "--max-new-tokens", "8000"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        time.sleep(0.5)
        assert process.poll() is None, "the first character came while the rest was still being written"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert first
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_a_reader_who_has_seen_enough_ends_it_quietly(tiny_model: Path) -> None:
    program = f"{shlex.join([*PROGRAM, str(tiny_model)])} rose --max-new-tokens 8000 | head -c 5"
    done = subprocess.run(["bash", "-c", program], capture_output=True, timeout=120, check=False)
    assert len(done.stdout) == 5
    assert done.stderr == b""
