"""Benchmarks for developers of AttnScope, run in a checkout by `python -m benchmarks NAME`; not part of the wheel."""

NAMES = ("atlas", "generate", "train", "survey", "checksums", "divergence", "kernels", "eviction_scores", "eviction")
