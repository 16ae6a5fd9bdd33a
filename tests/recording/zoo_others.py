"""Models that also have layers without softmax, and models that attend without the interface."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import PreTrainedModel

from tests.recording.exhibit import (
    BATCH,
    ENCODER,
    GROUPED,
    SPECIAL_TOKENS,
    TEXT,
    VISION,
    VOCABULARY,
    exhibit,
    image,
    image_and_text,
    noise,
)
from tests.recording.zoo_decoders import EXPERTS, GPT2, LATENT, LOCAL_EXPERTS, SHARED_EXPERTS, decoder
from tests.recording.zoo_encoders import BART, T5, encoder, sequences
from tests.recording.zoo_perception import SPEECH, SWIN, sound

LINEAR_THEN_FULL: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
CONVOLUTION_THEN_FULL: dict[str, Any] = GROUPED | {"layer_types": ["conv", "full_attention"]}
MAMBA: dict[str, Any] = {"mamba_d_state": 8, "mamba_dt_rank": 4}
MAMBA2: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8}
DELTA: dict[str, Any] = LINEAR_THEN_FULL | {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
KIMI: dict[str, Any] = LATENT | LINEAR_THEN_FULL | {"linear_head_dim": 8, "linear_num_heads": 4}
ZAMBA: dict[str, Any] = TEXT | {
    "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    "mamba_d_state": 8,
}
NEMOTRON: dict[str, Any] = GROUPED | {
    "layers_block_type": ["mamba", "attention", "mlp"],
    "ssm_state_size": 8,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "chunk_size": 8,
}
GRANITE4: dict[str, Any] = GROUPED | MAMBA2 | LOCAL_EXPERTS | {"attention_multiplier": 0.3}

BLOOM: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}
MPT: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
XGLM: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48}
XLNET: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
GPT_NEO: dict[str, Any] = SPECIAL_TOKENS | {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "window_size": 4,
    "attention_types": [[["global", "local"], 1]],
}
DEBERTA: dict[str, Any] = TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
SQUEEZEBERT: dict[str, Any] = TEXT | {"embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2}

SAM_VISION: dict[str, Any] = ENCODER | {
    "image_size": 16,
    "patch_size": 4,
    "output_channels": 16,
    "window_size": 2,
    "global_attn_indexes": [1],
    "num_pos_feats": 8,
    "mlp_dim": 48,
}
SAM_PROMPTS: dict[str, Any] = {"hidden_size": 16, "image_size": 16, "patch_size": 4, "mask_input_channels": 4}
SAM_MASKS: dict[str, Any] = {"hidden_size": 16, "mlp_dim": 24, "num_attention_heads": 2, "iou_head_hidden_dim": 16}


def image_and_points(model: PreTrainedModel) -> dict[str, Any]:
    """Two images, each with two points to look for."""
    return image(size=16) | {"input_points": noise(BATCH, 1, 2, 2).abs()}


hybrid = partial(decoder, layers=1)

HYBRID = (
    hybrid("Bamba", "bamba", "hybrid, GQA", **GROUPED, **MAMBA2, attn_layer_indices=[1]),
    hybrid("Falcon-H1", "falcon_h1", "hybrid, GQA", layers=2, **GROUPED, **MAMBA2, mamba_d_ssm=64),
    hybrid(
        "Granite 4",
        "granitemoehybrid",
        "hybrid, GQA, experts",
        **GRANITE4,
        shared_intermediate_size=24,
        layer_types=["mamba", "attention"],
    ),
    hybrid(
        "Jamba",
        "jamba",
        "hybrid, GQA, experts",
        **GROUPED,
        **MAMBA,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=4,
    ),
    hybrid("Kimi Linear", "kimi_linear", "hybrid, MLA, experts", **KIMI, **LOCAL_EXPERTS, moe_intermediate_size=24),
    hybrid("LFM2", "lfm2", "hybrid, GQA, QK norm", **CONVOLUTION_THEN_FULL, block_multiple_of=16),
    hybrid(
        "LFM2-MoE", "lfm2_moe", "hybrid, GQA, QK norm, experts", **CONVOLUTION_THEN_FULL, **EXPERTS, num_dense_layers=1
    ),
    hybrid("MiniMax", "minimax", "hybrid, GQA, experts", **GROUPED, **LOCAL_EXPERTS, **LINEAR_THEN_FULL, block_size=8),
    hybrid("Nemotron-H", "nemotron_h", "hybrid, GQA", **NEMOTRON),
    hybrid("OLMo Hybrid", "olmo_hybrid", "hybrid, GQA", **GROUPED, **DELTA),
    hybrid("Qwen3-Next", "qwen3_next", "hybrid, GQA, QK norm, experts", **GROUPED, **SHARED_EXPERTS, **DELTA),
    hybrid("Qwen3.5", "qwen3_5_text", "hybrid, GQA, QK norm", **GROUPED, **DELTA),
    hybrid(
        "RecurrentGemma",
        "recurrent_gemma",
        "hybrid, GQA, window",
        **GROUPED,
        attention_window_size=4,
        lru_width=32,
        block_types=["recurrent", "attention"],
    ),
    hybrid("Zamba2", "zamba2", "hybrid, shared weights", layers=2, **ZAMBA, n_mamba_heads=4, chunk_size=8),
)

PARTIAL = (
    sequences("LongT5", "longt5", "encoder, cross, position bias, window", **T5, local_radius=3),
    sequences("Pegasus-X", "pegasus_x", "encoder, cross, window", **BART, block_size=4, num_global_tokens=2),
    exhibit("GIT", "git", "vision", image_and_text, 4, "AutoModelForCausalLM", **TEXT, vision_config=VISION),
    exhibit(
        "SAM",
        "sam",
        "vision, cross",
        image_and_points,
        9,
        vision_config=SAM_VISION,
        prompt_encoder_config=SAM_PROMPTS,
        mask_decoder_config=SAM_MASKS,
    ),
    exhibit(
        "SigLIP",
        "siglip",
        "encoder, vision, attention of torch",
        image_and_text,
        5,
        text_config=TEXT,
        vision_config=VISION,
    ),
)

BYPASS = (
    decoder("BLOOM", "bloom", "ALiBi", **SPECIAL_TOKENS, **BLOOM),
    decoder("CodeGen", "codegen", "", **GPT2, rotary_dim=4),
    decoder("Falcon", "falcon", "one key head", **TEXT),
    decoder("GPT-J", "gptj", "", **GPT2, rotary_dim=4),
    decoder("GPT-Neo", "gpt_neo", "window", **GPT_NEO),
    decoder("MPT", "mpt", "ALiBi", **SPECIAL_TOKENS, **MPT),
    decoder("OpenAI GPT", "openai-gpt", "", **GPT2),
    decoder("XGLM", "xglm", "", **SPECIAL_TOKENS, **XGLM),
    encoder("BigBird", "big_bird", "encoder", **TEXT, attention_type="original_full"),
    encoder("DeBERTa", "deberta", "encoder, position bias", **DEBERTA),
    encoder("DeBERTa-v2", "deberta-v2", "encoder, position bias", **DEBERTA),
    encoder("I-BERT", "ibert", "encoder", **TEXT),
    encoder("Longformer", "longformer", "encoder, window", **TEXT, attention_window=4),
    encoder("MPNet", "mpnet", "encoder, position bias", **TEXT),
    encoder("RoFormer", "roformer", "encoder", **TEXT, embedding_size=32),
    encoder("SqueezeBERT", "squeezebert", "encoder", **SQUEEZEBERT),
    encoder("XLNet", "xlnet", "encoder, position bias", **XLNET),
    sequences(
        "LED",
        "led",
        "encoder, cross, window",
        **BART,
        attention_window=4,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
    ),
    exhibit("Swin V2", "swinv2", "encoder, vision, image windows", partial(image, size=16), 3, **SWIN),
    exhibit("WavLM", "wavlm", "encoder, sound, position bias", sound, **SPEECH),
)
