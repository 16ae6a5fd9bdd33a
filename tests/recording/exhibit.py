"""What the zoo is made of: tiny random models of transformers, each with the inputs it is fed."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from scripts.compat import tested

Inputs = Callable[[PreTrainedModel], dict[str, Any]]

INTERFACE_SINCE = {
    "longt5": "5.15",
    "mt5": "5.15",
    "switch_transformers": "5.15",
    "t5": "5.15",
    "umt5": "5.15",
}
"""Model types, and the first version of transformers that computes their attention through its attention interface.
Older versions compute it in the model's own code, and `record` raises UnsupportedError."""

NOT_IN_OLDER = frozenset(
    [
        "altclip",
        "bamba",
        "blip-2",
        "blip_2_qformer",
        "conditional_detr",
        "ctrl",
        "dbrx",
        "detr",
        "diffllama",
        "falcon_h1",
        "instructblip",
        "jamba",
        "llama4",
        "owlvit",
        "persimmon",
        "pix2struct",
        "segformer",
        "stablelm",
        "swin",
        "vjepa2",
        "wav2vec2-bert",
        "wav2vec2-conformer",
        "zamba2",
    ]
)
"""Model types that transformers 5.0 cannot build or run at this size, or computes in code of their own, which `record`
refuses. Tests of them are skipped with every version older than the tested one."""
IS_OLDER = Version(transformers.__version__) < Version(tested("transformers"))

SOFTCAPPED = ("gemma2", "t5gemma", "vaultgemma")
"""Model types with softcapped scores, which SDPA does not compute; older versions of transformers choose it anyway."""

VOCABULARY = 99
FIRST_WORD = 3  # below are padding, beginning and end
LENGTH, DECODER_LENGTH, MEMORY_LENGTH = 13, 11, 7  # all different, so that a shape tells which tokens it is about
BATCH = 2

SPECIAL_TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TEXT: dict[str, Any] = ENCODER | SPECIAL_TOKENS | {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
GROUPED: dict[str, Any] = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
VISION: dict[str, Any] = ENCODER | {"image_size": 12, "patch_size": 4, "num_channels": 3}


@dataclass(frozen=True)
class Exhibit:
    """One architecture: how to build it tiny, what to feed it and what is special about its attention."""

    name: str
    """What people call it."""
    model_type: str
    """What its config calls it."""
    build: Callable[[], PreTrainedModel]
    """A model in float32 for evaluation, with one or two layers a stack, the same weights every time."""
    inputs: Inputs
    """The inputs for a model that `build` made, the same ones every time."""
    features: tuple[str, ...]
    """What is special about its attention."""
    attention_layers: int
    """How many times one forward pass takes the softmax of scores, with or without the interface."""


def make(model_type: str, model_class: str, options: dict[str, Any]) -> PreTrainedModel:
    """A model of a type with random weights, the same ones every time."""
    skip_unless_available(model_type)
    factory = getattr(transformers, model_class)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **deepcopy(options))
        model = factory.from_config(config) if model_class.startswith("Auto") else factory(config)
    if model_type in SOFTCAPPED:
        model.set_attn_implementation("eager")
    return randomized(model.eval())


def skip_unless_available(model_type: str) -> None:
    """Skip the test if this transformers is older than the model type, or than its use of the attention interface."""
    installed = transformers.__version__
    if IS_OLDER and (model_type not in CONFIG_MAPPING or model_type in NOT_IN_OLDER):
        pytest.skip(f"transformers {installed} does not have {model_type}, or not as the tested version has it")
    if not is_in_interface(model_type):
        pytest.skip(f"attention of {model_type} is in the interface since transformers {INTERFACE_SINCE[model_type]}")


def is_in_interface(model_type: str) -> bool:
    """Whether this transformers is new enough to compute the attention of a model type through its interface."""
    return Version(transformers.__version__) >= Version(INTERFACE_SINCE.get(model_type, "0"))


def randomized(model: PreTrainedModel) -> PreTrainedModel:
    """Redraw the matrices and shake the vectors of a model, so that its attention is far from uniform."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(1.3 * noise * parameter[0].numel() ** -0.5)
    return model


def exhibit(
    name: str,
    model_type: str,
    features: str,
    inputs: Inputs,
    layers: int = 2,
    model_class: str = "AutoModel",
    **options: Any,
) -> Exhibit:
    """An exhibit by its config's options; `features` are separated by commas."""
    build = partial(make, model_type, model_class, options)
    return Exhibit(name, model_type, build, inputs, tuple(features.split(", ")) if features else (), layers)


def words(length: int, seed: int = 5) -> Tensor:
    """Two rows of token numbers without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_WORD, VOCABULARY, (BATCH, length), generator=generator)


def noise(*shape: int, seed: int = 7) -> Tensor:
    """Normally distributed numbers for images, sounds and memories."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def padding(length: int, padded: int = 4) -> Tensor:
    """The mask of two rows, the second of which ends in padding."""
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, length - padded :] = 0
    return mask


def text(model: PreTrainedModel | None = None, length: int = LENGTH) -> dict[str, Any]:
    """Two rows of text, one padded at its right."""
    mask = padding(length)
    return {"input_ids": words(length) * mask, "attention_mask": mask}


def text_with_memory(model: PreTrainedModel) -> dict[str, Any]:
    """Text for a decoder, and what an encoder would have left for it."""
    memory = noise(BATCH, MEMORY_LENGTH, model.config.hidden_size)
    return text() | {"encoder_hidden_states": memory, "encoder_attention_mask": padding(MEMORY_LENGTH, 2)}


def decoder_text() -> dict[str, Any]:
    """The decoder's part of the inputs of an encoder and decoder."""
    mask = padding(DECODER_LENGTH, 3)
    return {"decoder_input_ids": words(DECODER_LENGTH, seed=6) * mask, "decoder_attention_mask": mask}


def text_to_text(model: PreTrainedModel) -> dict[str, Any]:
    """Text for an encoder and other text for its decoder."""
    return text() | decoder_text()


def image(model: PreTrainedModel | None = None, size: int = 12) -> dict[str, Any]:
    """Two square images."""
    return {"pixel_values": noise(BATCH, 3, size, size)}


def image_and_text(model: PreTrainedModel) -> dict[str, Any]:
    """Two images and two captions."""
    return image() | text()
