"""Where attention is seen, and what is said about it there."""
