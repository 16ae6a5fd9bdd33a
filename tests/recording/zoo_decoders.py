"""Decoders of text."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.recording.exhibit import GROUPED, SPECIAL_TOKENS, TEXT, VOCABULARY, exhibit, text, text_with_memory

GPT2: dict[str, Any] = SPECIAL_TOKENS | {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
}
OPT: dict[str, Any] = TEXT | {"ffn_dim": 48, "word_embed_proj_dim": 32}
ROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
WINDOWS: dict[str, Any] = GROUPED | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA: dict[str, Any] = WINDOWS | {"query_pre_attn_scalar": 8}
PER_LAYER: dict[str, Any] = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8}
LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED_EXPERTS: dict[str, Any] = EXPERTS | {"shared_expert_intermediate_size": 24}
ROUTED_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT: dict[str, Any] = TEXT | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
ZERO_EXPERTS: dict[str, Any] = {"n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 2}
INDEXED: dict[str, Any] = LATENT | ROUTED_EXPERTS | {"index_topk": 4, "index_head_dim": 8, "index_n_heads": 2}
DBRX: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 64,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
}

decoder = partial(exhibit, inputs=text, model_class="AutoModelForCausalLM")

DECODERS = (
    decoder("AFMoE", "afmoe", "GQA, window, experts", **WINDOWS, **EXPERTS, num_dense_layers=1),
    decoder("Apertus", "apertus", "GQA, QK norm", **GROUPED, **ROPE),
    decoder("Arcee", "arcee", "GQA", **GROUPED),
    decoder("BERT for generation", "bert-generation", "", **TEXT, is_decoder=True),
    decoder("BioGPT", "biogpt", "", **TEXT),
    decoder("BitNet", "bitnet", "GQA", **GROUPED),
    decoder("Cohere", "cohere", "GQA", **GROUPED),
    decoder("Cohere2", "cohere2", "GQA, window", **WINDOWS),
    decoder("CTRL", "ctrl", "", **GPT2, dff=48),
    decoder("CWM", "cwm", "GQA, window", **WINDOWS, **ROPE),
    decoder("DBRX", "dbrx", "GQA, experts", **SPECIAL_TOKENS, **DBRX),
    decoder("DeepSeek-V2", "deepseek_v2", "MLA, experts", **LATENT, **ROUTED_EXPERTS),
    decoder("DeepSeek-V3", "deepseek_v3", "MLA, experts", **LATENT, **ROUTED_EXPERTS),
    decoder("DiffLlama", "diffllama", "GQA, called again", layers=4, **GROUPED),
    decoder("Doge", "doge", "GQA, float mask, is_causal missing", **GROUPED),
    decoder("Dots1", "dots1", "GQA, QK norm, experts", **GROUPED, **ROUTED_EXPERTS),
    decoder("ERNIE 4.5", "ernie4_5", "GQA", **GROUPED),
    decoder("EXAONE 4", "exaone4", "GQA, QK norm, window", **WINDOWS),
    decoder("Flint", "flint", "GQA, sinks, window, experts", **WINDOWS, **SHARED_EXPERTS),
    decoder("Gemma", "gemma", "GQA", **GROUPED),
    decoder("Gemma 2", "gemma2", "GQA, softcap, window", **GEMMA, attn_logit_softcapping=2.0),
    decoder("Gemma 3", "gemma3_text", "GQA, QK norm, window", **GEMMA),
    decoder(
        "Gemma 3n",
        "gemma3n_text",
        "GQA, QK norm, window",
        **GEMMA,
        **PER_LAYER,
        num_kv_shared_layers=0,
        laurel_rank=4,
        altup_num_inputs=2,
    ),
    decoder("Gemma 4", "gemma4_text", "GQA, QK norm, window", **WINDOWS, **PER_LAYER, global_head_dim=8),
    decoder("GLM", "glm", "GQA", **GROUPED),
    decoder("GLM-4", "glm4", "GQA", **GROUPED),
    decoder("GLM-4 MoE", "glm4_moe", "GQA, experts", **GROUPED, **ROUTED_EXPERTS),
    decoder("GPT-2", "gpt2", "", **GPT2),
    decoder(
        "GPT-2 with cross-attention",
        "gpt2",
        "cross",
        inputs=text_with_memory,
        layers=4,
        **GPT2,
        add_cross_attention=True,
    ),
    decoder("GPT-NeoX", "gpt_neox", "", **TEXT),
    decoder("gpt-oss", "gpt_oss", "GQA, sinks, window, experts", **WINDOWS, **LOCAL_EXPERTS, **ROPE),
    decoder("GPTBigCode", "gpt_bigcode", "one key head", **GPT2),
    decoder("Granite", "granite", "GQA", **GROUPED, attention_multiplier=0.3),
    decoder(
        "Granite with windows", "granite_swa", "GQA, sinks after weights, window", **WINDOWS, attention_multiplier=0.3
    ),
    decoder("GraniteMoE", "granitemoe", "GQA, experts", **GROUPED, **LOCAL_EXPERTS, attention_multiplier=0.3),
    decoder("Helium", "helium", "GQA", **GROUPED),
    decoder("HRM", "hrm_text", "called again", layers=12, **TEXT, head_dim=8, H_cycles=2, L_cycles=2),
    decoder("Hunyuan", "hunyuan_v1_dense", "GQA, QK norm", **GROUPED),
    decoder("JetMoE", "jetmoe", "experts", **TEXT, num_key_value_heads=2, kv_channels=8, num_local_experts=4),
    decoder("Llama", "llama", "GQA", **GROUPED),
    decoder(
        "Llama 4",
        "llama4_text",
        "GQA, chunks, experts",
        **GROUPED,
        **LOCAL_EXPERTS,
        attention_chunk_size=4,
        intermediate_size_mlp=48,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
    ),
    decoder("LongCat-Flash", "longcat_flash", "MLA, experts", **LATENT, **ZERO_EXPERTS, head_dim=4, num_layers=1),
    decoder("MiMo-V2-Flash", "mimo_v2_flash", "GQA, sinks, window, experts", **WINDOWS, **ROUTED_EXPERTS, v_head_dim=6),
    decoder("MiniCPM3", "minicpm3", "MLA", **LATENT),
    decoder("MiniMax-M2", "minimax_m2", "GQA, QK norm, experts", **GROUPED, **LOCAL_EXPERTS),
    decoder("Ministral", "ministral", "GQA, window", **WINDOWS),
    decoder("Mistral", "mistral", "GQA, window", **GROUPED, sliding_window=4),
    decoder("Mixtral", "mixtral", "GQA, experts", **GROUPED, **LOCAL_EXPERTS),
    decoder(
        "ModernBERT decoder",
        "modernbert-decoder",
        "window",
        **TEXT,
        cls_token_id=1,
        sep_token_id=2,
        local_attention=8,
        layer_types=["sliding_attention", "full_attention"],
    ),
    decoder("nanochat", "nanochat", "GQA, QK norm", **GROUPED),
    decoder("Nemotron", "nemotron", "GQA", **GROUPED),
    decoder("OLMo", "olmo", "GQA", **GROUPED),
    decoder("OLMo 2", "olmo2", "GQA, QK norm", **GROUPED),
    decoder("OLMo 3", "olmo3", "GQA, QK norm, window", **WINDOWS),
    decoder("OLMoE", "olmoe", "GQA, QK norm, experts", **GROUPED, **EXPERTS),
    decoder("OPT", "opt", "", **OPT),
    decoder("Persimmon", "persimmon", "QK norm", **TEXT),
    decoder("Phi", "phi", "", **TEXT),
    decoder("Phi-3", "phi3", "GQA, window", **GROUPED, sliding_window=4),
    decoder("Phi-3.5-MoE", "phimoe", "GQA, experts", **GROUPED, **LOCAL_EXPERTS),
    decoder("Qwen2", "qwen2", "GQA", **GROUPED),
    decoder("Qwen2 with windows", "qwen2", "GQA, window", **WINDOWS, use_sliding_window=True),
    decoder("Qwen2-MoE", "qwen2_moe", "GQA, experts", **GROUPED, **SHARED_EXPERTS),
    decoder("Qwen3", "qwen3", "GQA, QK norm", **GROUPED),
    decoder("Qwen3-MoE", "qwen3_moe", "GQA, QK norm, experts", **GROUPED, **EXPERTS),
    decoder("Seed-OSS", "seed_oss", "GQA", **GROUPED),
    decoder("SmolLM3", "smollm3", "GQA, window", **WINDOWS, use_sliding_window=True, no_rope_layers=[1, 0]),
    decoder("StableLM", "stablelm", "GQA", **GROUPED),
    decoder("StarCoder2", "starcoder2", "GQA, window", **GROUPED, sliding_window=4),
    decoder("VaultGemma", "vaultgemma", "GQA, softcap, window", **GEMMA, attn_logit_softcapping=2.0),
    decoder("Youtu", "youtu", "MLA", **LATENT),
)

SPARSE = (
    decoder("DeepSeek-V3.2", "deepseek_v32", "MLA, sparse, experts", **INDEXED, head_dim=4),
    decoder("GLM-5", "glm_moe_dsa", "MLA, sparse, experts", **INDEXED, head_dim=4),
    decoder("HY-V4", "hy_v4", "MLA, sparse, sinks, experts", **INDEXED),
)
