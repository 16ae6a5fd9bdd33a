"""Checkpoints: models from the files of others, and back."""

from attnscope.models.checkpoint.gguf_file import read_metadata
from attnscope.models.checkpoint.loading import load
from attnscope.models.checkpoint.saving import save
from attnscope.models.checkpoint.source import locate

__all__ = ["load", "locate", "read_metadata", "save"]
