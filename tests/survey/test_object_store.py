"""A survey in an object store: a real server of S3, real processes, and a kill in the middle."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.cli.main import main
from attnscope.survey import Workers, run_survey
from attnscope.survey import run as runs
from tests.survey.s3_server import serve_s3
from tests.survey.survey_process import OPTIONS, SMALL, contents, write_model, write_text

SHARDS = 16
KILL_AFTER = 2  # partial results
GROUP_SIZE = 3  # so that two levels of groups are merged
RUN = f"""
from attnscope.cli.main import main
from attnscope.survey import run
run.GROUP_SIZE = {GROUP_SIZE}
raise SystemExit(main())
"""
TIMEOUT_SECONDS = 300.0
READ = """
import sys
from attnscope.cli.main import main
from attnscope.errors import SettingError
from attnscope.explorer.library.survey import SurveyView, is_survey
from attnscope.stores import lock
from attnscope.survey import open_survey
from attnscope.stores.paths import to_path

url, local = sys.argv[1:]
main(["survey", "show", url])
main(["survey", "diff", url, local, "--csv", "-"])
print(is_survey(url), is_survey(url + "/partials"), SurveyView(open_survey(url), "first").about()["corpus"]["tokens"])

lock.HEARTBEAT_SECONDS = lock.POLL_SECONDS = 0.02
with lock.lock_any_folder(to_path(url)):
    print([path.name for path in to_path(url).glob(".lock*")])
    try:
        with lock.lock_any_folder(to_path(url)):
            print("locked twice")
    except SettingError as error:
        print(error)
print([path.name for path in to_path(url).glob(".lock*")])

path = to_path(url) / "once"
path.create(b"123")
try:
    path.create(b"34")
except FileExistsError:
    print("kept", path.read_bytes(), path.read_bytes(max_bytes=2))
main(["survey", "show", "s3://nowhere/first"])
try:
    to_path("s3://nowhere/first").write_bytes(b"")
except OSError as error:
    print(error)
"""


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_survey_in_s3_survives_a_kill_and_has_the_bytes_of_a_local_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "GROUP_SIZE", GROUP_SIZE)
    corpus = write_model(tmp_path / "model"), write_text(tmp_path / "text.txt", SHARDS * SMALL["shard_bytes"])
    local = tmp_path / "local"
    with serve_s3() as server:
        url = server.url("out")
        command = ("-c", RUN, "survey", "run", *corpus, *OPTIONS, "--out", url)
        with server.start(*command) as killed:
            try:
                wait_until(
                    lambda: killed.poll() is not None or f"{KILL_AFTER - 1:08}.partial" in server.partials("out")
                )
            finally:
                killed.kill()
        before, names = server.partials("out"), server.names("out")
        assert KILL_AFTER <= len(before) < SHARDS, killed.communicate()[0]
        assert ("manifest.json" in names, ".lock.00000001.json" in names) == (False, True)

        assert f"resuming after {len(before)} of {SHARDS} shards" in server.run(*command)
        run_survey(*corpus, local, workers=Workers(threads=1), **SMALL)
        assert server.contents("out") == contents(local)
        assert "00000000-00000008.partial" in server.partials("out")
        assert not [name for name in server.names("out") if name.startswith(".")]
        (run,) = json.loads(server.read("out/log.json"))["runs"]  # a killed run cannot write its entry
        assert run["shards"] == SHARDS - len(before)

        found = server.run("-c", READ, url, local)
    capsys.readouterr()
    main(["survey", "show", str(local)])
    main(["survey", "diff", str(local), str(local), "--csv", "-"])
    assert found.startswith(capsys.readouterr().out)
    tokens = json.loads((local / "manifest.json").read_bytes())["corpus"]["tokens"]
    lines = found.splitlines()
    opened, locked, in_use, unlocked, kept, *_, missing = lines[lines.index(f"True False {tokens}") :]
    assert (opened, locked, unlocked) == (f"True False {tokens}", "['.lock.00000001.json']", "[]")
    assert in_use.startswith(f"{url} is in use by process ")
    assert kept == "kept b'123' b'12'"
    assert missing == "The specified bucket does not exist"
