"""Where nothing listens Ray is not started, and where it starts slowly it is not given up."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnscope.errors import SettingError
from attnscope.survey import Workers
from attnscope.survey.execution import ray_cluster
from attnscope.survey.execution.ray_cluster import (
    check_address,
    connect_to_ray,
    end_processes,
    report_waiting,
    start_ray,
)

SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup"


class SlowRay:
    """Ray on a busy machine: its first starts fail."""

    def __init__(self, failures: list[str]) -> None:
        self.failures, self.options, self.shutdowns = failures, list[dict[str, Any]](), 0

    def init(self, **options: Any) -> None:
        """Fail as often as was agreed."""
        self.options.append({**options, "loopback": os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")})
        if self.failures:
            raise RuntimeError(self.failures.pop(0))

    def shutdown(self) -> None:
        """Count."""
        self.shutdowns += 1


@pytest.fixture
def free_port() -> int:
    """A port at which nothing listens."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port at which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(ray_cluster, "CONNECT_DELAYS", (0.0, 0.0))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "localhost:{}"])
def test_an_address_at_which_nothing_listens_is_refused_before_ray_is_asked(free_port: int, form: str) -> None:
    address, ray = form.format(free_port), SlowRay([])
    with pytest.raises(SettingError, match=rf"cannot connect to Ray at {address}: .*refused; start a cluster there"):
        start_ray(ray, Workers(address=address))
    assert ray.options == []


def test_the_address_in_the_environment_is_checked_too(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port}")
    with pytest.raises(SettingError, match=rf"cannot connect to Ray at 127.0.0.1:{free_port}"):
        check_address("auto")


def test_a_survey_with_such_an_address_ends_in_one_line(free_port: int) -> None:
    with pytest.raises(SettingError) as caught, connect_to_ray(Workers(address=f"127.0.0.1:{free_port}")):
        pass
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("address", ["", ":", "host", "host:", "host:port", "host:99999999", "ray://", "[::1", ":6379"])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(SettingError, match="expected the address of a Ray cluster as HOST:PORT or auto"):
        check_address(address)


def test_where_something_listens_ray_is_asked_once(taken_port: int) -> None:
    ray = SlowRay([])
    start_ray(ray, Workers(address=f"127.0.0.1:{taken_port}"))
    assert [options["address"] for options in ray.options] == [f"127.0.0.1:{taken_port}"]
    assert ray.options[0]["loopback"] is None
    ray = SlowRay(["GCS timed out\nfor a long time"])
    with pytest.raises(SettingError, match=r"cannot connect to Ray at .*: GCS timed out$"):
        start_ray(ray, Workers(address=f"127.0.0.1:{taken_port}"))


def test_a_slow_start_is_tried_again_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = SlowRay([SLOW] * 9)
    start_ray(ray, Workers(count=2, threads=1))
    assert len(ray.options) == 10
    assert ray.shutdowns == 9
    assert {options["loopback"] for options in ray.options} == {"0"}
    monkeypatch.setattr(ray_cluster, "START_SECONDS", 0.0)
    with pytest.raises(SettingError, match="cannot start Ray: The current node timed out"):
        start_ray(SlowRay([SLOW]), Workers(count=2, threads=1))


def test_other_errors_are_not_tried_again() -> None:
    ray = SlowRay(["no room for the object store\nand a page more", ""])
    with pytest.raises(SettingError, match=r"cannot start Ray: no room for the object store$"):
        start_ray(ray, Workers(count=2, threads=1))
    assert len(ray.options) == 1


def test_handles_of_killed_processes_are_deleted_without_a_warning() -> None:
    class LeakyRay(SlowRay):
        """Keeps the handle of a process that was killed, in a cycle, as a node of Ray does."""

        def init(self, **options: Any) -> None:
            if self.failures:
                handle = subprocess.Popen(["sleep", "60"])
                cycle: list[Any] = [handle]
                cycle.append(cycle)
                end_processes([handle.pid])
            super().init(**options)

    gc.collect()
    start_ray(ray := LeakyRay([SLOW]), Workers(count=2, threads=1))
    assert len(ray.options) == 2
    gc.collect()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ray drops its Popen objects
def test_a_start_that_fails_leaves_no_processes_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[set[int]]()
    monkeypatch.setattr(ray_cluster, "OBJECT_STORE_BYTES", 1)  # Ray notices it after its first processes run
    monkeypatch.setattr(ray_cluster, "end_processes", lambda pids: (started.append(set(pids)), end_processes(pids)))
    with pytest.raises(SettingError, match="cannot start Ray: "), connect_to_ray(Workers(count=2, threads=1)):
        pass
    assert started[0]  # without this, there would be nothing to leave behind
    assert not [pid for pid in started[0] if Path("/proc", str(pid)).exists()]
    assert ray_cluster.ray_processes() == set()


def test_a_long_wait_is_reported_where_standard_error_was(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_cluster, "REPORT_SECONDS", 0.01)
    lines = list[str]()
    with ray_cluster.suppress_stderr() as stderr, report_waiting("start Ray", 0.0, stderr):
        while not lines:
            lines += capfd.readouterr().err.splitlines()
    assert lines[0].startswith("waiting to start Ray for ")
    assert lines[0].endswith(" seconds")
