"""The exercises, one a module, and the order in which they teach.

The docstring of a module is the task, `STARTER` the code to begin with, `HINTS` what helps, one after the other, and
`check` what an answer has to stand. `AFTERWARDS` is there where something is worth saying once an answer is right.
"""

NAMES = (
    "attention",
    "scaling_rule",
    "query_key_variance",
    "causal_mask",
    "gradients_through_mask",
    "many_heads",
    "shared_projections",
    "equivariance",
    "reversal",
    "flop_counting",
    "parameter_counting",
    "linear_attention",
    "layer_norm",
)
