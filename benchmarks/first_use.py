"""What a new user waits for: from the wheel on disk to the first heatmap, and the features of README in their order.

The wheel is built from the sdist of this checkout and installed into a fresh virtual environment, with an empty home
folder, from wheels that were downloaded before. Downloads are measured apart. Linux only.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from playwright.sync_api import Browser

from attnscope.bench import Size
from attnscope.bench.report import Table, duration
from attnscope.errors import SettingError
from attnscope.labs import reference_text
from benchmarks.publishing.viewer import VISITED, chromium

ROOT = Path(__file__).resolve().parents[1]
FIRST, LATER = "explore,models", "record,figures,survey"
"""Extras of the quickstart, and those that the other features need."""
MODEL = "smollm2-135m"
SENTENCE = "Anna lost the key. Peter found the key."
MAX_SECONDS = 1800.0
DRAWN = "html[data-state=ready]"  # the page sets it with the first heatmap
ADDRESS = re.compile(rb"http://\S+#token=\S+")
WATCHED = ROOT / "docs" / "guides" / "watch.md"
VIT = """
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor
sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 6}
ViTForImageClassification(ViTConfig(**sizes)).save_pretrained("vit")
(__import__("pathlib").Path("vit/preprocessor_config.json")).write_text(
    '{"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224}}')
import numpy, PIL.Image
PIL.Image.fromarray(numpy.arange(480 * 640 * 3).reshape(480, 640, 3).astype("uint8")).save("photo.jpg")
"""
"""A vision transformer with the shape of ViT-S/16 and random parameters, and a picture."""


class Cost(NamedTuple):
    """What a command took, with the processes that it started."""

    seconds: float
    cpu_seconds: float


class Home:
    """A new user's machine: an empty home folder, and a virtual environment without packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        own = ("PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME", "HF_HOME")
        self._environment = {name: value for name, value in os.environ.items() if name not in own}
        self._environment |= {"HOME": str(folder), "PATH": f"{self.bin}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
        venv.create(folder / "venv", with_pip=True)

    def run(self, command: str) -> Cost:
        """Run a command to its end; raise if it fails."""
        start = time.perf_counter()
        process = self._start(command)
        cpu_seconds = self._wait(process)
        seconds = time.perf_counter() - start
        if process.returncode:
            raise SettingError(f"first_use: {command} failed:\n{self._log.read_text(errors='replace')[-2000:]}")
        return Cost(seconds, cpu_seconds)

    def show(self, command: str, browser: Browser) -> Cost:
        """Run a command that starts a server, open its address, and end it when the first heatmap is drawn."""
        start = time.perf_counter()
        process = self._start(command)
        try:
            address = self._wait_for_address(process)
            with browser.new_context() as context:
                page = context.new_page()
                page.add_init_script(VISITED)
                page.goto(address)
                page.wait_for_selector(DRAWN, state="attached", timeout=1000 * MAX_SECONDS)
                seconds = time.perf_counter() - start
        finally:
            os.kill(process.pid, signal.SIGTERM)  # an ignored SIGINT would be inherited
            cpu_seconds = self._wait(process)
        return Cost(seconds, cpu_seconds)

    def _wait(self, process: subprocess.Popen[bytes]) -> float:
        """Wait for the end of a process; return the CPU time of it and of those that it started and waited for."""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return usage.ru_utime + usage.ru_stime

    @property
    def _log(self) -> Path:
        return self.folder / "output.txt"

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _wait_for_address(self, process: subprocess.Popen[bytes]) -> str:
        end = time.monotonic() + MAX_SECONDS
        while time.monotonic() < end:
            output = self._log.read_bytes()
            if found := ADDRESS.search(output):
                return found.group().decode()
            if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":  # has ended
                raise SettingError(f"first_use: no address in:\n{output.decode(errors='replace')[-2000:]}")
            time.sleep(0.05)
        raise SettingError("first_use: the command printed no address in time")


def tables(size: Size, step: Callable[[str], None], data: Sequence[str] = ()) -> Iterator[Table]:
    """Install the wheel of this checkout as a new user and run the features of README; yield two tables.

    Args:
        size: The length of texts.
        step: Called with what comes next.
        data: A folder of wheels that were downloaded before.
    """
    tokens, passages = size.choose(small=(1024, 4), full=(2048, 64))
    with TemporaryDirectory() as place, chromium() as browser:
        home = Home(Path(place))
        step("building the wheel from the sdist")
        wheel = build_wheel(home.folder / "dist")
        downloads = download_wheels(home, wheel, [Path(folder) for folder in data], step)
        yield measure_first_heatmap(home, wheel, downloads, browser, step)
        write_inputs(home.folder, passages)
        yield measure_features(home, wheel, tokens, browser, step)


def build_wheel(folder: Path) -> Path:
    """Build the sdist and, from it, the wheel."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SettingError(f"first_use: building failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return next(folder.glob("*.whl"))


def pip_install(wheel: Path, extras: str) -> str:
    """The command that installs the wheel without a network, with the torch of this environment."""
    pinned = f"torch=={torch.__version__.partition('+')[0]}"
    return f'pip install --quiet --no-index --find-links wheels {pinned} "{wheel}[{extras}]"'


def download_wheels(home: Home, wheel: Path, given: Sequence[Path], step: Callable[[str], None]) -> Cost | None:
    """Fill the folder of wheels: with a link to a given one, or by pip."""
    if given:
        (home.folder / "wheels").symlink_to(given[0].absolute())
        return None
    step("downloading wheels")
    install = pip_install(wheel, f"{FIRST},{LATER}").replace("install", "download --dest wheels", 1)
    return home.run(install.replace("--no-index --find-links wheels ", ""))


def measure_first_heatmap(
    home: Home, wheel: Path, downloads: Cost | None, browser: Browser, step: Callable[[str], None]
) -> Table:
    """Run the three commands of the quickstart."""
    install, look = pip_install(wheel, FIRST), f'attnscope look {MODEL} "{SENTENCE}" --no-browser'
    table = Table(
        title="From the wheel on disk to the first heatmap of a trained model",
        comparison="A fresh virtual environment and an empty home folder; wheels of all packages are on disk. The time "
        "of the last command ends when headless Chromium, which runs already, has drawn the first heatmap.",
        columns=("command", "time", "CPU time", "includes"),
    )
    if downloads is not None:
        add(table, "pip download, before the clock starts", downloads, "network")
    step("installing")
    add(table, f'pip install "attnscope[{FIRST}]"', home.run(install), "torch and all other packages, from disk")
    step("downloading a model")
    add(table, f"attnscope download {MODEL}", home.run(f"attnscope download {MODEL}"), "network: 93 MB")
    step("the first heatmap")
    add(table, look.removesuffix(" --no-browser"), home.show(look, browser), "the first start")
    add(table, "the same again", home.show(look, browser), "")
    return table


def measure_features(home: Home, wheel: Path, tokens: int, browser: Browser, step: Callable[[str], None]) -> Table:
    """Run the commands of the features of README, in their order."""
    table = Table(
        title="The features of README, in their order",
        comparison=f"Each command from its start to its end, or to the first heatmap; {os.cpu_count()} CPU cores. "
        f"{MODEL} in float32 reads {tokens:,} tokens of report.txt, the Python language reference. The photo model has "
        "the shape of ViT-S/16 and random parameters.",
        columns=("command", "time", "CPU time", "until"),
    )
    step("installing more extras")
    add(table, f'pip install "attnscope[{LATER}]"', home.run(pip_install(wheel, LATER)), "the end")
    home.run(f"python -c {shlex.quote(VIT)}")
    look, photo = f"attnscope look {MODEL} report.txt --tokens {tokens}", "attnscope look ./vit photo.jpg"
    ends = {
        f"attnscope heads {MODEL} --find induction": "the end",
        f"attnscope cache {MODEL} report.txt --tokens {tokens}": "the end",
        "python watched.py": "the end",
    }
    step(look)
    add(table, look, home.show(f"{look} --no-browser", browser), "the first heatmap")
    for command, until in ends.items():
        step(command)
        add(table, command, home.run(command), until)
    step(photo)
    add(table, photo, home.show(f"{photo} --no-browser", browser), "the first heatmap")
    survey = f"attnscope survey run {MODEL} corpus --out surveys/first"
    step(survey)
    add(table, survey, home.run(survey), "the end")
    return table


def write_inputs(folder: Path, passages: int) -> None:
    """Write the text, the corpus, and the first block of code of the guide about watching a training run."""
    text = reference_text()
    (folder / "report.txt").write_text(text, encoding="utf-8")
    (folder / "corpus").mkdir()
    (folder / "corpus" / "reference.txt").write_text(text[: passages * 2000], encoding="utf-8")
    code = re.search(r"^```python\n(.*?)^```", WATCHED.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    if code is None:
        raise SettingError(f"first_use: no Python in {WATCHED}")
    (folder / "watched.py").write_text(code[1], encoding="utf-8")


def add(table: Table, command: str, cost: Cost, note: str) -> None:
    """Add the row of a command."""
    table.add(f"`{command}`", duration(cost.seconds), duration(cost.cpu_seconds), note)
