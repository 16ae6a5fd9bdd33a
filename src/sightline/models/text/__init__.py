"""Text and tokens: tokenizers, chat templates, and text that stops where it should."""

from sightline.models.text.bpe import train_bpe
from sightline.models.text.characters import CharacterTokenizer
from sightline.models.text.chat import render_chat
from sightline.models.text.codec import Codec, load_tokenizer
from sightline.models.text.tokenizer import Tokenizer

__all__ = ["CharacterTokenizer", "Codec", "Tokenizer", "load_tokenizer", "render_chat", "train_bpe"]
