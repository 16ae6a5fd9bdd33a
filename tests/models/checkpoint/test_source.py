"""Where a model is: folders, files, and names on the hub, from its cache or not at all."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from attnscope.errors import CheckpointError
from attnscope.models.checkpoint import load, locate, save
from attnscope.models.decoder import Decoder, DecoderConfig

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no way out."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_name_is_found_in_the_cache_of_the_hub_without_a_network(cache: Path) -> None:
    snapshot = cache / "models--some--model" / "snapshots" / COMMIT
    config = DecoderConfig(
        vocab_size=61, hidden_size=24, num_layers=2, num_heads=6, intermediate_size=40, max_position_embeddings=64
    )
    save(Decoder(config), snapshot)
    (cache / "models--some--model" / "refs").mkdir()
    (cache / "models--some--model" / "refs" / "main").write_text(COMMIT)
    assert locate("some/model") == snapshot
    assert load("some/model", revision=COMMIT).config == config
    with pytest.raises(CheckpointError, match="'some/model at other' is not a folder"):
        locate("some/model", "other")


def test_a_name_that_is_neither_here_nor_reachable_says_so(cache: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"'some/model' is not a folder, is not in the local cache .*, and could not"
    ):
        locate("some/model")


def test_only_the_files_that_are_needed_are_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = {}
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **options: asked.update(options, name=name) or str(tmp_path)
    )
    assert locate("some/model", revision="v1") == tmp_path
    assert asked["name"] == "some/model"
    assert asked["revision"] == "v1"
    assert "config.json" in asked["allow_patterns"]
    assert not any(name.endswith((".bin", ".pth", ".py", "*")) for name in asked["allow_patterns"])


@pytest.mark.parametrize(
    "source", ["nothing", "../nothing/here", "a/b/c", "/nothing", "a b/c", "https://host/a", "~/nothing"]
)
def test_what_is_no_place_at_all_is_refused_without_asking_the_hub(source: str, monkeypatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **options: pytest.fail("the hub was asked"))
    with pytest.raises(CheckpointError, match=r"is neither a folder, nor a \.gguf file, nor a name on the hub"):
        locate(source)


def test_a_file_that_is_no_gguf_points_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(CheckpointError, match=r"give the folder that holds config\.json"):
        locate(tmp_path / "model.safetensors")
