"""Figures for a paper of matrices of any size: one head, one query, many heads; of heads over training; of numbers."""

from sightline.figures.bars import query_bars
from sightline.figures.curves import training_curves
from sightline.figures.grid import head_grid
from sightline.figures.heatmap import heatmap
from sightline.figures.lines import lines
from sightline.figures.named_bars import named_bars

__all__ = ["head_grid", "heatmap", "lines", "named_bars", "query_bars", "training_curves"]
