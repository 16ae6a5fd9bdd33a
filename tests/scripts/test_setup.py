"""What scripts/setup relies on: it can tell a CUDA build and an unfinished model folder."""

import runpy
from pathlib import Path

import huggingface_hub
import numpy
import pytest
from safetensors.numpy import save_file

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
INSTALL_TORCH = runpy.run_path(str(SCRIPTS / "install_torch.py"))
FETCH_MODELS = runpy.run_path(str(SCRIPTS / "fetch_models.py"))


@pytest.mark.parametrize("name", ["nvidia-cublas", "cuda-toolkit", "triton", "NVIDIA-nccl-cu13"])
def test_a_build_with_cuda_is_recognized(name: str) -> None:
    report = {"install": [{"metadata": {"name": "torch"}}, {"metadata": {"name": name}}]}
    assert INSTALL_TORCH["cuda_packages"](report) == [name.lower()]


def test_a_build_for_cpu_is_accepted() -> None:
    report = {"install": [{"metadata": {"name": name}} for name in ("torch", "sympy", "filelock")]}
    assert INSTALL_TORCH["cuda_packages"](report) == []


def test_torch_is_pinned_to_a_version_without_a_build_suffix() -> None:
    assert INSTALL_TORCH["pinned_torch"]((SCRIPTS.parent / "constraints.txt").read_text()) == "torch==2.13.0"


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    for name in FETCH_MODELS["FOLDER_FILES"]:
        (tmp_path / name).write_text("{}")
    save_file({"weight": numpy.zeros(1000)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_whole_model_folder_is_complete(model_folder: Path) -> None:
    assert FETCH_MODELS["is_complete"](model_folder)


@pytest.mark.parametrize("name", FETCH_MODELS["FOLDER_FILES"])
def test_a_folder_that_lacks_a_file_is_not_complete(model_folder: Path, name: str) -> None:
    (model_folder / name).unlink()
    assert not FETCH_MODELS["is_complete"](model_folder)


def test_weights_cut_short_are_not_complete(model_folder: Path) -> None:
    weights = model_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not FETCH_MODELS["is_complete"](model_folder)


@pytest.mark.parametrize("model", ["smollm2-135m", "minilm-l6"])
def test_the_models_are_in_place(model: str) -> None:
    assert FETCH_MODELS["is_complete"](FETCH_MODELS["MODELS"] / model)


def test_a_folder_in_the_hub_cache_is_found_by_its_name(model_folder: Path, tmp_path: Path) -> None:
    model = FETCH_MODELS["DOWNLOADS"]["smollm2-135m"]
    hub = tmp_path / "hub"
    snapshot = FETCH_MODELS["link_into_hub_cache"](model, model_folder, hub)
    assert FETCH_MODELS["link_into_hub_cache"](model, model_folder, hub) == snapshot
    found = huggingface_hub.snapshot_download(model.hub_name, cache_dir=hub, local_files_only=True)
    assert Path(found) == snapshot
    assert FETCH_MODELS["is_complete"](snapshot)


@pytest.mark.parametrize("name", ["HuggingFaceTB/SmolLM2-135M-Instruct", "sentence-transformers/all-MiniLM-L6-v2"])
def test_the_models_are_in_the_local_hub_cache(name: str) -> None:
    found = huggingface_hub.snapshot_download(name, cache_dir=FETCH_MODELS["HUB"], local_files_only=True)
    assert FETCH_MODELS["is_complete"](Path(found))
