"""Checkpoints: models from the files of others, and back."""

from sightline.models.checkpoint.gguf_file import read_metadata
from sightline.models.checkpoint.loading import load
from sightline.models.checkpoint.saving import save
from sightline.models.checkpoint.source import locate

__all__ = ["load", "locate", "read_metadata", "save"]
