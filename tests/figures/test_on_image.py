"""A map over patches is drawn on the photo, each patch in its place."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from attnscope.errors import SettingError
from attnscope.figures import on_image
from attnscope.images import Box, PatchMap


def colour_at(figure, axes, x: float, y: float) -> np.ndarray:
    """The colour of the pixel at a place of the photo."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    across, up = axes.transData.transform((x, y))
    return pixels[len(pixels) - 1 - int(up), int(across), :3].astype(int)


def test_a_patch_lights_its_rectangle_of_the_photo_and_no_other() -> None:
    values = torch.zeros(1, 1, 2, 4)
    values[0, 0, 1, 2] = 1.0
    photo = np.zeros((40, 100, 3), dtype=np.float32)
    box = Box(0.1, 0.0, 0.9, 1.0)  # 80 pixels: patches of 20 x 20
    figure = on_image(PatchMap(values, (3,), box, photo=photo), alpha=1.0)
    axes = figure.axes[0]
    assert axes.get_title() == "head 3"
    bright = colour_at(figure, axes, 60, 30)
    assert bright[0] > 200
    assert bright[1] > 200
    dark = colour_at(figure, axes, 20, 10)
    for x in (12, 22, 32, 42, 48, 72, 88):
        for y in (4, 16, 24, 36):
            assert (colour_at(figure, axes, x, y) == dark).all(), (x, y)
    for x, y in ((51, 21), (69, 39), (51, 39), (69, 21)):  # the corners of the patch
        assert (colour_at(figure, axes, x, y) == bright).all(), (x, y)
    assert colour_at(figure, axes, 5, 20).max() < 5  # the photo, outside of the box
    assert colour_at(figure, axes, 95, 20).max() < 5


def test_hidden_patches_show_the_photo_and_do_not_set_the_scale() -> None:
    values = torch.full((1, 1, 2, 2), 0.1)
    values[0, 0, 0, 0] = 0.7
    photo = np.ones((20, 20, 3), dtype=np.float32)
    figure = on_image(PatchMap(values, (0,), photo=photo).hide([(0, 0)]), alpha=1.0)
    assert colour_at(figure, figure.axes[0], 5, 5).min() > 250
    assert figure.axes[0].get_images()[1].norm.vmax == pytest.approx(0.1)


def test_heads_and_frames_are_small_multiples() -> None:
    heads = on_image(PatchMap(torch.rand(6, 1, 3, 3), tuple(range(6))), columns=4)
    assert [axes.get_title() for axes in heads.axes[:-1]] == [f"head {at}" for at in range(6)]
    some = on_image(PatchMap(torch.rand(6, 1, 3, 3), tuple(range(6))), heads=[4, 1])
    assert [axes.get_title() for axes in some.axes[:-1]] == ["head 4", "head 1"]
    video = PatchMap(torch.rand(2, 3, 2, 2), (0, 1), photo=np.zeros((3, 8, 8, 3)))
    frames = on_image(video, heads=1)
    assert [axes.get_title() for axes in frames.axes[:-1]] == ["frame 0", "frame 1", "frame 2"]
    assert len(on_image(video, frame=2).axes) == 3
    heads.savefig(io.BytesIO(), format="svg")
    mistakes: list[dict[str, Any]] = [
        {},
        {"heads": [2]},
        {"frame": 3},
        {"frame": 0, "columns": 0},
        {"frame": 0, "limits": (1, 0)},
    ]
    for wrong in mistakes:
        with pytest.raises(SettingError):
            on_image(video, **wrong)
