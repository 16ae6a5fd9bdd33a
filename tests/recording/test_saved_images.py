"""A saved trace keeps the layouts of its images and their photos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnscope.errors import SettingError, TraceError, UnsupportedError
from attnscope.images.layout import Box, Layout, PatchGrid
from attnscope.recording import Trace, open_trace
from attnscope.recording.files.manifest import content_hash


def make_trace(queries: int = 9) -> Trace:
    """Two heads over special tokens and 2 x 3 patches, at positions that do not follow each other."""
    torch.manual_seed(0)
    trace = Trace.from_attentions({"encoder.0": torch.rand(1, 2, queries, queries).softmax(-1)})
    places = torch.tensor([[[8, 3, 4], [5, 6, 7]]])
    grid = PatchGrid(places, 0, (20, 30), Box(0.0, 0.25, 1.0, 0.75))
    trace.image_layouts = {
        "encoder": (Layout(9, (grid,), {"class": range(1), "register": range(1, 3)}, can_grow=True),)
    }
    return trace


def photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)


def test_layouts_and_photos_are_the_same_after_opening(tmp_path: Path) -> None:
    trace = make_trace()
    trace.attach_photo(photo(), box=(0.0, 0.0, 0.5, 1.0))
    trace.save(tmp_path)
    opened = open_trace(tmp_path, verify=True)
    before, after = trace.on_image(), opened.on_image()
    assert after.crop == Box(0.0, 0.0, 0.5, 1.0)
    assert np.array_equal(opened.photos[0].pixels, photo())
    assert after.photo is not None
    assert before.photo is not None
    assert np.array_equal(before.photo, after.photo)
    one, other = before.attends_to(0, "register"), after.attends_to(0, "register")
    assert torch.equal(one.values, other.values)
    assert one.box == other.box == Box(0.0, 0.25, 0.5, 0.75)
    assert list(other.elsewhere) == ["class", "register"]
    (layout,) = opened.image_layouts["encoder"]
    assert layout.can_grow
    assert layout.grids[0].pixels == (20, 30)


def test_a_trace_without_images_has_the_earlier_version(tmp_path: Path) -> None:
    Trace.from_attentions([torch.eye(3)[None, None]]).save(tmp_path / "plain")
    make_trace().save(tmp_path / "image")
    plain, image = (json.loads((tmp_path / name / "trace.json").read_text()) for name in ("plain", "image"))
    assert (plain["version"], image["version"]) == (1, 2)
    assert "images" not in plain
    assert open_trace(tmp_path / "plain").image_layouts == {}
    assert open_trace(tmp_path / "image").photos == {}


def test_saving_over_a_trace_with_images_removes_them(tmp_path: Path) -> None:
    make_trace().save(tmp_path)
    Trace.from_attentions([torch.eye(3)[None, None]]).save(tmp_path)
    assert not list(tmp_path.glob("images*"))
    assert open_trace(tmp_path).image_layouts == {}


def test_a_grid_by_hand_is_stored_with_its_photo(tmp_path: Path) -> None:
    trace = Trace.from_attentions([torch.rand(1, 1, 7, 7).softmax(-1)])
    trace.attach_photo(photo(), grid=(2, 3), first=1)
    trace.save(tmp_path)
    found = open_trace(tmp_path).on_image().attends_to(0, (1, 2))
    assert torch.equal(found.values, trace.on_image(grid=(2, 3), first=1).attends_to(0, (1, 2)).values)


def test_a_photo_of_an_unknown_layout_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="give grid and first"):
        Trace.from_attentions([torch.eye(3)[None, None]]).attach_photo(photo())
    with pytest.raises(SettingError, match="no layer has patches of image 1"):
        make_trace().attach_photo(photo(), image=1, box=(0, 0, 1, 1))


def damage(fields: dict[str, Any], *path: Any, value: Any) -> None:
    *outer, last = path
    for name in outer:
        fields = fields[name]
    fields[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("layouts", 0, "rows", 0, "length"), 8, "positions of patches below 8"),
        (("layouts", 0, "rows", 0, "special"), [["class", 0, 99]], "special"),
        (("layouts", 0, "rows", 0, "grids", 0, "box"), [0, 0, 0, 1], "left, top, right and bottom"),
        (("layouts", 0, "rows", 0, "grids", 0, "pixels"), [3], "height and width"),
        (("layouts", 0, "rows", 0, "grids", 0, "image"), -1, "image"),
        (("layouts", 0, "rows", 0, "grids"), [], "tensor"),
        (("photos", 0, "crop"), [0, 0, 1], "left, top, right and bottom"),
        (("photos",), [], "tensor"),
        (("unknown",), 1, "unknown fields"),
        (("file",), None, "no file"),
    ],
)
def test_damaged_fields_are_rejected(tmp_path: Path, path: tuple[Any, ...], value: Any, message: str) -> None:
    trace = make_trace()
    trace.attach_photo(photo(), box=(0, 0, 1, 1))
    trace.save(tmp_path)
    manifest = json.loads((tmp_path / "trace.json").read_text())
    damage(manifest["images"], *path, value=value)
    manifest["content"] = content_hash(manifest)
    (tmp_path / "trace.json").write_text(json.dumps(manifest))
    with pytest.raises(TraceError, match=message):
        open_trace(tmp_path)


def test_a_changed_photo_is_found(tmp_path: Path) -> None:
    trace = make_trace()
    trace.attach_photo(photo(), box=(0, 0, 1, 1))
    trace.save(tmp_path)
    path = tmp_path / "images.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(TraceError):
        open_trace(tmp_path)
