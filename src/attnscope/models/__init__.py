"""Transformers that can be read and that run trained weights: layers, three models, checkpoints, text, generation."""

from attnscope.models.checkpoint import load, save
from attnscope.models.decoder import Decoder, DecoderConfig
from attnscope.models.encoder import Encoder, EncoderConfig, mean_pooling
from attnscope.models.generate import generate, generate_tokens, stream
from attnscope.models.kv_cache import KVCache
from attnscope.models.layers import Block, FeedForward, MultiHeadAttention
from attnscope.models.sampling import GREEDY, Sampling
from attnscope.models.seq2seq import Seq2Seq, Seq2SeqConfig
from attnscope.models.text import CharacterTokenizer, Tokenizer, load_tokenizer, render_chat, train_bpe

__all__ = [
    "GREEDY",
    "Block",
    "CharacterTokenizer",
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "FeedForward",
    "KVCache",
    "MultiHeadAttention",
    "Sampling",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Tokenizer",
    "generate",
    "generate_tokens",
    "load",
    "load_tokenizer",
    "mean_pooling",
    "render_chat",
    "save",
    "stream",
    "train_bpe",
]
