"""Reads shards with a model: in this process, or on Ray."""
