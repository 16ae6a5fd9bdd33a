"""A head as a page in one file."""
