"""Text and tokens: tokenizers, chat templates, and text that stops where it should."""

from attnscope.models.text.any_tokenizer import AnyTokenizer, load_tokenizer
from attnscope.models.text.bpe import train_bpe
from attnscope.models.text.character_tokenizer import CharacterTokenizer
from attnscope.models.text.chat_template import render_chat
from attnscope.models.text.tokenizer import Tokenizer

__all__ = ["AnyTokenizer", "CharacterTokenizer", "Tokenizer", "load_tokenizer", "render_chat", "train_bpe"]
