"""Attention on images: which positions are patches, and maps over them."""

from attnscope.images.attention import ImageAttention, ImageLayer, Sink
from attnscope.images.layout import Box, Layout, PatchGrid
from attnscope.images.patch_map import PatchMap
from attnscope.images.photo import Photo, open_photo

__all__ = ["Box", "ImageAttention", "ImageLayer", "Layout", "PatchGrid", "PatchMap", "Photo", "Sink", "open_photo"]
