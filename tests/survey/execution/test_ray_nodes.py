"""A machine of a cluster that does not see the corpus ends the survey with its name, and the survey can be resumed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from attnscope.survey import Workers, run_survey
from attnscope.survey.execution.ray_cluster import ENVIRONMENT
from tests.survey.survey_process import (
    OPTIONS,
    SMALL,
    TIMEOUT_SECONDS,
    Command,
    contents,
    count_partials,
    descendants,
    write_model,
    write_text,
)

SHARDS = 30
OTHER_MACHINE = "machine-without-corpus"
UNSHARE = ("unshare", "--mount", "--uts")
CAN_UNSHARE = (
    shutil.which("unshare") is not None
    and not subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode
)
HIDE = 'hostname "$0" && mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
WAIT = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
while ray.cluster_resources().get("CPU", 0) < 2:
    time.sleep(0.2)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(not CAN_UNSHARE, reason="this user may not hide a folder from a process"),
]


class Node:
    """A Ray node of one CPU in a process of its own; a second machine has another name, and does not see a folder."""

    def __init__(self, *options: str, hidden: Path | None = None) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
        command += ["--node-ip-address", "127.0.0.1", "--dashboard-agent-listen-port", str(free_port()), *options]
        if hidden is not None:
            command = [*UNSHARE, "sh", "-c", HIDE, OTHER_MACHINE, str(hidden), *command]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | ENVIRONMENT
        )

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        started = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(SHARDS):
        write_text(folder / f"{number:02}.txt", SMALL["shard_bytes"], seed=number)
    return folder


@pytest.fixture
def cluster(corpus: Path) -> Iterator[str]:
    """The address of a cluster of two nodes, of which the second sees an empty folder instead of the corpus."""
    pytest.importorskip("ray")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:  # on a busy machine, Ray gives up a start now and then
        with ExitStack() as stack:
            address = f"127.0.0.1:{free_port()}"
            head = ("--head", "--port", address.partition(":")[2], "--include-dashboard", "false")
            nodes = [stack.enter_context(Node(*head)), stack.enter_context(Node("--address", address, hidden=corpus))]
            if are_up(address, nodes, deadline):
                yield address
                return
    pytest.fail(f"Ray did not start two nodes within {TIMEOUT_SECONDS:.0f} seconds")


def are_up(address: str, nodes: list[Node], deadline: float) -> bool:
    """Wait until Ray has the CPUs of both nodes; False if one of them ends before."""
    with subprocess.Popen([sys.executable, "-c", WAIT, address], env=os.environ | ENVIRONMENT) as waiting:
        while waiting.poll() is None:
            if time.monotonic() > deadline or any(node.process.poll() is not None for node in nodes):
                waiting.kill()
            time.sleep(0.1)
    return waiting.returncode == 0


def test_a_node_without_the_corpus_ends_the_survey_with_its_name_and_the_survey_resumes_elsewhere(
    cluster: str, corpus: Path, tmp_path: Path
) -> None:
    model, out = write_model(tmp_path / "model"), tmp_path / "out"
    with Command(model, corpus, *OPTIONS, "--workers", "2", "--ray", cluster, out=out) as run:
        assert run.ended() == 2
    last = run.printed().splitlines()[-1]
    assert f"the machine {OTHER_MACHINE} could not read shard" in last
    assert "run the same command again to resume" in last
    assert not (out / "manifest.json").exists()
    assert count_partials(out) < SHARDS
    run_survey(model, corpus, out, workers=Workers(threads=1), **SMALL)
    run_survey(model, corpus, tmp_path / "whole", workers=Workers(threads=1), **SMALL)
    assert contents(out) == contents(tmp_path / "whole")
