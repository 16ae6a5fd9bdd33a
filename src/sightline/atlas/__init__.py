"""A head of any length as tiles that a map can show: numbers at every scale, each computed once."""

from sightline.atlas.atlas import HeadAtlas, Tile
from sightline.atlas.cache import ByteCache
from sightline.atlas.plan import TILE, ZoomPlan

__all__ = ["TILE", "ByteCache", "HeadAtlas", "Tile", "ZoomPlan"]
