"""Map tiles of one attention head, at any sequence length and every zoom level."""

from attnscope.atlas.atlas import HeadAtlas, Tile
from attnscope.atlas.cache import ByteCache
from attnscope.atlas.plan import TILE_SIZE, ZoomPlan

__all__ = ["TILE_SIZE", "ByteCache", "HeadAtlas", "Tile", "ZoomPlan"]
