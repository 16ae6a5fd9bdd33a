"""Train a small vision transformer to find and read a digit, and draw what its heads attend to.

The images are digits of scikit-learn (8 x 8 pixels, Alpaydin & Kaynak, 1998) on 2 x 2 random patches of a noisy
canvas of 6 x 6 patches, so that attention to the digit can be measured: its place is known. A patch has 4 x 4 pixels.
Usage: `python scripts/train_digits_vit.py digits.csv.gz OUTPUT_FOLDER`, with the file
`sklearn/datasets/data/digits.csv.gz` of the wheel of scikit-learn. It takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.image import imsave
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from attnscope.figures import on_image
from attnscope.progress import report_progress
from attnscope.recording import record

CANVAS, DIGIT, PATCH = 24, 8, 4
NOISE, MEAN, STD = 0.15, 0.1, 0.25
BATCH, HELD_OUT, LEARNING_RATE = 64, 297, 1e-3
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": CANVAS, "width": CANVAS},
    "image_mean": [MEAN] * 3,
    "image_std": [STD] * 3,
}
"""Settings of the image processor, so that `attnscope look` reads photos."""


def read_digits(path: Path) -> tuple[Tensor, Tensor]:
    """Digits (count, 8, 8) from 0 to 1, and their labels."""
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return torch.from_numpy(table[:, :-1] / 16).reshape(-1, DIGIT, DIGIT), torch.from_numpy(table[:, -1]).long()


def on_canvas(digits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 24, 24) with each digit at a random place, and the top left corners, (count, 2)."""
    corners = PATCH * torch.randint(0, (CANVAS - DIGIT) // PATCH + 1, (len(digits), 2), generator=generator)
    images = NOISE * torch.rand(len(digits), CANVAS, CANVAS, generator=generator)
    for image, digit, (top, left) in zip(images, digits, corners.tolist(), strict=True):
        image[top : top + DIGIT, left : left + DIGIT] += digit * (1 - NOISE)
    return ((images - MEAN) / STD)[:, None].expand(-1, 3, -1, -1).contiguous(), corners


def make_model() -> ViTForImageClassification:
    """A vision transformer of 3 layers with 4 heads each."""
    torch.manual_seed(0)
    config: Any = ViTConfig(
        image_size=CANVAS,
        patch_size=PATCH,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
    )
    config.num_labels = 10
    return ViTForImageClassification(config)


def loss_of_batch(model: nn.Module, digits: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """The loss of the classes of a batch, for new places of the digits."""
    some = torch.randint(0, len(digits), (BATCH,), generator=generator)
    images, _ = on_canvas(digits[some], generator)
    return nn.functional.cross_entropy(model(images).logits, labels[some])


def train(model: nn.Module, get_loss: Callable[[torch.Generator], Tensor], steps: int, learning_rate: float) -> None:
    """Minimize the losses that `get_loss` returns, each of a new batch."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.1)
    model.train()
    with report_progress(True, "training") as report:
        for step in range(steps):
            loss = get_loss(generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            report(step + 1, steps)
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
    model.eval()


def patches_of(corner: Tensor) -> Tensor:
    """Which patches (6, 6) a digit covers."""
    top, left = corner.tolist()
    rows, columns = torch.arange(CANVAS // PATCH)[:, None] * PATCH, torch.arange(CANVAS // PATCH) * PATCH
    return (rows < top + DIGIT) & (rows + PATCH > top) & (columns < left + DIGIT) & (columns + PATCH > left)


def share_on_digit(model: nn.Module, images: Tensor, corners: Tensor) -> Tensor:
    """The mean weight of the class token on the patches of the digit, (layers, heads), and their share of the area."""
    with torch.no_grad(), record(model) as trace:
        model(images)
    shares = []
    for at, corner in enumerate(corners):
        picture, inside = trace.on_image(image=at), patches_of(corner)
        maps = [picture.attends_to(layer, "class").values[:, 0] for layer in range(len(picture.layers))]
        shares.append(torch.stack([one[:, inside].sum(-1) for one in maps]))
    return torch.stack(shares).mean(0)


def to_report(figures: dict[str, Any]) -> str:
    """The figures as a table: the weight of the class token on the patches of the digit, per layer and head."""
    lines = [
        "# The weight of the class token on the patches of a digit",
        "",
        "Made by `scripts/train_digits_vit.py`: a vision transformer of 3 layers with 4 heads each, float32, CPU.",
        f"The digit covers {figures['area']:.0%} of the image. The trained model reads {figures['accuracy']:.0%} of "
        f"{HELD_OUT} held-out digits. Means over 64 of them.",
        "",
        "| layer | head | random parameters | trained |",
        "|---|---|---|---|",
    ]
    for layer, (before, after) in enumerate(zip(figures["untrained"], figures["trained"], strict=True)):
        for head, (one, other) in enumerate(zip(before, after, strict=True)):
            lines.append(f"| {layer} | {head} | {one:.0%} | {other:.0%} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Train, measure, save and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("digits", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    digits, labels = read_digits(options.digits)
    model = make_model()
    images, corners = on_canvas(digits[-HELD_OUT:], torch.Generator().manual_seed(2))
    before = share_on_digit(model.eval(), images[:64], corners[:64])
    known = digits[:-HELD_OUT], labels[:-HELD_OUT]
    train(model, lambda generator: loss_of_batch(model, *known, generator), options.steps, LEARNING_RATE)
    with torch.no_grad():
        accuracy = (model(images).logits.argmax(-1) == labels[-HELD_OUT:]).float().mean().item()
    after = share_on_digit(model, images[:64], corners[:64])
    covered = torch.stack([patches_of(corner).float().mean() for corner in corners[:64]]).mean().item()
    options.output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(options.output)
    (options.output / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    photo = (images[0] * STD + MEAN).clamp(0, 1).permute(1, 2, 0)
    imsave(options.output / "digit.png", photo.numpy())
    figures = {"accuracy": accuracy, "area": covered, "untrained": before.tolist(), "trained": after.tolist()}
    (options.output / "attention_to_digit.md").write_text(to_report(figures))
    print(to_report(figures))
    with torch.no_grad(), record(model) as trace:
        model(images[:1])
    picture = trace.on_image(images[0])
    for layer in range(len(picture.layers)):
        on_image(picture.attends_to(layer, "class"), columns=4).savefig(options.output / f"class_layer_{layer}.png")
    on_image(picture.rollout("class")).savefig(options.output / "rollout.png")


if __name__ == "__main__":
    main()
