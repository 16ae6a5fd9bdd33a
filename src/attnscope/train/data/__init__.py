"""Training data: from files to batches."""

from attnscope.train.data.datasets import TextDataset, ValidationDataset
from attnscope.train.data.documents import read_documents
from attnscope.train.data.tokens import Tokens, open_tokens, train_validation_split, write_tokens

__all__ = [
    "TextDataset",
    "Tokens",
    "ValidationDataset",
    "open_tokens",
    "read_documents",
    "train_validation_split",
    "write_tokens",
]
