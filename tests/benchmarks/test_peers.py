"""The benchmark of peers measures real processes, keeps out of our environment, and says where somebody stops."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from attnscope.bench import NAMES, run
from attnscope.bench.report import write
from attnscope.errors import AttnScopeError, SettingError
from benchmarks import peers
from benchmarks.peers import browser, costs, pages
from benchmarks.peers.__main__ import main
from benchmarks.peers.capped_process import Outcome, run_capped
from benchmarks.peers.environments import cache_folder, python_with, versions_in
from benchmarks.peers.libraries import ANALYSES, ATTNSCOPE, METHODS, PAGES, PLAIN, RECORD, TRANSFORMERS, Library, Method
from benchmarks.peers.saved_points import NOT_MEASURED, SavedPoints
from tests.explorer.browser import needs_chromium

ROOM = 8e9
HUNDREDTH = 0.01


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wheel(folder: Path, name: str, version: str) -> Path:
    """A package with one line of code, as a file that pip can install without a network."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{about}/RECORD", "".join(f"{file},,\n" for file in [*files, f"{about}/RECORD"]))
    return path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> costs.Bench:
    """Two layers of random weights, and sixty-four tokens."""
    place = tmp_path_factory.mktemp("bench")
    model = peers.find_model((), place, lambda _: None)
    peers.write_text(model, 64, place / "text.json")
    ours = Path(sys.executable)
    return costs.Bench(
        model=model, text=place / "text.json", memory=ROOM, pythons={TRANSFORMERS: ours, ATTNSCOPE: ours}
    )


def test_a_process_that_holds_too_much_is_ended() -> None:
    outcome = run_capped(python("held = bytearray(3 * 10**8); input()"), memory=1e8, seconds=60)
    assert outcome[:2] == (None, "out of memory")
    assert outcome.peak > 1e8


def test_what_a_process_has_started_counts_and_is_ended_with_it(tmp_path: Path) -> None:
    child = "import time; held = bytearray(3 * 10**8); time.sleep(60)"
    parent = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); " + (
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(p.pid)); p.wait()"
    )
    assert run_capped(python(parent), memory=1e8, seconds=60).stopped == "out of memory"
    status = Path(f"/proc/{(tmp_path / 'child').read_text()}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()  # nobody has to fetch its exit code


def test_a_process_that_takes_too_long_is_ended() -> None:
    assert run_capped(python("import time; time.sleep(60)"), memory=ROOM, seconds=0.2).stopped == "too long"


def test_a_process_that_fails_says_why_and_one_that_was_refused_memory_is_out_of_it() -> None:
    assert run_capped(python("raise ValueError('no such head')"), memory=ROOM, seconds=60) == (
        None,
        "failed: ValueError: no such head",
        pytest.approx(0, abs=1e8),
    )
    assert run_capped(python("raise MemoryError"), memory=ROOM, seconds=60).stopped == "out of memory"


def test_the_answer_is_the_last_line_of_json_whatever_else_is_said() -> None:
    talk = "print('{hello'); print('{\"rise\": 1}'); print('done')"
    assert run_capped(python(talk), memory=ROOM, seconds=60)[:2] == ({"rise": 1}, "")


@pytest.mark.slow
def test_a_peer_gets_what_it_wants_once_and_what_lies_beneath_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beneath = tmp_path / "ours" / "site-packages"
    beneath.mkdir(parents=True)
    for name, version in (("little_thing", "1.0"), ("other_thing", "1.0")):
        with zipfile.ZipFile(wheel(tmp_path, name, version)) as archive:
            archive.extractall(beneath)
    before = {path: path.read_bytes() for path in beneath.rglob("*") if path.is_file()}
    monkeypatch.setattr(sys, "path", [*sys.path, str(beneath)])
    wanted = [str(wheel(tmp_path, "little_thing", "2.0"))]
    theirs = python_with(wanted, tmp_path / "theirs")
    (tmp_path / "theirs" / "left here").touch()
    assert python_with(wanted, tmp_path / "theirs") == theirs
    assert (tmp_path / "theirs" / "left here").exists()  # it was not made again
    found = versions_in(theirs)
    assert (found["little-thing"], found["other-thing"]) == ("2.0", "1.0")
    assert found["torch"] == versions_in(Path(sys.executable))["torch"]
    said = subprocess.run([theirs, "-c", "import little_thing as l, other_thing as o; print(l.version, o.version)"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert said.stdout.split() == ["2.0", "1.0"]
    assert before == {
        path: path.read_bytes() for path in beneath.rglob("*") if path.suffix != ".pyc" and path.is_file()
    }


def test_who_needs_nothing_runs_in_our_environment(tmp_path: Path) -> None:
    assert python_with((), tmp_path / "theirs") == Path(sys.executable)
    assert not (tmp_path / "theirs").exists()


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_named_and_left_out(tmp_path: Path) -> None:
    gone = Library("gone", (str(tmp_path / "gone-1.0-py3-none-any.whl"),))
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "half of an environment").touch()
    pythons, failures = peers.install([TRANSFORMERS, gone], tmp_path, lambda _: None)
    assert list(pythons) == [TRANSFORMERS]
    assert not (tmp_path / "gone" / "half of an environment").exists()
    rows = peers.versions(pythons, failures).rows
    assert rows[0][:2] == ("transformers", versions_in(Path(sys.executable))["transformers"])
    assert rows[1][0] == "gone"
    assert "could not be installed" in rows[1][1]


@pytest.mark.slow
@needs_chromium
def test_transformers_and_attnscope_are_measured_and_drawn(bench: costs.Bench, tmp_path: Path) -> None:
    chosen = [method for method in METHODS if method.library == ATTNSCOPE or method.script == "output_attentions"]
    ours = [page for page in PAGES if page.library == ATTNSCOPE]
    found = list(peers.compare(chosen, ours, (64,), (64,), bench, lambda _: None, tmp_path, {}))
    who, time, memory, page = found
    assert [row[0] for row in who.rows] == ["transformers", "attnscope"]
    assert [row[0] for row in time.rows] == [method.title for method in chosen]
    assert all(float(row[1].split("x")[0]) > HUNDREDTH for row in time.rows)
    assert [row[-1] for row in memory.rows] == ["yes", "", *["yes"] * (len(chosen) - 2)]  # the same weights
    assert page.rows[0][:2] == ("attnscope, saved page", "64")
    assert page.rows[0][5].endswith("s")  # seconds to the first picture
    write(tmp_path / "report.md", "peers", "python -m benchmarks.peers", found)
    assert "![memory](report_memory.svg)" in (tmp_path / "report.md").read_text()
    assert "attnscope, record" in (tmp_path / "report_memory.svg").read_text()


@pytest.mark.slow
def test_who_has_stopped_is_not_asked_again(bench: costs.Bench) -> None:
    little = costs.Bench(model=bench.model, text=bench.text, memory=3e7, pythons=bench.pythons)
    outcomes = costs.measure(METHODS[:1], (32, 64), little, lambda _: None)
    assert costs.times(outcomes, (32, 64), "").rows == [("plain pass, sdpa", "out of memory", "not tried")]
    assert "30 MB was stopped" in costs.memories(outcomes, (32, 64), "", little.memory).comparison


def test_pictures_have_a_curve_for_every_method_that_gives_all_weights(tmp_path: Path) -> None:
    answer = {"method": {"cpu": 3.0, "wall": 2.0}, "plain": {"cpu": 2.0}, "rise": 1e6, "entropy": 1.5}
    found = costs.times({(method, 64): Outcome(answer, "", 0) for method in METHODS}, (64,), "")
    write(tmp_path / "report.md", "peers", "python -m benchmarks.peers", [found])
    drawn = (tmp_path / "report_time.svg").read_text()
    assert all((method.title in drawn) == (method not in (PLAIN, *ANALYSES)) for method in METHODS)
    nothing = {(method, 64): Outcome(None, NOT_MEASURED, 0) for method in METHODS}
    assert costs.times(nothing, (64,), "").drawing is None


def test_saved_points_are_not_measured_again(tmp_path: Path) -> None:
    first, runs = Outcome({"entropy": 1.5}, "", 7), []

    def measure() -> list[Outcome]:
        runs.append(1)
        return [first, Outcome(None, "too long", 8)]

    assert SavedPoints(tmp_path).get("plain-64", measure) == [first, Outcome(None, "too long", 8)]
    assert SavedPoints(tmp_path).get("plain-64", measure) == [first, Outcome(None, "too long", 8)]
    assert len(runs) == 1
    assert SavedPoints(tmp_path, minutes=0).get("plain-64", measure)[0] == first  # when the time is up, too
    assert SavedPoints(tmp_path, minutes=0).get("plain-128", measure)[0].stopped == NOT_MEASURED
    assert len(runs) == 1


def test_points_of_other_settings_are_refused(tmp_path: Path) -> None:
    SavedPoints(tmp_path / "points").check({"versions": {"transformers": "5.22.2"}})
    SavedPoints(tmp_path / "points").check({"versions": {"transformers": "5.22.2"}})
    with pytest.raises(SettingError, match="another model, limit or version"):
        SavedPoints(tmp_path / "points").check({"versions": {"transformers": "5.23.0"}})


def test_an_unknown_library_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "bertvis"]) == 2
    assert "unknown library bertvis" in capsys.readouterr().err


def test_other_weights_than_ours_are_noticed() -> None:
    first, second = METHODS[2], RECORD

    def kept(entropy: float) -> Outcome:
        return Outcome({"entropy": entropy}, "", 0)

    assert costs.compare_weights(first, {(first, 64): kept(1.0), (second, 64): kept(1.0001)}) == "yes"
    assert costs.compare_weights(first, {(first, 64): kept(1.0), (second, 64): kept(1.1)}) == "no: 0.1 nats apart"
    assert costs.compare_weights(first, {(first, 64): kept(1.0), (second, 128): kept(1.0)}) == ""


@pytest.mark.slow
def test_a_page_that_does_not_come_is_the_last_of_its_kind(bench: costs.Bench, tmp_path: Path) -> None:
    little = costs.Bench(model=bench.model, text=bench.text, memory=3e7, pythons=bench.pythons)
    shown = pages.measure(PAGES[-1:], (32, 64), little, tmp_path, lambda _: None)
    assert pages.table(shown, "", little.memory).rows == [
        ("attnscope, saved page", "32", "-", "-", "out of memory", "-", "-", "-")
    ]


@pytest.mark.slow
@needs_chromium
def test_a_page_that_shows_nothing_has_no_first_picture(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<title>nothing</title>")
    command = [sys.executable, browser.__file__, str(page), "window.paintings > 0", "0.5", "{}"]
    assert run_capped(command, memory=ROOM, seconds=120).answer == {"seconds": None}


@pytest.fixture(scope="module")
def recorded(bench: costs.Bench) -> dict[tuple[Method, int], Outcome]:
    return costs.measure([RECORD], (64,), bench, lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["lens_patterns", "nnsight_saved"])
def test_a_peer_that_is_installed_keeps_the_same_weights(
    bench: costs.Bench, recorded: dict[tuple[Method, int], Outcome], script: str
) -> None:
    method = next(method for method in METHODS if method.script == script)
    theirs = cache_folder() / method.library.name.lower() / "bin" / "python"
    if not theirs.exists():
        pytest.skip(
            f"{method.library.name} is not installed; `python -m benchmarks.peers` installs it into its own environment"
        )
    both = costs.Bench(model=bench.model, text=bench.text, memory=ROOM, pythons={method.library: theirs})
    outcomes = costs.measure([method], (64,), both, lambda _: None)
    assert outcomes[method, 64].stopped == ""
    assert costs.compare_weights(method, outcomes | recorded) == "yes"


def test_a_memory_limit_of_zero_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--memory", "0"]) == 2
    assert "--memory 0" in capsys.readouterr().err


def test_the_installed_package_does_not_offer_it() -> None:
    assert "peers" not in NAMES
    with pytest.raises(AttnScopeError, match="unknown benchmark 'peers'"):
        run("peers")
