"""Text and tokens: tokenizers, chat templates, and text that stops where it should."""

from attnscope.models.text.bpe import train_bpe
from attnscope.models.text.characters import CharacterTokenizer
from attnscope.models.text.chat import render_chat
from attnscope.models.text.codec import Codec, load_tokenizer
from attnscope.models.text.tokenizer import Tokenizer

__all__ = ["CharacterTokenizer", "Codec", "Tokenizer", "load_tokenizer", "render_chat", "train_bpe"]
