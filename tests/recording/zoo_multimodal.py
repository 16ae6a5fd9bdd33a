"""Models that look and read."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.recording.exhibit import (
    BATCH,
    ENCODER,
    GROUPED,
    LENGTH,
    MEMORY_LENGTH,
    TEXT,
    VISION,
    VOCABULARY,
    decoder_text,
    exhibit,
    image,
    image_and_text,
    noise,
    padding,
    text,
    words,
)
from tests.recording.zoo_decoders import GEMMA, LOCAL_EXPERTS, OPT

START, IMAGE, VIDEO, END = 98, 97, 96, 95  # tokens for the start, a part and the end of an image, and for a video
GRIDS = ((1, 4, 4), (1, 4, 2))  # frames, rows and columns of patches in two images: 4 and 2 tokens once merged
IMAGE_TOKENS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
LLAMA: dict[str, Any] = GROUPED | {"model_type": "llama"}
SMALL_IMAGE: dict[str, Any] = VISION | {"image_size": 8}  # 4 patches, each a token
PAIR: dict[str, Any] = {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16}
AXES: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
QWEN: dict[str, Any] = IMAGE_TOKENS | {"text_config": GROUPED | {"rope_parameters": AXES}}
QWEN2_VISION: dict[str, Any] = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4}
QWEN_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 32,
    "num_heads": 4,
    "patch_size": 4,
}
WINDOWED_QWEN_VISION: dict[str, Any] = QWEN_VISION | {"window_size": 8, "fullatt_block_indexes": [1]}
DEEP_QWEN_VISION: dict[str, Any] = QWEN_VISION | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
MLLAMA_VISION: dict[str, Any] = ENCODER | {
    "attention_heads": 4,
    "num_global_layers": 1,
    "image_size": 12,
    "patch_size": 4,
    "max_num_tiles": 2,
    "intermediate_layers_indices": [0],
    "vision_output_dim": 64,
    "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
}
LLAMA4_TEXT: dict[str, Any] = GROUPED | LOCAL_EXPERTS | {"intermediate_size_mlp": 48, "attention_chunk_size": 4}
LLAMA4_VISION: dict[str, Any] = VISION | {
    "image_size": 16,
    "intermediate_size": 128,
    "vision_output_dim": 32,
    "projector_input_dim": 32,
    "projector_output_dim": 32,
}
QFORMER: dict[str, Any] = TEXT | {"encoder_hidden_size": 32, "cross_attention_frequency": 2}
BLIP: dict[str, Any] = {
    "text_config": OPT | {"model_type": "opt"},
    "vision_config": VISION,
    "qformer_config": QFORMER,
    "num_query_tokens": 4,
    "image_token_index": IMAGE,
}
PIX2STRUCT_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
}
PIX2STRUCT_VISION: dict[str, Any] = ENCODER | {"patch_embed_hidden_size": 48, "d_kv": 8, "d_ff": 48, "seq_len": 16}


def text_around(*counts: int) -> dict[str, Any]:
    """Padded text in which each row holds so many tokens of an image, from its third token on."""
    inputs = text()
    tokens: Tensor = inputs["input_ids"]
    tokens[tokens >= END] -= END // 2
    for row, count in zip(tokens, counts, strict=True):
        row[1], row[2 : 2 + count], row[2 + count] = START, IMAGE, END
    return inputs | {"input_ids": tokens}


def image_in_text(model: PreTrainedModel | None = None, size: int = 8) -> dict[str, Any]:
    """Text around one image a row."""
    return text_around(4, 4) | image(size=size)


def image_with_types(model: PreTrainedModel) -> dict[str, Any]:
    """Text around one image a row, and which tokens are of the image."""
    inputs = image_in_text(size=16)
    return inputs | {"token_type_ids": (inputs["input_ids"] == IMAGE).long()}


def image_in_prefix(model: PreTrainedModel) -> dict[str, Any]:
    """Text around one image a row, the first seven tokens of which see each other."""
    inputs = image_in_text()
    return inputs | {"token_type_ids": (torch.arange(LENGTH) >= 7).long().expand(BATCH, -1)}


def image_lists_in_text(model: PreTrainedModel) -> dict[str, Any]:
    """Text around a list of one image a row."""
    return text_around(4, 4) | {"pixel_values": noise(BATCH, 1, 3, 8, 8)}


def image_in_text_and_question(model: PreTrainedModel) -> dict[str, Any]:
    """Text around one image a row, and another text that tells a Q-Former what to look for."""
    question = {"qformer_input_ids": words(MEMORY_LENGTH), "qformer_attention_mask": padding(MEMORY_LENGTH, 2)}
    return image_in_text(size=12) | question


def packed_images_in_text(model: PreTrainedModel) -> dict[str, Any]:
    """Text around two images of different shapes, whose patches are packed into one sequence."""
    inputs = text_around(4, 2)
    patches = sum(frames * rows * columns for frames, rows, columns in GRIDS)
    return inputs | {
        "pixel_values": noise(patches, 2 * 3 * 4 * 4),
        "image_grid_thw": torch.tensor(GRIDS),
        "mm_token_type_ids": (inputs["input_ids"] == IMAGE).long(),
    }


def tiles_and_text(model: PreTrainedModel) -> dict[str, Any]:
    """Text that may look at the tiles of an image: one row at two tiles, the other at a single one."""
    tiles = torch.zeros(BATCH, LENGTH, 1, 2, dtype=torch.long)
    tiles[0, 2:] = 1
    tiles[1, 3:, :, 0] = 1
    return text() | {
        "pixel_values": noise(BATCH, 1, 2, 3, 12, 12),
        "aspect_ratio_ids": torch.tensor([[2], [1]]),
        "aspect_ratio_mask": torch.tensor([[[1, 1]], [[1, 0]]]),
        "cross_attention_mask": tiles,
    }


def patches_to_text(model: PreTrainedModel) -> dict[str, Any]:
    """Patches that know their rows and columns, some of them padding, and text for a decoder."""
    places = torch.randint(1, 4, (BATCH, 9, 2), generator=torch.Generator().manual_seed(9))
    patches = torch.cat([places, noise(BATCH, 9, 48)], dim=-1)
    return decoder_text() | {"flattened_patches": patches, "attention_mask": padding(9, 3)}


pair = partial(exhibit, inputs=image_and_text, layers=4)
reader = partial(exhibit, inputs=image_in_text, layers=4, model_class="AutoModelForImageTextToText")
qwen = partial(reader, inputs=packed_images_in_text, layers=6, **QWEN)

MULTIMODAL = (
    pair("AltCLIP", "altclip", "encoder, vision", **PAIR),
    pair("Chinese-CLIP", "chinese_clip", "encoder, vision", **PAIR),
    pair("CLIP", "clip", "encoder, vision", **PAIR),
    pair("CLIPSeg", "clipseg", "encoder, vision", **PAIR),
    pair("MetaCLIP 2", "metaclip_2", "encoder, vision", **PAIR),
    pair("OWL-ViT", "owlvit", "encoder, vision", **PAIR),
    reader("BLIP-2", "blip-2", "vision, cross", inputs=partial(image_in_text, size=12), layers=7, **BLIP),
    reader(
        "Gemma 3 multimodal",
        "gemma3",
        "vision, GQA, window, both ways in images",
        inputs=image_with_types,
        text_config=GEMMA,
        vision_config=VISION | {"image_size": 16, "vision_use_head": False},
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=START,
        eoi_token_index=END,
    ),
    reader(
        "Idefics3",
        "idefics3",
        "vision, GQA",
        inputs=image_lists_in_text,
        text_config=LLAMA,
        vision_config=SMALL_IMAGE,
        image_token_id=IMAGE,
        scale_factor=1,
    ),
    reader("InstructBLIP", "instructblip", "vision, cross", inputs=image_in_text_and_question, layers=7, **BLIP),
    reader(
        "Llama 4 multimodal",
        "llama4",
        "vision, GQA, chunks, experts, is_causal missing",
        inputs=partial(image_in_text, size=16),
        text_config=LLAMA4_TEXT,
        vision_config=LLAMA4_VISION,
        image_token_index=IMAGE,
    ),
    reader(
        "LLaVA",
        "llava",
        "vision, GQA",
        text_config=LLAMA,
        image_token_index=IMAGE,
        vision_config=SMALL_IMAGE | {"model_type": "clip_vision_model"},
        vision_feature_layer=-1,
    ),
    reader(
        "Mllama",
        "mllama",
        "vision, cross, GQA, float mask, is_causal missing",
        inputs=tiles_and_text,
        layers=5,
        text_config=GROUPED | {"cross_attention_layers": [1]},
        vision_config=MLLAMA_VISION,
        image_token_index=IMAGE,
    ),
    reader(
        "PaliGemma",
        "paligemma",
        "vision, GQA, both ways in prefix",
        inputs=image_in_prefix,
        text_config=GROUPED | {"model_type": "gemma"},
        vision_config=SMALL_IMAGE | {"model_type": "siglip_vision_model", "vision_use_head": False},
        image_token_index=IMAGE,
        projection_dim=32,
        hidden_size=32,
    ),
    reader(
        "Pix2Struct",
        "pix2struct",
        "vision, cross, position bias",
        inputs=patches_to_text,
        layers=6,
        text_config=PIX2STRUCT_TEXT,
        vision_config=PIX2STRUCT_VISION,
    ),
    qwen("Qwen2-VL", "qwen2_vl", "packed vision, GQA, called again", vision_config=QWEN2_VISION),
    qwen("Qwen2.5-VL", "qwen2_5_vl", "packed vision, GQA, called again", layers=10, vision_config=WINDOWED_QWEN_VISION),
    qwen("Qwen3-VL", "qwen3_vl", "packed vision, GQA, called again", vision_config=DEEP_QWEN_VISION),
)
