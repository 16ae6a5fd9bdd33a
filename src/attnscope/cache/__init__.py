"""KV-cache eviction: which key-value pairs a policy keeps, and what the model loses without the others."""

from attnscope.cache.budgets import recommend_budgets
from attnscope.cache.eviction import evicted
from attnscope.cache.kept_pairs import KeptPairs, PairScores, score_pairs
from attnscope.cache.measurement import EvictionReport, EvictionResult, measure_eviction
from attnscope.cache.policies import POLICIES

__all__ = [
    "POLICIES",
    "EvictionReport",
    "EvictionResult",
    "KeptPairs",
    "PairScores",
    "evicted",
    "measure_eviction",
    "recommend_budgets",
    "score_pairs",
]
