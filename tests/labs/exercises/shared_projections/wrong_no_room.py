# kind: more than there is room for

from tests.labs.exercises.shared_projections.right_1 import as_one_head, gradient_of_w_o


def largest_rank(d: int, w: int, heads: int, shared: bool) -> int:
    return w if shared else heads * w
