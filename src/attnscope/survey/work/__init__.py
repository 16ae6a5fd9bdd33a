"""Shards through a model, by one process or by many."""
