"""Figures for a paper of matrices of any size: one head, one query, many heads; and of heads over training."""

from sightline.figures.bars import query_bars
from sightline.figures.curves import training_curves
from sightline.figures.grid import head_grid
from sightline.figures.heatmap import heatmap

__all__ = ["head_grid", "heatmap", "query_bars", "training_curves"]
