"""`attnscope picture`, on a small vision transformer with random parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from attnscope.cli.main import main

SETTINGS = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 16, "width": 16},
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a photo that is not square."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("desk")
    torch.manual_seed(0)
    size: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **size)).save_pretrained(folder / "vit")
    (folder / "vit" / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    pixels = np.random.default_rng(0).integers(0, 255, (20, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    (folder / "text.txt").write_text("no image")
    return folder


@pytest.mark.parametrize("chosen", [(), ("--patch", "3,0"), ("--received", "--hide-sinks"), ("--rollout",)])
def test_a_picture_is_drawn(desk: Path, capsys: pytest.CaptureFixture[str], chosen: tuple[str, ...]) -> None:
    to = desk / "found.svg"
    assert main(["picture", str(desk / "vit"), str(desk / "photo.png"), "--to", str(to), *chosen]) == 0
    assert to.read_text().startswith("<?xml")
    said = capsys.readouterr().out
    assert "4 x 4 patches" in said
    assert "class: " in said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["vit", "text.txt"], "cannot be read as an image"),
        (["vit", "photo.png", "--patch", "4,0"], "expected a patch (row, column) of 1 x 4 x 4, got (4, 0)"),
        (["vit", "photo.png", "--patch", "four"], "expected --patch ROW,COLUMN"),
        (["vit", "photo.png", "--layer", "2"], "expected a layer from 0 to 1, got 2"),
        (["vit", "photo.png", "--rollout", "--received"], "one of --patch, --received and --rollout"),
        (["vit", "photo.png", "--to", "found.txt"], "ends in .png, .svg or .pdf"),
        (["empty", "photo.png"], "preprocessor_config.json"),
    ],
)
def test_mistakes_are_one_line(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: list[str], message: str
) -> None:
    monkeypatch.chdir(desk)
    (desk / "empty").mkdir(exist_ok=True)
    (desk / "empty" / "config.json").write_text("{}")
    assert main(["picture", *given]) == 2
    said = capsys.readouterr().err
    assert message in said.splitlines()[-1]  # after the progress bar of transformers
    assert "Traceback" not in said
