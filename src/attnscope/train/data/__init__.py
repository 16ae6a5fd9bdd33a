"""From files to batches: documents, tokens on the disk, and windows of them in an order that needs no state."""

from attnscope.train.data.batches import EvaluationBatches, TextBatches
from attnscope.train.data.documents import read_documents
from attnscope.train.data.tokens import Tokens, open_tokens, split, write_tokens

__all__ = ["EvaluationBatches", "TextBatches", "Tokens", "open_tokens", "read_documents", "split", "write_tokens"]
