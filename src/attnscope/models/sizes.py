"""Published sizes, as data: what a name in a paper or on a model hub means in numbers."""

from attnscope.attention.rotary import Rotary
from attnscope.attention.rotary_scaling import Llama3Scaling
from attnscope.models.decoder import DecoderConfig
from attnscope.models.encoder import EncoderConfig
from attnscope.models.seq2seq import Seq2SeqConfig


def _gpt(width: int, depth: int, heads: int, *, max_length: int = 1024) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=50257, width=width, depth=depth, heads=heads, hidden=4 * width, max_length=max_length, dropout=0.1
    )


def _llama(*, base: float = 10000.0, scaling: Llama3Scaling | None = None, head_dim: int, **sizes) -> DecoderConfig:
    """The Llama family: rotary positions, RMSNorm, SwiGLU, no biases unless the sizes say otherwise."""
    common = {
        "positions": Rotary(dim=head_dim, layout="half", base=base, scaling=scaling),
        "norm": "rms",
        "activation": "silu",
        "gated": True,
        "query_key_value_bias": False,
        "output_bias": False,
        "feed_forward_bias": False,
    }
    return DecoderConfig(**(common | sizes), head_dim=head_dim)


def _bert(width: int, depth: int, heads: int) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=30522, width=width, depth=depth, heads=heads, hidden=4 * width, max_length=512, dropout=0.1
    )


DECODERS: dict[str, DecoderConfig] = {
    "gpt2-small": _gpt(768, 12, 12),
    "gpt2-medium": _gpt(1024, 24, 16),
    "gpt2-large": _gpt(1280, 36, 20),
    "gpt2-xl": _gpt(1600, 48, 25),
    "gpt3-175b": _gpt(12288, 96, 96, max_length=2048),  # every second layer of the original sees a pattern, not all
    "smollm2-135m": _llama(
        vocab_size=49152, width=576, depth=30, heads=9, key_heads=3, head_dim=64, hidden=1536, max_length=8192,
        base=100000.0,
    ),
    "smollm2-360m": _llama(
        vocab_size=49152, width=960, depth=32, heads=15, key_heads=5, head_dim=64, hidden=2560, max_length=8192,
        base=100000.0,
    ),
    "smollm2-1.7b": _llama(
        vocab_size=49152, width=2048, depth=24, heads=32, head_dim=64, hidden=8192, max_length=8192, base=130000.0
    ),
    "llama-2-7b": _llama(
        vocab_size=32000, width=4096, depth=32, heads=32, head_dim=128, hidden=11008, max_length=4096, tied=False
    ),
    "llama-3.2-1b": _llama(
        vocab_size=128256, width=2048, depth=16, heads=32, key_heads=8, head_dim=64, hidden=8192, max_length=131072,
        base=500000.0, scaling=Llama3Scaling(factor=32.0, original_length=8192),
    ),
    "llama-3.1-8b": _llama(
        vocab_size=128256, width=4096, depth=32, heads=32, key_heads=8, head_dim=128, hidden=14336, max_length=131072,
        base=500000.0, scaling=Llama3Scaling(factor=8.0, original_length=8192), tied=False,
    ),
    "llama-3.1-70b": _llama(
        vocab_size=128256, width=8192, depth=80, heads=64, key_heads=8, head_dim=128, hidden=28672, max_length=131072,
        base=500000.0, scaling=Llama3Scaling(factor=8.0, original_length=8192), tied=False,
    ),
    "mistral-7b": _llama(
        vocab_size=32000, width=4096, depth=32, heads=32, key_heads=8, head_dim=128, hidden=14336, max_length=32768,
        windows=(4096,) * 32, tied=False,
    ),
    "qwen2.5-0.5b": _llama(
        vocab_size=151936, width=896, depth=24, heads=14, key_heads=2, head_dim=64, hidden=4864, max_length=32768,
        base=1000000.0, norm_eps=1e-6, query_key_value_bias=True,
    ),
    "qwen3-0.6b": _llama(
        vocab_size=151936, width=1024, depth=28, heads=16, key_heads=8, head_dim=128, hidden=3072, max_length=40960,
        base=1000000.0, norm_eps=1e-6, head_norm=True,
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
    "transformer-base": Seq2SeqConfig(vocab_size=37000, width=512, depth=6, heads=8, hidden=2048, dropout=0.1),
    "transformer-big": Seq2SeqConfig(vocab_size=37000, width=1024, depth=6, heads=16, hidden=4096, dropout=0.3),
}
"""The two of 2017."""
