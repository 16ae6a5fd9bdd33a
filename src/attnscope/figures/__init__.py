"""Figures for papers: attention patterns of any size, scores over training, curves and bars."""

from attnscope.figures.bars import query_bars
from attnscope.figures.curves import training_curves
from attnscope.figures.grid import head_grid
from attnscope.figures.grouped_bars import grouped_bars
from attnscope.figures.heatmap import heatmap
from attnscope.figures.lines import lines
from attnscope.figures.on_image import on_image
from attnscope.figures.score_maps import score_maps

__all__ = [
    "grouped_bars",
    "head_grid",
    "heatmap",
    "lines",
    "on_image",
    "query_bars",
    "score_maps",
    "training_curves",
]
