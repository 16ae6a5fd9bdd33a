"""`attnscope generate` on SmolLM2 and MiniLM; in a process of its own where signals, pipes and exit codes matter."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.running import assert_mistake, run_command

MODELS = Path(__file__).resolve().parents[2] / ".cache" / "models"
SMOLLM2, GGUF, MINILM = MODELS / "smollm2-135m", MODELS / "smollm2-135m.gguf", MODELS / "minilm-l6"


PROGRAM = (sys.executable, "-m", "attnscope.cli.main", "generate")


def test_a_process_prints_the_continuation_and_nothing_else() -> None:
    command = [*PROGRAM, str(SMOLLM2), "The capital of France is", "--max-new-tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, " Paris.\n", "")


def test_a_gguf_file_gives_the_same_continuation() -> None:
    found = run_command("generate", GGUF, "The capital of France is", "--max-new-tokens", "2")
    assert found == (0, " Paris.\n", "")


def test_a_prompt_can_be_piped_in_and_a_stop_string_ends() -> None:
    found = run_command("generate", SMOLLM2, "-", "--stop", ", 7", stdin=b"Count: 1, 2, 3,")
    assert found == (0, " 4, 5, 6\n", "")


def test_chat_goes_through_the_template_of_the_model() -> None:
    found = run_command("generate", SMOLLM2, "What is the capital of France?", "--chat", "--max-new-tokens", "12")
    assert found.code == 0
    assert "Paris" in found.output
    assert "im_" not in found.output


def test_a_seed_repeats_a_sampled_text() -> None:
    options = ("--temperature", "1.3", "--top-p", "0.95", "--max-new-tokens", "8")
    texts = [run_command("generate", SMOLLM2, "The sea", *options, "--seed", seed).output for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((MINILM, "x"), "is an encoder, which cannot generate text"),
        ((MODELS / "nowhere", "x"), "is neither a folder, nor a .gguf file, nor a name on the hub"),
        ((SMOLLM2, "x", "--top-p", "3"), "Sampling.top_p must be above 0 and at most 1, but is 3.0"),
        ((SMOLLM2, "x", "--stop", ""), "a stop string needs at least one character"),
        ((SMOLLM2, "x", "--system", "y"), "--system needs --chat"),
        (("a long prompt in the place of the model " * 20, SMOLLM2), "cannot be the place of a model"),
        ((SMOLLM2, "x", "--max-new-tokens", "-4"), "max_new_tokens must be at least 0, but is -4"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(arguments: tuple[str | Path, ...], message: str) -> None:
    assert_mistake(run_command("generate", *arguments), message)


def test_tokens_come_one_by_one_and_an_interrupt_ends_quietly() -> None:
    program = [*PROGRAM, str(SMOLLM2), "Once", "--max-new-tokens", "4000"]
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


def test_a_reader_who_has_seen_enough_ends_it_quietly() -> None:
    program = f"'{sys.executable}' -m attnscope.cli.main generate '{SMOLLM2}' Once --max-new-tokens 4000 | head -c 5"
    done = subprocess.run(["bash", "-c", program], capture_output=True, timeout=120, check=False)
    assert len(done.stdout) == 5
    assert done.stderr == b""
