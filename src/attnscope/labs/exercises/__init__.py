"""The exercises, one per module, in teaching order.

The docstring of a module is the task. `STARTER` is the starter code, `HINTS` are the hints in order, and `check` tests
an answer. `AFTERWARDS`, if present, is a remark for a correct answer.
"""

NAMES = (
    "attention",
    "scaling_rule",
    "query_key_variance",
    "causal_mask",
    "gradients_through_mask",
    "multi_head_attention",
    "shared_projections",
    "permutation_equivariance",
    "sequence_reversal",
    "flop_counting",
    "parameter_counting",
    "linear_attention",
    "layer_norm",
)
