"""A small model and a text for surveys, and the command in a process of its own, which may be killed."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from attnscope.attention.rotary import Rotary
from attnscope.models import Decoder, DecoderConfig, save
from attnscope.models.text.character_tokenizer import CharacterTokenizer

ROOT = Path(__file__).resolve().parents[2]
SMOLLM2, MINILM = (ROOT / ".cache" / "models" / name for name in ("smollm2-135m", "minilm-l6"))
SHARED = ROOT.parent / "shared" / "data"
TIMEOUT_SECONDS = 900.0  # seconds for one run, the longest of which takes four minutes on an idle machine
WORDS = ["rose", "is", "a", "garden", "in", "the", "of", "light,", "and", "nobody", "sees", "it."]
SMALL: dict[str, Any] = {"max_length": 64, "batch_tokens": 512, "shard_bytes": 2000}
OPTIONS = ("--max-length", "64", "--batch-tokens", "512", "--shard-bytes", "2000", "--threads", "1")
ACTOR = b"ray::SurveyActor"


def write_model(folder: Path, **changes: Any) -> Path:
    """A decoder of two layers with random weights, each character a token."""
    tokenizer = CharacterTokenizer.from_text("".join(WORDS) + " \n=")
    biases = dict.fromkeys(("qkv_bias", "output_bias", "feed_forward_bias"), False)
    shape: dict[str, Any] = {"hidden_size": 32, "num_layers": 2, "num_heads": 4}
    shape |= {"intermediate_size": 48, "max_position_embeddings": 64, **changes}
    positions = Rotary(dim=shape["hidden_size"] // shape["num_heads"], layout="half")
    torch.manual_seed(7)
    model = Decoder(
        DecoderConfig(
            vocab_size=tokenizer.vocab_size, position_encoding=positions, norm="rms", activation="silu", gated=True,
            **shape, **biases,
        )
    )  # fmt: skip
    with torch.no_grad():  # as they are drawn, heads look everywhere alike
        for block in model.blocks:
            for name, parameter in block.named_parameters():
                if name.endswith("weight") and parameter.dim() == 2:
                    parameter.mul_(10)
    save(model, folder)
    tokenizer.save(folder)
    return folder


def write_text(path: Path, size: int, seed: int = 0) -> Path:
    """Lines of words, about `size` bytes."""
    dice, lines, length = random.Random(seed), list[str](), 0
    while length < size:
        lines.append(" ".join(dice.choice(WORDS) for _ in range(dice.randint(1, 14))))
        length += len(lines[-1]) + 1
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """All that a survey has written but its log and its lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("log.json", ".lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def count_partials(folder: Path) -> int:
    """How many shards have been read."""
    return len(list((folder / "partials").glob("*.partial")))


class Command:
    """`attnscope survey run` in a process of its own, with what it writes in files beside its folder."""

    def __init__(self, *arguments: str | Path, out: Path):
        self.out, self.log = out, out.with_suffix(".log")
        command = [sys.executable, "-m", "attnscope.cli.main", "survey", "run", *map(str, arguments), "--out", str(out)]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever the test thought."""
        self.process.kill()
        self.process.wait()

    def printed(self) -> str:
        """All output so far."""
        return self.log.read_text(encoding="utf-8")

    def descendants(self) -> list[int]:
        """The processes that came of this one and still run."""
        return descendants(self.process.pid)

    def actors(self) -> list[int]:
        """The processes of the workers."""
        return [pid for pid in self.descendants() if command_line(pid).startswith(ACTOR)]

    def reached(self, is_so: Callable[[], Any]) -> None:
        """Wait until something is so, while the command runs."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not is_so():
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.printed()}"
            assert time.monotonic() < deadline, f"waited for {TIMEOUT_SECONDS:.0f} s:\n{self.printed()}"
            time.sleep(0.005)

    def killed(self) -> list[int]:
        """Kill it, and not the processes it has started: these are returned."""
        started = self.descendants()
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return started

    def ended(self) -> int:
        """Wait for the end; the exit code."""
        try:
            return self.process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"after {TIMEOUT_SECONDS:.0f} s it still runs:\n{self.printed()}") from None

    def succeeded(self) -> str:
        """Wait for a good end; all output."""
        code = self.ended()
        assert code == 0, f"ended with {code}:\n{self.printed()}"
        return self.printed()


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    found = list[int]()
    for thread in _listed(Path(f"/proc/{pid}/task")):
        try:
            children = (thread / "children").read_text(encoding="utf-8").split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, children):
            found += [child, *descendants(child)]
    return found


def command_line(pid: int) -> bytes:
    """As a process shows it; nothing, once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def listening_addresses(pids: Iterable[int]) -> set[str]:
    """The IP addresses at which processes accept TCP connections."""
    sockets = set[str]()
    for pid in pids:
        for entry in _listed(Path(f"/proc/{pid}/fd")):
            with suppress(OSError):
                sockets.add(os.readlink(entry))
    found = set[str]()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/net/{table}").read_text(encoding="utf-8").splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                words = [local.partition(":")[0][start : start + 8] for start in range(0, len(local) - 5, 8)]
                packed = b"".join(bytes.fromhex(word)[::-1] for word in words)
                found.add(socket.inet_ntop(family, packed))
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie, which has ended and waits to be counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
