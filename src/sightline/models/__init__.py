"""Transformers that can be read and that run trained weights: layers, three models, checkpoints, text, generation."""

from sightline.models.cache import Cache
from sightline.models.checkpoint import load, save
from sightline.models.decoder import Decoder, DecoderConfig
from sightline.models.encoder import Encoder, EncoderConfig, mean_features
from sightline.models.generate import generate, generate_tokens, stream
from sightline.models.layers import Block, FeedForward, MultiHeadAttention
from sightline.models.sampling import GREEDY, Sampling
from sightline.models.seq2seq import Seq2Seq, Seq2SeqConfig
from sightline.models.text import CharacterTokenizer, Tokenizer, load_tokenizer, render_chat, train_bpe

__all__ = [
    "GREEDY",
    "Block",
    "Cache",
    "CharacterTokenizer",
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "FeedForward",
    "MultiHeadAttention",
    "Sampling",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Tokenizer",
    "generate",
    "generate_tokens",
    "load",
    "load_tokenizer",
    "mean_features",
    "render_chat",
    "save",
    "stream",
    "train_bpe",
]
