"""Partial results per shard, which can be merged and saved."""
