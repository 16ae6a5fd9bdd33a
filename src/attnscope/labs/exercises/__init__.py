"""The exercises, one per module, in teaching order.

The docstring of a module is the task. `STARTER` is the starter code, `SOLUTION` is our answer, `HINTS` are the hints in
order, and `check` tests an answer. `AFTERWARDS`, if present, is a remark for a correct answer.
"""

from typing import NamedTuple


class Effort(NamedTuple):
    """What an exercise takes: the lesson before it, its difficulty, and about how many minutes."""

    lesson: str
    difficulty: str
    minutes: int


EFFORT = {
    "attention": Effort("soft_lookup", "easy", 20),
    "softmax_gradient": Effort("dot_products", "medium", 25),
    "query_key_variance": Effort("division", "easy", 15),
    "scaling_rule": Effort("division", "easy", 20),
    "causal_mask": Effort("masks", "medium", 25),
    "cross_attention": Effort("masks", "easy", 20),
    "gradients_through_mask": Effort("masks", "hard", 30),
    "multi_head_attention": Effort("multi_head", "medium", 30),
    "shared_projections": Effort("multi_head", "hard", 40),
    "permutation_equivariance": Effort("positions", "medium", 25),
    "sinusoidal_positions": Effort("positions", "medium", 25),
    "rotary_positions": Effort("positions", "medium", 30),
    "layer_norm": Effort("block", "easy", 25),
    "transformer_block": Effort("block", "medium", 35),
    "gpt_generation": Effort("gpt", "hard", 60),
    "parameter_counting": Effort("gpt", "easy", 20),
    "flop_counting": Effort("recurrence", "medium", 25),
    "linear_attention": Effort("cost", "hard", 45),
    "reading_heads": Effort("trained_heads", "medium", 35),
    "sequence_reversal": Effort("build_gpt", "medium", 40),
}
"""In teaching order."""

NAMES = tuple(EFFORT)
