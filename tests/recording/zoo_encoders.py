"""Encoders of text, and encoders with a decoder."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from tests.recording.exhibit import (
    BATCH,
    LENGTH,
    SPECIAL_TOKENS,
    TEXT,
    VOCABULARY,
    exhibit,
    noise,
    text,
    text_to_text,
    text_with_memory,
)
from tests.recording.zoo_decoders import GEMMA

DISTILBERT: dict[str, Any] = SPECIAL_TOKENS | {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "hidden_dim": 48,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 64,
}
MOBILEBERT: dict[str, Any] = TEXT | {
    "embedding_size": 16,
    "intra_bottleneck_size": 32,
    "true_hidden_size": 32,
    "normalization_type": "layer_norm",
}
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
BART: dict[str, Any] = SPECIAL_TOKENS | {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
ALBERT: dict[str, Any] = TEXT | {"num_hidden_layers": 3, "embedding_size": 16}
CLS_TOKENS: dict[str, Any] = {"cls_token_id": 1, "sep_token_id": 2}


def text_on_a_page(model: PreTrainedModel) -> dict[str, Any]:
    """Text whose words have places on a page."""
    corners = torch.randint(0, 10, (BATCH, LENGTH, 2), generator=torch.Generator().manual_seed(9))
    return text() | {"bbox": torch.cat([corners, corners + 5], dim=-1)}


def queries_with_memory(model: PreTrainedModel) -> dict[str, Any]:
    """Five queries for a Q-Former, and an image that a vision tower would have left for it."""
    return {"query_embeds": noise(BATCH, 5, 32, seed=8), "encoder_hidden_states": noise(BATCH, 10, 32)}


encoder = partial(exhibit, inputs=text)
sequences = partial(exhibit, inputs=text_to_text, layers=6, model_class="AutoModelForSeq2SeqLM")

ENCODERS = (
    encoder("ALBERT", "albert", "encoder, called again", layers=3, **ALBERT),
    encoder("ALIGN text", "align_text_model", "encoder, is_causal missing", model_class="AlignTextModel", **TEXT),
    encoder("BERT", "bert", "encoder", **TEXT),
    encoder(
        "BERT with cross-attention",
        "bert",
        "cross",
        inputs=text_with_memory,
        layers=4,
        model_class="AutoModelForCausalLM",
        **TEXT,
        is_decoder=True,
        add_cross_attention=True,
    ),
    encoder("CamemBERT", "camembert", "encoder", **TEXT),
    encoder("CLAP text", "clap_text_model", "encoder, is_causal missing", model_class="ClapTextModel", **TEXT),
    encoder("Data2Vec text", "data2vec-text", "encoder", **TEXT),
    encoder("DistilBERT", "distilbert", "encoder", **DISTILBERT),
    encoder("ELECTRA", "electra", "encoder", **TEXT, embedding_size=16),
    encoder("ERNIE", "ernie", "encoder", **TEXT),
    encoder("ESM", "esm", "encoder", **TEXT, mask_token_id=3, position_embedding_type="rotary"),
    encoder("EuroBERT", "eurobert", "encoder, GQA", **TEXT, mask_token_id=3, num_key_value_heads=2),
    encoder("Gemma 3 both ways", "gemma3_text", "encoder, GQA, window", **GEMMA, use_bidirectional_attention=True),
    encoder("GTE", "gte", "encoder", **TEXT),
    encoder("Jina v3", "jina_embeddings_v3", "encoder", **TEXT),
    encoder(
        "LayoutLM",
        "layoutlm",
        "encoder, float mask, is_causal missing",
        inputs=text_on_a_page,
        **TEXT,
        max_2d_position_embeddings=64,
    ),
    encoder(
        "MarkupLM", "markuplm", "encoder, float mask, is_causal missing", **TEXT, max_depth=4, xpath_unit_hidden_size=4
    ),
    encoder("MobileBERT", "mobilebert", "encoder", **MOBILEBERT),
    encoder(
        "ModernBERT",
        "modernbert",
        "encoder, window",
        **TEXT,
        **CLS_TOKENS,
        local_attention=4,
        layer_types=["sliding_attention", "full_attention"],
    ),
    encoder("NomicBERT", "nomic_bert", "encoder", **TEXT),
    encoder(
        "Q-Former",
        "blip_2_qformer",
        "encoder, cross",
        inputs=queries_with_memory,
        layers=3,
        model_class="Blip2QFormerModel",
        **TEXT,
        encoder_hidden_size=32,
        cross_attention_frequency=2,
    ),
    encoder("RoBERTa", "roberta", "encoder", **TEXT),
    encoder("SigLIP text", "siglip_text_model", "encoder", model_class="SiglipTextModel", **TEXT),
    encoder("Splinter", "splinter", "encoder, is_causal missing", **TEXT, question_token_id=3),
    encoder("X-MOD", "xmod", "encoder", **TEXT, languages=["en_XX"], default_language="en_XX"),
    encoder("XLM-RoBERTa", "xlm-roberta", "encoder", **TEXT),
)

SEQUENCES = (
    sequences("BART", "bart", "encoder, cross", **BART),
    sequences("Blenderbot", "blenderbot", "encoder, cross", **BART),
    sequences("M2M-100", "m2m_100", "encoder, cross", **BART),
    sequences("Marian", "marian", "encoder, cross", **BART),
    sequences("mBART", "mbart", "encoder, cross", **BART),
    sequences("mT5", "mt5", "encoder, cross, position bias", **T5),
    sequences("NLLB-MoE", "nllb-moe", "encoder, cross, experts", **BART, num_experts=4, expert_capacity=8),
    sequences("Pegasus", "pegasus", "encoder, cross", **BART),
    sequences("PLBart", "plbart", "encoder, cross", **BART),
    sequences(
        "Switch Transformers",
        "switch_transformers",
        "encoder, cross, position bias, float mask, experts",
        **T5,
        num_experts=4,
    ),
    sequences("T5", "t5", "encoder, cross, position bias", **T5),
    sequences("T5Gemma", "t5gemma", "encoder, cross, GQA, softcap, window", encoder=GEMMA, decoder=GEMMA),
    sequences("UMT5", "umt5", "encoder, cross, position bias", **T5),
)
