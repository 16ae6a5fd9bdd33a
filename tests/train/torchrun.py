"""Small runs in real processes: started by torchrun, or forked from a process that has imported torch."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnscope.attention.rotary import Rotary
from attnscope.cli.main import main
from attnscope.models import Decoder, DecoderConfig
from attnscope.train import Batch, Data, Dataset, Recipe, Settings, train
from attnscope.train.checkpoint import CheckpointManager
from attnscope.train.data.corpus import TextSources
from attnscope.train.parallel import Ranks
from attnscope.train.recipes import text_recipe, train_character_tokenizer
from tests.train.ranks import find_free_port, forkserver, prepare_process, torchrun_environment

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT = 300.0  # seconds for one run: other tests share the machine
STEPS, LENGTH = 12, 37  # a length that neither two nor four ranks can divide evenly
PLAIN: dict[str, Any] = {
    "steps": STEPS, "batch_size": 8, "sequence_length": LENGTH, "learning_rate": 3e-3, "warmup_steps": 5,
    "max_grad_norm": 0.9, "log_every": 1, "evaluate_every": 0, "evaluate_sequences": 16, "checkpoint_every": 0,
    "keep_checkpoints": 1000,
}  # fmt: skip


def write_text(folder: Path) -> Path:
    """A folder of many short documents, so that almost every row of a batch holds several of them."""
    dice = random.Random(0)
    words = ["rose", "is", "a", "garden", "in", "the", "of", "light,", "and", "nobody", "sees", "it."]
    text = folder / "text"
    text.mkdir(parents=True, exist_ok=True)
    for number in range(200):
        content = " ".join(dice.choice(words) for _ in range(dice.randint(1, 14)))
        (text / f"{number:03}.txt").write_text(content + "\n", encoding="utf-8")
    return text


def small(kind: str, text: Path, **changes: Any) -> Recipe:
    """A decoder of two layers: 'rotary' has fewer key heads than heads and gates, 'learned' has biases and neither."""

    def model(data: Data, settings: Settings) -> Decoder:
        assert data.tokenizer is not None
        vocab_size = data.tokenizer.vocab_size
        shape: dict[str, Any] = {"vocab_size": vocab_size, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
        if kind == "learned":
            return Decoder(
                DecoderConfig(**shape, intermediate_size=64, max_position_embeddings=64, tie_word_embeddings=False)
            )
        biases = dict.fromkeys(("qkv_bias", "output_bias", "feed_forward_bias"), False)
        shape |= {"num_kv_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}
        shape |= {"position_encoding": Rotary(dim=8, layout="half")}
        return Decoder(DecoderConfig(**shape, norm="rms", activation="silu", gated=True, **biases))

    settings = Settings(**PLAIN | changes)
    return text_recipe(kind, TextSources([text]), train_character_tokenizer, model, settings)


class _CallingBatches:
    """Batches that report the number of a step when its rows are read."""

    def __init__(self, batches: Dataset, callback: Callable[[int], None]):
        self.batches, self.sequence_length, self.callback = batches, batches.sequence_length, callback

    def get_batch(self, samples: Any) -> Batch:
        self.callback(samples[0] // PLAIN["batch_size"])
        return self.batches.get_batch(samples)


def call_before_steps(recipe: Recipe, callback: Callable[[int], None]) -> Recipe:
    """The same recipe, which calls `callback(steps so far)` before each step."""

    def data(folder: Path, settings: Settings) -> Data:
        made = recipe.data(folder, settings)
        return made._replace(training=_CallingBatches(made.training, callback))

    return replace(recipe, data=data)


def train_small(kind: str, text: Path, folder: Path, changes: dict[str, Any], stop_after: int = 0) -> None:
    """Train a small recipe on the ranks of this environment; SIGINT stops it after this step, if it is not 0."""

    def interrupt(step: int) -> None:
        if step + 1 == stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    train(call_before_steps(small(kind, text, **changes), interrupt), folder, progress=False)


def train_by_command(*arguments: str) -> None:
    """`attnscope train` on the ranks of this environment."""
    assert main(["train", *arguments]) == 0


def open_checkpoints(
    folder: Path, ranks: Ranks, *, keep: int = 9, report: Callable[[str], object] = print
) -> CheckpointManager:
    """The checkpoints in the folder of a run, outside of the loop."""
    described = folder / "run.json"
    run_id = json.loads(described.read_text(encoding="utf-8"))["id"] if described.exists() else ""
    return CheckpointManager(folder / "checkpoints", ranks, keep=keep, run_id=run_id, report=report)


def curve(folder: Path, name: str = "loss") -> dict[int, Any]:
    """What a run has written under a name, by steps; no step may occur twice."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [(line["step"], line[name]) for line in lines if name in line]
    assert len(dict(found)) == len(found), f"steps occur twice in {folder}: {[step for step, _ in found]}"
    return dict(found)


class Forked:
    """Ranks that train one small recipe, each a process of its own."""

    def __init__(self, ranks: int, kind: str, text: Path, folder: Path, **changes: Any):
        port = find_free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self.logs = [folder / f"rank-{rank}.log" for rank in range(ranks)]
        work = (kind, text, folder, changes)
        self.processes = [
            forkserver.Process(target=_run, args=(work, rank, ranks, port, self.logs[rank])) for rank in range(ranks)
        ]
        for process in self.processes:
            process.start()

    def ended(self) -> list[int]:
        """Wait for all ranks; their exit codes."""
        deadline = time.monotonic() + TIMEOUT
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        self.kill()
        if None in codes:
            raise TimeoutError(f"after {TIMEOUT:.0f} s ranks ended with {codes}:\n{self.printed()}")
        return [code for code in codes if code is not None]

    def succeeded(self) -> None:
        """Wait for all ranks, none of which may fail."""
        codes = self.ended()
        assert set(codes) == {0}, f"ranks ended with {codes}:\n{self.printed()}"

    def killed_when(self, is_so: Callable[[], bool], ranks: Sequence[int] | None = None) -> None:
        """Wait until something is so, and kill these ranks, or all, at that very moment."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            codes = {process.exitcode for process in self.processes}
            if is_so():
                break
            assert codes == {None}, f"ranks ended with {codes}:\n{self.printed()}"
            assert time.monotonic() < deadline, f"waited for {TIMEOUT:.0f} s:\n{self.printed()}"
            time.sleep(0.0005)
        for rank in range(len(self.processes)) if ranks is None else ranks:
            self.processes[rank].kill()
        self.ended()

    def kill(self) -> None:
        """End what still runs, at once (SIGKILL)."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def printed(self) -> str:
        """What the ranks have written to their standard error."""
        return "\n".join(log.read_text(encoding="utf-8") for log in self.logs if log.exists())


def _run(work: tuple[str, Path, Path, dict[str, Any]], rank: int, ranks: int, port: int, log: Path) -> None:
    os.environ.update(torchrun_environment(rank, ranks, port))
    prepare_process()
    kind, text, folder, changes = work
    with log.open("w", encoding="utf-8", buffering=1) as sys.stderr, warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            train(small(kind, text, **changes), folder)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            raise


class Torchrun:
    """`torchrun -m attnscope.train`, or without ranks the same command in one process, in a process of its own."""

    def __init__(self, folder: Path, *arguments: str, ranks: int = 0, restarts: int = 0):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.log = folder, folder / "output.log"
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
        command = [*(["-m", *launcher] if ranks else []), "-m", "attnscope.train", *arguments, "--out", str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with self.log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder
            )

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever the test thought."""
        workers = self.workers()
        self.process.kill()
        self.process.wait()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def workers(self) -> list[int]:
        """The processes of the ranks, by rank."""
        try:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="utf-8")
            ranks = {pid: _environment(int(pid)).get("RANK") for pid in children.split()}
        except (FileNotFoundError, ProcessLookupError):
            return []
        return [int(pid) for pid in sorted(ranks, key=lambda pid: ranks[pid] or "") if ranks[pid] is not None]

    def step(self) -> int:
        """The last step that was written down."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return json.loads(lines[-1])["step"] if lines and lines[-1].endswith("}") else 0

    def reached(self, is_so: Callable[[], Any]) -> None:
        """Wait until something is so, while the command runs."""
        deadline = time.monotonic() + TIMEOUT
        while not is_so():
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.printed()}"
            assert time.monotonic() < deadline, f"waited for {TIMEOUT:.0f} s:\n{self.printed()}"
            time.sleep(0.002)

    def ended(self) -> int:
        """Wait for the end; the exit code."""
        try:
            return self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"after {TIMEOUT:.0f} s it still runs:\n{self.printed()}") from None

    def succeeded(self) -> None:
        """Wait for a good end."""
        code = self.ended()
        assert code == 0, f"ended with {code}:\n{self.printed()}"

    def printed(self) -> str:
        """All output so far."""
        return self.log.read_text(encoding="utf-8")


def _environment(pid: int) -> dict[str, str]:
    content = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    return dict(entry.split("=", 1) for entry in content.split("\0") if "=" in entry)
