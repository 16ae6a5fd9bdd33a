"""A machine of a cluster that does not see the corpus ends the survey; it does not take shards and return nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from attnscope.survey import Workers, run_survey
from attnscope.survey.execution.ray_cluster import ENVIRONMENT
from tests.survey.survey_process import OPTIONS, SMALL, Command, contents, count_partials, write_model, write_text

SHARDS = 30
CAN_UNSHARE = (
    shutil.which("unshare") is not None
    and not subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(not CAN_UNSHARE, reason="this user may not hide a folder from a process"),
]


class Node:
    """A Ray node in a process of its own, from which a folder may be hidden."""

    def __init__(self, *options: str, hidden: Path | None = None):
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1", *options]
        if hidden is not None:
            hide = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", hide, str(hidden), *command]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | ENVIRONMENT
        )

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()  # its processes end with it
        self.process.wait()


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
    ray, address = pytest.importorskip("ray"), f"127.0.0.1:{free_port()}"
    assert ray is not None
    with ExitStack() as stack:
        head = ("--head", "--port", address.partition(":")[2], "--include-dashboard", "false")
        stack.enter_context(Node(*head, "--node-ip-address", "127.0.0.1"))
        stack.enter_context(Node("--address", address, hidden=corpus))
        yield address


def test_a_node_without_the_corpus_ends_the_survey_which_resumes_elsewhere(
    cluster: str, corpus: Path, tmp_path: Path
) -> None:
    model, out = write_model(tmp_path / "model"), tmp_path / "out"
    with Command(model, corpus, *OPTIONS, "--workers", "2", "--ray", cluster, out=out) as run:
        assert run.ended() == 2
    last = run.told().splitlines()[-1]
    assert "could not read shard" in last
    assert ".txt cannot be read: No such file or directory; fix this" in last
    assert not (out / "manifest.json").exists()
    assert count_partials(out) < SHARDS
    run_survey(model, corpus, out, workers=Workers(threads=1), **SMALL)
    run_survey(model, corpus, tmp_path / "whole", workers=Workers(threads=1), **SMALL)
    assert contents(out) == contents(tmp_path / "whole")
