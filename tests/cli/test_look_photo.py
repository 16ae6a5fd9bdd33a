"""`attnscope look MODEL PHOTO ["QUESTION"]`, on small models with random parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    CLIPImageProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
)

from attnscope.cli.main import main
from attnscope.cli.photos import record_photo
from tests.cli.serving import Visitor
from tests.cli.test_picture import SETTINGS

SIZE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
WORDS = ("<pad>", "<unk>", "<image>", "USER", "What", "is", "this")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a vision transformer, a vision-language model, and a photo that is not square."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("desk")
    torch.manual_seed(0)
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **SIZE)).save_pretrained(folder / "vit")
    (folder / "vit" / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    pixels = np.random.default_rng(0).integers(0, 255, (20, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    save_llava(folder / "llava")
    return folder


def save_llava(folder: Path) -> None:
    """LLaVA with 4 x 4 patches of 16 x 16 pixels, a vocabulary of a few words, and a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    text = {**SIZE, "vocab_size": len(WORDS), "num_key_value_heads": 2, "model_type": "llama"}
    vision = {**SIZE, "image_size": 16, "patch_size": 4, "model_type": "clip_vision_model"}
    config = AutoConfig.for_model("llava", text_config=text, vision_config=vision, image_token_index=2)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", additional_special_tokens=["<image>"]
    )
    tokenizer.image_token = "<image>"
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    template = (
        "{% for message in messages %}USER {% for part in message.content %}"
        "{{ '<image> ' if part.type == 'image' else part.text }}{% endfor %}{% endfor %}"
    )
    LlavaProcessor(
        images, tokenizer, patch_size=4, vision_feature_select_strategy="default", chat_template=template,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip


def test_the_explorer_has_the_photo(desk: Path, visitor: Visitor) -> None:
    assert main(["look", str(desk / "vit"), str(desk / "photo.png"), "--no-browser"]) == 0
    session = json.loads(visitor.answers[0][1])
    assert [(trace["name"], trace["tokens"]) for trace in session["traces"]] == [("vit", 17)]


def test_a_question_is_part_of_the_text(desk: Path) -> None:
    trace = record_photo(str(desk / "llava"), str(desk / "photo.png"), "What is this")
    image = trace.on_image()
    (language,) = {trace.layer(name).shape[2] for name in image.layers if "language" in name}
    tokens = trace.tokens()
    assert tokens is not None
    assert len(tokens) == language
    assert [word.strip() for word in tokens if "image" not in word] == ["USER", "What", "is", "this"]
    found = image.attends_to(image.layers[-1], language - 1)
    assert found.grid == (1, 4, 4)
    assert found.box.left == pytest.approx(0.25)  # the middle of a photo twice as wide as high
    assert found.box.right == pytest.approx(0.75)


def test_an_answer_is_what_the_model_generates_after_the_question(desk: Path) -> None:
    arguments = (str(desk / "llava"), str(desk / "photo.png"), "What is this")
    asked, answered = (record_photo(*arguments, max_new_tokens=count) for count in (0, 3))
    layer = asked.on_image().layers[-1]
    before, after = asked.layer(layer).matrix().batch(0), answered.layer(layer).matrix().batch(0)
    length = before.shape[-1]
    assert length < after.shape[-1] <= length + 3
    torch.testing.assert_close(after[:, :length, :length], before[:, :, :], rtol=0, atol=1e-6)
    word = answered.on_image().attends_to(layer, after.shape[-1] - 1)
    assert word.grid == (1, 4, 4)
    text = answered.tokens()
    assert text is not None
    assert len(text) == after.shape[-1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["vit", "photo.png", "What is this"], "a question needs a vision-language model"),
        (["vit", "some text", "What is this"], "a QUESTION needs an image file"),
        (["vit", "photo.png", "--tokens", "3"], "--tokens is for a text"),
        (["vit", "photo.png", "--answer", "3"], "an answer needs a vision-language model"),
        (["vit", "photo.png", "--answer", "-3"], "--answer needs a number of at least 0"),
        (["vit", "some text", "--answer", "3"], "--answer needs an image file"),
    ],
)
def test_mistakes_are_one_line(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: list[str], message: str
) -> None:
    monkeypatch.chdir(desk)
    assert main(["look", *given, "--no-browser"]) == 2
    said = capsys.readouterr().err
    assert message in said.splitlines()[-1]
    assert "Traceback" not in said
