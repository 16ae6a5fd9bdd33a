"""The open traces, by ids derived from their content, and what has been computed from them."""
