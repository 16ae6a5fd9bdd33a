"""Encoders of images, videos and sounds, and models that listen and write."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.recording.exhibit import BATCH, ENCODER, VISION, VOCABULARY, decoder_text, exhibit, image, noise
from tests.recording.zoo_encoders import BART

SAMPLES, FRAMES, BANDS = 90, 26, 8
YOLOS: dict[str, Any] = VISION | {"image_size": [12, 12], "num_detection_tokens": 3}
SWIN: dict[str, Any] = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": 4,
}
SEGFORMER: dict[str, Any] = {
    "num_encoder_blocks": 2,
    "hidden_sizes": [8, 16],
    "num_attention_heads": [1, 2],
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "mlp_ratios": [2, 2],
}
RESNET: dict[str, Any] = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage2"],
}
VJEPA: dict[str, Any] = ENCODER | {
    "crop_size": 12,
    "patch_size": 4,
    "frames_per_clip": 4,
    "pred_hidden_size": 24,
    "pred_num_attention_heads": 2,
    "pred_num_hidden_layers": 1,
}
SPEECH: dict[str, Any] = ENCODER | {
    "conv_dim": [8, 8],
    "conv_kernel": [4, 3],
    "conv_stride": [3, 2],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 12,
}
SPECTROGRAM: dict[str, Any] = ENCODER | {
    "patch_size": 4,
    "frequency_stride": 4,
    "time_stride": 4,
    "max_length": FRAMES,
    "num_mel_bins": BANDS,
}
PARAKEET: dict[str, Any] = ENCODER | {
    "num_mel_bins": BANDS,
    "subsampling_factor": 2,
    "subsampling_conv_channels": 4,
    "conv_kernel_size": 3,
}
MOONSHINE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4,
    "pad_token_id": 0,
}


def ending_early(length: int) -> Tensor:
    """The mask of two sounds, the second of which ends early."""
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, length * 2 // 3 :] = 0
    return mask


def sound(model: PreTrainedModel | None = None, samples: int = SAMPLES) -> dict[str, Any]:
    """Two sounds of one length."""
    return {"input_values": noise(BATCH, samples)}


def padded_sound(model: PreTrainedModel) -> dict[str, Any]:
    """Two sounds, the second of which ends early."""
    return sound() | {"attention_mask": ending_early(SAMPLES)}


def sound_to_text(model: PreTrainedModel) -> dict[str, Any]:
    """Two sounds, long enough for wide convolutions, and text for a decoder."""
    return sound(samples=4000) | decoder_text()


def spectrogram(model: PreTrainedModel) -> dict[str, Any]:
    """The loudness of two sounds by time and frequency."""
    return {"input_values": noise(BATCH, FRAMES, BANDS)}


def padded_spectrogram(model: PreTrainedModel) -> dict[str, Any]:
    """The loudness of two sounds by time and frequency, the second of which ends early."""
    return {"input_features": noise(BATCH, FRAMES, BANDS), "attention_mask": ending_early(FRAMES)}


def padded_spectrogram_to_text(model: PreTrainedModel) -> dict[str, Any]:
    """The loudness of two sounds, one of which ends early, and text for a decoder."""
    return decoder_text() | padded_spectrogram(model)


def turned_spectrogram_to_text(model: PreTrainedModel) -> dict[str, Any]:
    """The loudness of two sounds by frequency and time, and text for a decoder."""
    return decoder_text() | {"input_features": noise(BATCH, BANDS, FRAMES)}


def video(model: PreTrainedModel, name: str = "pixel_values") -> dict[str, Any]:
    """Two videos of four small frames."""
    return {name: noise(BATCH, 4, 3, 12, 12)}


def video_to_encode(model: PreTrainedModel) -> dict[str, Any]:
    """Two videos, with no wish to predict others."""
    return video(model, "pixel_values_videos") | {"skip_predictor": True}


def images_of_two_sizes(model: PreTrainedModel) -> dict[str, Any]:
    """Two images, the second of which is narrower."""
    return image() | {"image_sizes": torch.tensor([[12, 12], [12, 8]])}


vision = partial(exhibit, inputs=image)
observer = partial(exhibit, inputs=sound)
writer = partial(exhibit, layers=6, model_class="AutoModelForSpeechSeq2Seq")

VISION_MODELS = (
    vision("AIMv2", "aimv2_vision_model", "encoder, vision", **VISION),
    vision("BEiT", "beit", "encoder, vision, float mask", **VISION, use_relative_position_bias=True),
    vision(
        "Conditional DETR",
        "conditional_detr",
        "encoder, vision, cross",
        inputs=partial(image, size=32),
        layers=6,
        **BART,
        backbone_config=RESNET,
        num_queries=5,
    ),
    vision("DeiT", "deit", "encoder, vision", **VISION),
    vision(
        "DETR",
        "detr",
        "encoder, vision, cross",
        inputs=partial(image, size=32),
        layers=6,
        **BART,
        backbone_config=RESNET,
        num_queries=5,
    ),
    vision("DINOv2", "dinov2", "encoder, vision", **VISION),
    vision("DINOv2 with registers", "dinov2_with_registers", "encoder, vision", **VISION),
    vision("DINOv3", "dinov3_vit", "encoder, vision", **VISION, num_register_tokens=2),
    vision("I-JEPA", "ijepa", "encoder, vision", **VISION),
    vision("MLCD", "mlcd_vision_model", "encoder, vision", **VISION),
    vision("Pixtral vision", "pixtral", "encoder, packed vision, float mask", inputs=images_of_two_sizes, **VISION),
    vision("SegFormer", "segformer", "encoder, vision, fewer keys", inputs=partial(image, size=16), **SEGFORMER),
    vision("SigLIP vision", "siglip_vision_model", "encoder, vision", **VISION, vision_use_head=False),
    vision(
        "Swin", "swin", "encoder, vision, float mask, image windows", inputs=partial(image, size=16), layers=3, **SWIN
    ),
    vision("V-JEPA 2", "vjepa2", "encoder, vision", inputs=video_to_encode, **VJEPA),
    vision("VideoMAE", "videomae", "encoder, vision", inputs=video, **VISION, num_frames=4),
    vision("ViT", "vit", "encoder, vision", **VISION),
    vision("ViT MSN", "vit_msn", "encoder, vision", **VISION),
    vision("ViViT", "vivit", "encoder, vision", inputs=video, **VISION, num_frames=4, tubelet_size=[2, 4, 4]),
    vision("YOLOS", "yolos", "encoder, vision", **YOLOS),
)

SOUND_MODELS = (
    observer(
        "Audio Spectrogram Transformer",
        "audio-spectrogram-transformer",
        "encoder, sound",
        inputs=spectrogram,
        **SPECTROGRAM,
    ),
    observer("Data2Vec audio", "data2vec-audio", "encoder, sound", **SPEECH),
    observer("HuBERT", "hubert", "encoder, sound", **SPEECH),
    observer("Parakeet", "parakeet_encoder", "encoder, sound, float mask", inputs=padded_spectrogram, **PARAKEET),
    observer("SEW", "sew", "encoder, sound", **SPEECH, squeeze_factor=2),
    observer("UniSpeech", "unispeech", "encoder, sound", **SPEECH),
    observer("Wav2Vec2", "wav2vec2", "encoder, sound", **SPEECH),
    observer(
        "Wav2Vec2 with padding",
        "wav2vec2",
        "encoder, sound",
        inputs=padded_sound,
        **SPEECH,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
    ),
    observer(
        "Wav2Vec2-BERT",
        "wav2vec2-bert",
        "encoder, sound, position bias",
        inputs=padded_spectrogram,
        **ENCODER,
        feature_projection_input_dim=BANDS,
        vocab_size=12,
    ),
    observer("Wav2Vec2-Conformer", "wav2vec2-conformer", "encoder, sound, position bias", **SPEECH),
    writer("Moonshine", "moonshine", "encoder, sound, cross", inputs=sound_to_text, **MOONSHINE),
    writer(
        "Speech2Text",
        "speech_to_text",
        "encoder, sound, cross",
        inputs=padded_spectrogram_to_text,
        **BART,
        input_feat_per_channel=BANDS,
        conv_channels=8,
        max_source_positions=64,
        max_target_positions=64,
    ),
    writer(
        "Whisper",
        "whisper",
        "encoder, sound, cross",
        inputs=turned_spectrogram_to_text,
        **BART,
        num_mel_bins=BANDS,
        max_source_positions=FRAMES // 2,
        max_target_positions=16,
        begin_suppress_tokens=[3],
    ),
)
