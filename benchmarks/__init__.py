"""Benchmarks for developers of AttnScope, run in a checkout by `python -m benchmarks NAME`; not part of the wheel."""

NAMES = (
    "atlas",
    "generate",
    "train",
    "survey",
    "survey_merge",
    "checksums",
    "divergence",
    "kernels",
    "eviction_scores",
    "eviction",
    "publish",
    "publish_long",
    "publish_cost",
    "find_heads",
    "explorer",
    "retrieval",
    "video",
    "first_use",
)
