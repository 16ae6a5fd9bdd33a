"""What is kept of an attention: matrices, statistics, or weights that were already there."""
