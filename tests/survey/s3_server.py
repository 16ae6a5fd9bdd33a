"""A server of S3 and the commands of surveys, each in a process of its own with the packages in .venv/s3."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.survey.survey_process import ROOT

PACKAGES = ROOT / ".venv" / "s3"
SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
HEADERS = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=nobody/20260101/us-east-1/s3/aws4_request",  # which is not checked
    "Content-Type": "application/octet-stream",
}


class Server:
    """A running server, with one bucket."""

    def __init__(self, endpoint: str, bucket: str = "bucket") -> None:
        self.endpoint, self.bucket = endpoint, bucket
        self._request(method="PUT", content=b"")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that uses the server."""
        known = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return known | {
            "PYTHONPATH": os.pathsep.join([str(PACKAGES), str(ROOT / "src"), str(ROOT)]),
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "OMP_NUM_THREADS": "1",
        }

    def url(self, name: str) -> str:
        """The address of a folder in the bucket."""
        return f"s3://{self.bucket}/{name}"

    def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder and below."""
        answer = ElementTree.fromstring(self._request(f"?list-type=2&max-keys=1000&prefix={folder}/"))
        keys = [element.text or "" for element in answer.iter() if element.tag.endswith("}Key")]
        return [key.removeprefix(f"{folder}/") for key in keys]

    def partials(self, folder: str) -> list[str]:
        """The names of the partial results of a survey."""
        names = self.names(f"{folder}/partials")
        return [name for name in names if name.endswith(".partial")]

    def contents(self, folder: str) -> dict[str, bytes]:
        """All that a survey has written, except for its log and its lock."""
        return {
            name: self.read(f"{folder}/{name}")
            for name in self.names(folder)
            if name != "log.json" and not name.startswith(".lock.")
        }

    def read(self, name: str) -> bytes:
        """The content of an object."""
        return self._request(f"/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Write an object."""
        self._request(f"/{name}", method="PUT", content=content)

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        """Start Python with some arguments."""
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *command: str | Path) -> str:
        """Run Python with some arguments to its end, and return what it printed."""
        with self.start(*command) as process:
            try:
                printed, _ = process.communicate(timeout=300)
            finally:
                process.kill()
        assert process.returncode == 0, printed
        return printed

    def _request(self, path: str = "", *, method: str = "GET", content: bytes | None = None) -> bytes:
        address = f"{self.endpoint}/{self.bucket}{path}"
        request = urllib.request.Request(address, content, HEADERS, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()


@contextmanager
def serve_s3() -> Iterator[Server]:
    """Run a server on a free port of this machine until the end of the context."""
    assert PACKAGES.is_dir(), f"{PACKAGES} not found: run scripts/setup"
    command, environment = [sys.executable, "-c", SERVE], os.environ | {"PYTHONPATH": str(PACKAGES)}
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            host, port = process.stdout.readline().split()
            yield Server(f"http://{host}:{port}")
        finally:
            process.kill()
