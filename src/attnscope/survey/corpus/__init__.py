"""From files to batches of passages."""
