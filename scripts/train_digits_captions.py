"""Train a small vision-language model to read two digits, and measure where each word of its answer attends.

The model is a LLaVA: the patches of the image stand in the text, before the question. A digit of scikit-learn (8 x 8
pixels) is at a random place in the left half of a noisy image of 6 x 6 patches, another one in the right half, and the
answer names both: "seven and three". The place of each digit is known, so attention to it can be measured.
Usage: `python scripts/train_digits_captions.py digits.csv.gz OUTPUT_FOLDER`, with the file
`sklearn/datasets/data/digits.csv.gz` of the wheel of scikit-learn. It takes some minutes on one core.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib.image import imsave
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from train_digits_vit import BATCH, CANVAS, DIGIT, HELD_OUT, MEAN, NOISE, PATCH, STD, patches_of, read_digits, train
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    CLIPImageProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from attnscope.figures import on_image
from attnscope.recording import record

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WORDS = ("<pad>", "<end>", "<image>", *NUMBERS, "and", "Which", "digits", "?")
END, IMAGE, AND = WORDS.index("<end>"), WORDS.index("<image>"), WORDS.index("and")
QUESTION = [WORDS.index(word) for word in ("Which", "digits", "?")]
NUM_PATCHES = (CANVAS // PATCH) ** 2
ANSWER = NUM_PATCHES + len(QUESTION)  # the position of the first word of the answer
LEARNING_RATE = 2e-3
SIZE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}


def make_images(digits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 24, 24) of pairs of digits (count, 2, 8, 8), and their top left corners, (count, 2, 2)."""
    half = CANVAS // 2
    rows = torch.randint(0, (CANVAS - DIGIT) // PATCH + 1, (len(digits), 2), generator=generator)
    columns = torch.randint(0, (half - DIGIT) // PATCH + 1, (len(digits), 2), generator=generator)
    corners = torch.stack([PATCH * rows, PATCH * columns + torch.tensor([0, half])], -1)
    images = NOISE * torch.rand(len(digits), CANVAS, CANVAS, generator=generator)
    for image, pair, places in zip(images, digits, corners.tolist(), strict=True):
        for digit, (top, left) in zip(pair, places, strict=True):
            image[top : top + DIGIT, left : left + DIGIT] += digit * (1 - NOISE)
    return ((images - MEAN) / STD)[:, None].expand(-1, 3, -1, -1).contiguous(), corners


def make_ids(labels: Tensor) -> Tensor:
    """The text of each pair of labels (count, 2): patches, question, answer, end."""
    start = torch.tensor([IMAGE] * NUM_PATCHES + QUESTION).expand(len(labels), -1)
    first, second = (labels + WORDS.index("zero")).unbind(1)
    rest = torch.stack([first, torch.full_like(first, AND), second, torch.full_like(first, END)], 1)
    return torch.cat([start, rest], 1)


def make_model() -> Any:
    """A LLaVA with two layers in the image encoder and two in the language model, 4 heads each."""
    torch.manual_seed(0)
    text = {**SIZE, "num_hidden_layers": 2, "vocab_size": len(WORDS), "num_key_value_heads": 4, "model_type": "llama"}
    text |= {"eos_token_id": END, "pad_token_id": 0, "bos_token_id": None}
    vision = {**SIZE, "num_hidden_layers": 2, "image_size": CANVAS, "patch_size": PATCH}
    vision["model_type"] = "clip_vision_model"
    config = AutoConfig.for_model(
        "llava", text_config=text, vision_config=vision, image_token_index=IMAGE, vision_feature_layer=-1
    )
    return AutoModelForImageTextToText.from_config(config)


def save_processor(folder: Path) -> None:
    """Save what `attnscope look` needs to read a photo and a question."""
    words: Any = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, WORDS[0]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": WORDS[0], "eos_token": WORDS[END]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, additional_special_tokens=[WORDS[IMAGE]], **special)
    tokenizer.image_token = WORDS[IMAGE]
    images = CLIPImageProcessor(
        size={"shortest_edge": CANVAS},
        crop_size={"height": CANVAS, "width": CANVAS},
        image_mean=[MEAN] * 3,
        image_std=[STD] * 3,
    )
    template = (
        "{% for message in messages %}{% for part in message.content %}"
        "{{ '<image> ' if part.type == 'image' else part.text }}{% endfor %}{% endfor %}"
    )
    LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=template,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)


def loss_of_batch(model: Any, digits: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """The loss of the words of the answers, for new pairs of digits at new places."""
    some = torch.randint(0, len(digits), (BATCH, 2), generator=generator)
    images, _ = make_images(digits[some], generator)
    ids = make_ids(labels[some])
    logits = model(input_ids=ids, pixel_values=images).logits[:, ANSWER - 1 : -1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, ANSWER:].flatten())


@torch.no_grad()
def generate(model: Any, images: Tensor) -> Tensor:
    """The answers (count, 4) that the model generates, the most likely word at each step."""
    ids = make_ids(torch.zeros(len(images), 2, dtype=torch.long))[:, :ANSWER]
    for _ in range(4):
        next_ids = model(input_ids=ids, pixel_values=images).logits[:, -1].argmax(-1)
        ids = torch.cat([ids, next_ids[:, None]], 1)
    return ids[:, ANSWER:]


def shares_on_digits(model: Any, images: Tensor, ids: Tensor, corners: Tensor) -> Tensor:
    """The mean weights (words, digits, layers, heads) of the queries that predict the two numbers on the two digits."""
    with torch.no_grad(), record(model) as trace:
        model(input_ids=ids, pixel_values=images)
    total = torch.zeros(2, 2, 2, 4)
    for at, places in enumerate(corners):
        picture = trace.on_image(image=at)
        layers = [name for name in picture.layers if "language" in name]
        for word, layer in product(range(2), range(2)):
            maps = picture.attends_to(layers[layer], ANSWER - 1 + 2 * word).values[:, 0]
            for digit, corner in enumerate(places):
                total[word, digit, layer] += maps[:, patches_of(corner)].sum(-1)
    return total / len(corners)


def to_report(accuracy: float, untrained: Tensor, trained: Tensor) -> str:
    """The weights as a table: one row per head."""
    lines = [
        "# Where the words of an answer attend",
        "",
        "Made by `scripts/train_digits_captions.py`: a LLaVA with two layers of 4 heads in the image encoder and",
        "in the language model, float32, CPU. An image has two digits, and each covers 11% of it.",
        f"The trained model generates {accuracy:.0%} of {HELD_OUT} answers right, word for word, on digits that it",
        "was not trained on.",
        "",
        "Weight of the query that predicts a word, in the layers of the language model: on the patches of the digit",
        "that the word names, and on those of the other digit. Means over both words of 64 images.",
        "",
        "| layer | head | random parameters | its digit | the other digit |",
        "|---|---|---|---|---|",
    ]
    own, other = (_by_head(trained, digit) for digit in ("own", "other"))
    before = _by_head(untrained, "own")
    for layer, head in ((layer, head) for layer in range(own.shape[0]) for head in range(own.shape[1])):
        cells = (before[layer, head], own[layer, head], other[layer, head])
        lines.append(f"| {layer} | {head} | " + " | ".join(f"{cell:.0%}" for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _by_head(shares: Tensor, digit: str) -> Tensor:
    """The weight on the digit that a word names or on the other one, (layers, heads)."""
    return (shares[0, 0] + shares[1, 1]) / 2 if digit == "own" else (shares[0, 1] + shares[1, 0]) / 2


def draw(model: Any, image: Tensor, ids: Tensor, folder: Path) -> None:
    """Save the image, and where the queries of its two numbers attend in each layer of the language model."""
    imsave(folder / "digits.png", (image * STD + MEAN).clamp(0, 1).permute(1, 2, 0).numpy())
    with torch.no_grad(), record(model) as trace:
        model(input_ids=ids[None], pixel_values=image[None])
    picture = trace.on_image(image)
    for layer, name in enumerate(name for name in picture.layers if "language" in name):
        for word in (0, 2):
            found = picture.attends_to(name, ANSWER - 1 + word)
            on_image(found, columns=4).savefig(folder / f"{WORDS[ids[ANSWER + word]]}_layer_{layer}.png")


def main() -> None:
    """Train, measure, save and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("digits", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    digits, labels = read_digits(options.digits)
    pairs = torch.randint(0, HELD_OUT, (HELD_OUT, 2), generator=torch.Generator().manual_seed(3))
    held_out, answers = digits[-HELD_OUT:][pairs], make_ids(labels[-HELD_OUT:][pairs])
    images, corners = make_images(held_out, torch.Generator().manual_seed(2))
    model = make_model().eval()
    untrained = shares_on_digits(model, images[:64], answers[:64], corners[:64])
    known = digits[:-HELD_OUT], labels[:-HELD_OUT]
    train(model, lambda generator: loss_of_batch(model, *known, generator), options.steps, LEARNING_RATE)
    accuracy = (generate(model, images) == answers[:, ANSWER:]).all(1).float().mean().item()
    trained = shares_on_digits(model, images[:64], answers[:64], corners[:64])
    options.output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(options.output)
    save_processor(options.output)
    report = to_report(accuracy, untrained, trained)
    (options.output / "attention_to_digits.md").write_text(report)
    print(report)
    draw(model, images[0], answers[0], options.output)


if __name__ == "__main__":
    main()
