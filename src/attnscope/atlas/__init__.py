"""A head of any length as tiles that a map can show: numbers at every scale, each computed once."""

from attnscope.atlas.atlas import HeadAtlas, Tile
from attnscope.atlas.cache import ByteCache
from attnscope.atlas.plan import TILE_SIZE, ZoomPlan

__all__ = ["TILE_SIZE", "ByteCache", "HeadAtlas", "Tile", "ZoomPlan"]
