"""Maps on images: a model whose patch i attends to patch j lights exactly the rectangle of patch j."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError
from attnscope.images import Box, ImageAttention, Layout, PatchGrid
from attnscope.images.layout import encoder_layout, in_blocks
from attnscope.recording import Trace, record

PATCH = 4  # pixels


def one_hot_trace(targets: Tensor, heads: int = 2, batch: int = 1) -> Trace:
    """A trace whose query i attends to key `targets[i]` alone, in all heads."""
    weights = nn.functional.one_hot(targets, len(targets)).float()
    return Trace.from_attentions([weights.expand(batch, heads, -1, -1)])


def on_layout(layout: Layout, targets: Tensor, image: int = 0) -> ImageAttention:
    return ImageAttention(one_hot_trace(targets).layers, {"": (layout,)}, image=image)


def lit(values: np.ndarray) -> tuple[int, int, int, int]:
    """Top, bottom, left and right of the rectangle of ones in an image that is zero elsewhere."""
    rows, columns = (values == 1).any(1).nonzero()[0], (values == 1).any(0).nonzero()[0]
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    assert (values[top:bottom, left:right] == 1).all()
    assert values.sum() == (bottom - top) * (right - left)
    return int(top), int(bottom), int(left), int(right)


LAYOUTS = {
    "patches alone": encoder_layout((1, 3, 3), {}),
    "class": encoder_layout((1, 3, 3), {"class": 1}),
    "class and registers": encoder_layout((1, 3, 3), {"class": 1, "register": 4}),
    "not square": encoder_layout((1, 2, 5), {"class": 1}),
    "tokens behind": encoder_layout((1, 4, 2), {"class": 1}, after={"detection": 3}),
    "blocks": Layout(24, (PatchGrid(in_blocks(0, 1, 4, 6, 2)),)),
    "video": encoder_layout((3, 2, 2), {"class": 1}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_patch_lights_its_rectangle(name: str) -> None:
    layout = LAYOUTS[name]
    grid = layout.grids[0]
    frames, rows, columns = grid.shape
    order = torch.randperm(layout.length, generator=torch.Generator().manual_seed(1))
    places = {int(position): place for place, position in np.ndenumerate(grid.positions.numpy())}
    picture = on_layout(layout, order)
    for position, place in places.items():
        found = picture.attends_to(0, place if frames > 1 else place[1:])
        target = int(order[position])
        pixels = found.to_pixels(rows * PATCH, columns * PATCH)
        if target in places:
            frame, row, column = places[target]
            assert lit(pixels[0, frame]) == (row * PATCH, (row + 1) * PATCH, column * PATCH, (column + 1) * PATCH)
            assert pixels.sum() == 2 * PATCH * PATCH  # two heads, one frame each
            back = picture.attended_by(0, (frame, row, column) if frames > 1 else (row, column))
            assert back.values[0].nonzero().tolist() == [list(place)]
        else:
            assert not pixels.any()
            name = next(name for name, some in layout.special.items() if target in some)
            assert found.elsewhere[name].tolist() == [1.0, 1.0]
        whole = found.values.sum((1, 2, 3)) + torch.stack(list(found.elsewhere.values()) or [torch.zeros(2)]).sum(0)
        torch.testing.assert_close(whole, torch.ones(2))


def test_two_images_in_a_text_do_not_share_patches() -> None:
    first, second = PatchGrid(torch.tensor([[[1, 2], [3, 4]]]), 0), PatchGrid(torch.tensor([[[6, 7]]]), 1)
    layout = Layout(9, (first, second), can_grow=True)
    targets = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 7])
    assert on_layout(layout, targets, 1).attends_to(0, 8).values[0].tolist() == [[[0.0, 1.0]]]
    found = on_layout(layout, targets, 0).attends_to(0, 8)
    assert not found.values.any()
    assert found.elsewhere["image 1"].tolist() == [1.0, 1.0]
    assert on_layout(layout, targets, 0).attends_to(0, 3).elsewhere["text"].tolist() == [1.0, 1.0]
    with pytest.raises(SettingError, match="no layer has patches of image 2"):
        on_layout(layout, targets, 2)


def test_parts_of_a_packed_sequence_have_the_patches_of_their_call() -> None:
    layout = Layout(12, (PatchGrid(in_blocks(0, 2, 2, 2, 2), 0), PatchGrid(in_blocks(8, 1, 2, 2, 2), 1)))
    parts = {name: torch.eye(4).roll(1, 1).expand(1, 2, -1, -1) for name in ("attn", "attn#2", "attn#3")}
    trace = Trace.from_attentions(parts)
    video, image = (ImageAttention(trace.layers, {"": (layout,)}, image=at) for at in (0, 1))
    assert (video.layers, image.layers) == (["attn", "attn#2"], ["attn#3"])
    found = video.attends_to("attn#2", (1, 0, 0)).values[0]
    assert found[0].isnan().all()
    assert found[1].tolist() == [[0.0, 1.0], [0.0, 0.0]]
    with pytest.raises(SettingError, match="another part"):
        video.attends_to("attn#2", (0, 0, 0))
    assert image.attends_to(0, (1, 1)).values[0, 0].tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_a_crop_of_the_photo_is_lit_inside_of_the_crop() -> None:
    trace = one_hot_trace(torch.arange(4))
    crop = Box(0.25, 0.0, 0.75, 1.0)
    picture = ImageAttention(trace.layers, {"": (encoder_layout((1, 2, 2), {}),)}, crop=crop)
    pixels = picture.attends_to(0, (1, 1)).to_pixels(8, 16)[0, 0]
    assert np.isnan(pixels[:, :4]).all()
    assert np.isnan(pixels[:, 12:]).all()
    assert lit(np.nan_to_num(pixels)) == (4, 8, 8, 12)


class Looker(nn.Module):
    """A vision transformer by hand, with two special tokens before 3 x 4 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.attention(tokens, tokens, tokens)[0]


def test_a_grid_by_hand_and_unknown_layouts_are_refused() -> None:
    model = Looker()
    with torch.no_grad(), record(model) as trace:
        model(torch.randn(2, 14, 8))
    with pytest.raises(UnsupportedError, match="give grid and first"):
        trace.on_image()
    picture = trace.on_image(np.zeros((30, 40, 3)), grid=(3, 4), first=2, image=1)
    weights = trace["attention"].to_dense()[1]
    found = picture.attends_to(0, (2, 3))
    torch.testing.assert_close(found.values[:, 0], weights[:, 13, 2:].reshape(2, 3, 4))
    torch.testing.assert_close(found.elsewhere["before"], weights[:, 13, :2].sum(-1))
    torch.testing.assert_close(picture.attended_by(0, (0, 1)).values[:, 0], weights[:, 2:, 3].reshape(2, 3, 4))
    torch.testing.assert_close(picture.received(0).values[:, 0], weights.mean(1)[:, 2:].reshape(2, 3, 4))
    mistakes: list[dict[str, Any]] = [{"grid": (3, 5), "first": 2}, {"grid": (3, 4)}, {"grid": (12,), "first": 0}]
    for wrong in mistakes:
        with pytest.raises(SettingError):
            trace.on_image(**wrong)
    for query in ((3, 0), (0, 0, 0, 0), "class", 14, range(0)):
        with pytest.raises(SettingError):
            picture.attends_to(0, query)


def test_sinks_are_named_and_can_be_hidden() -> None:
    layout = encoder_layout((1, 2, 2), {"class": 1, "register": 2})
    weights = torch.zeros(7, 7)
    weights[:, 1], weights[:, 5], weights[:, 3] = 0.6, 0.37, 0.03
    trace = Trace.from_attentions([weights.expand(1, 1, -1, -1)])
    picture = ImageAttention(trace.layers, {"": (layout,)})
    sinks = picture.sinks(0)
    assert [(sink.name, sink.patch) for sink in sinks] == [("register 0", None), ("patch (1, 0)", (1, 0))]
    found = picture.attends_to(0, "class").hide([sink.patch for sink in sinks if sink.patch])
    assert found.values[0, 0, 1, 0].isnan()
    assert found.values.nansum() == pytest.approx(0.03)


def test_rollout_is_that_of_the_dense_layers() -> None:
    weights = [torch.rand(1, 3, 5, 5).softmax(-1) for _ in range(2)]
    trace = Trace.from_attentions({f"layers.{at}.attn": one for at, one in enumerate(weights)})
    picture = ImageAttention(trace.layers, {"": (encoder_layout((1, 2, 2), {"class": 1}),)})
    mixed = [0.5 * torch.eye(5) + 0.5 * one[0].mean(0) for one in weights]
    right = (mixed[1] @ mixed[0])[0]
    found = picture.rollout("class")
    torch.testing.assert_close(found.values[0, 0], right[1:].reshape(2, 2))
    torch.testing.assert_close(found.elsewhere["class"], right[:1])


def test_rollout_follows_one_part_of_a_packed_sequence_and_refuses_windows() -> None:
    layout = Layout(8, (PatchGrid(in_blocks(0, 2, 2, 2, 2)),))
    names = ["layers.0.attn", "layers.0.attn#2", "layers.1.attn", "layers.1.attn#2"]
    weights = {name: torch.rand(1, 2, 4, 4).softmax(-1) for name in names}
    frames = ImageAttention(Trace.from_attentions(weights).layers, {"": (layout,)})
    assert frames.stack("layers.1.attn#2") == names[1::2]
    mixed = [0.5 * torch.eye(4) + 0.5 * weights[name][0].mean(0) for name in names[1::2]]
    torch.testing.assert_close(frames.rollout((1, 0, 0)).values[0, 1].flatten(), (mixed[1] @ mixed[0])[0])
    windows = {"layers.0.attn": 4, "layers.0.attn#2": 4, "layers.1.attn": 8}
    trace = Trace.from_attentions({name: torch.rand(1, 2, n, n).softmax(-1) for name, n in windows.items()})
    with pytest.raises(SettingError, match="windows"):
        ImageAttention(trace.layers, {"": (layout,)}).rollout((0, 0, 0))
