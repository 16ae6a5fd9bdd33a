"""Configs of published models, by the name they have in papers or on the Hub."""

from attnscope.attention.rotary import Rotary
from attnscope.attention.rotary_scaling import Llama3Scaling
from attnscope.models.decoder import DecoderConfig
from attnscope.models.encoder import EncoderConfig
from attnscope.models.seq2seq import Seq2SeqConfig


def _gpt(hidden_size: int, num_layers: int, num_heads: int, *, max_position_embeddings: int = 1024) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=50257,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=max_position_embeddings,
        dropout=0.1,
    )


def _llama(*, base: float = 10000.0, scaling: Llama3Scaling | None = None, head_dim: int, **sizes) -> DecoderConfig:
    """The Llama family: rotary positions, RMSNorm, SwiGLU, no biases unless `sizes` has them."""
    common = {
        "position_encoding": Rotary(dim=head_dim, layout="half", base=base, scaling=scaling),
        "norm": "rms",
        "activation": "silu",
        "gated": True,
        "qkv_bias": False,
        "output_bias": False,
        "feed_forward_bias": False,
    }
    return DecoderConfig(**(common | sizes), head_dim=head_dim)


def _bert(hidden_size: int, num_layers: int, num_heads: int) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=30522,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=512,
        dropout=0.1,
    )


DECODERS: dict[str, DecoderConfig] = {
    "gpt2-small": _gpt(768, 12, 12),
    "gpt2-medium": _gpt(1024, 24, 16),
    "gpt2-large": _gpt(1280, 36, 20),
    "gpt2-xl": _gpt(1600, 48, 25),
    "gpt3-175b": _gpt(12288, 96, 96, max_position_embeddings=2048),  # the original has sparse layers
    "smollm2-135m": _llama(
        vocab_size=49152, hidden_size=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
        intermediate_size=1536, max_position_embeddings=8192,
        base=100000.0,
    ),
    "smollm2-360m": _llama(
        vocab_size=49152, hidden_size=960, num_layers=32, num_heads=15, num_kv_heads=5, head_dim=64,
        intermediate_size=2560, max_position_embeddings=8192,
        base=100000.0,
    ),
    "smollm2-1.7b": _llama(
        vocab_size=49152, hidden_size=2048, num_layers=24, num_heads=32, head_dim=64, intermediate_size=8192,
        max_position_embeddings=8192, base=130000.0
    ),
    "llama-2-7b": _llama(
        vocab_size=32000, hidden_size=4096, num_layers=32, num_heads=32, head_dim=128, intermediate_size=11008,
        max_position_embeddings=4096, tie_word_embeddings=False
    ),
    "llama-3.2-1b": _llama(
        vocab_size=128256, hidden_size=2048, num_layers=16, num_heads=32, num_kv_heads=8, head_dim=64,
        intermediate_size=8192, max_position_embeddings=131072,
        base=500000.0, scaling=Llama3Scaling(factor=32.0, original_length=8192),
    ),
    "llama-3.1-8b": _llama(
        vocab_size=128256, hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
        intermediate_size=14336, max_position_embeddings=131072,
        base=500000.0, scaling=Llama3Scaling(factor=8.0, original_length=8192), tie_word_embeddings=False,
    ),
    "llama-3.1-70b": _llama(
        vocab_size=128256, hidden_size=8192, num_layers=80, num_heads=64, num_kv_heads=8, head_dim=128,
        intermediate_size=28672, max_position_embeddings=131072,
        base=500000.0, scaling=Llama3Scaling(factor=8.0, original_length=8192), tie_word_embeddings=False,
    ),
    "mistral-7b": _llama(
        vocab_size=32000, hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
        intermediate_size=14336, max_position_embeddings=32768,
        sliding_windows=(4096,) * 32, tie_word_embeddings=False,
    ),
    "qwen2.5-0.5b": _llama(
        vocab_size=151936, hidden_size=896, num_layers=24, num_heads=14, num_kv_heads=2, head_dim=64,
        intermediate_size=4864, max_position_embeddings=32768,
        base=1000000.0, norm_eps=1e-6, qkv_bias=True,
    ),
    "qwen3-0.6b": _llama(
        vocab_size=151936, hidden_size=1024, num_layers=28, num_heads=16, num_kv_heads=8, head_dim=128,
        intermediate_size=3072, max_position_embeddings=40960,
        base=1000000.0, norm_eps=1e-6, qk_norm=True,
    ),
}  # fmt: skip
"""Decoders by name."""

ENCODERS: dict[str, EncoderConfig] = {
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "minilm-l6": _bert(384, 6, 12),
}
"""Encoders by name."""

SEQ2SEQS: dict[str, Seq2SeqConfig] = {
    "transformer-base": Seq2SeqConfig(
        vocab_size=37000, hidden_size=512, num_layers=6, num_heads=8, intermediate_size=2048, dropout=0.1
    ),
    "transformer-big": Seq2SeqConfig(
        vocab_size=37000, hidden_size=1024, num_layers=6, num_heads=16, intermediate_size=4096, dropout=0.3
    ),
}
"""Encoder-decoders of Vaswani et al. 2017 by name."""
