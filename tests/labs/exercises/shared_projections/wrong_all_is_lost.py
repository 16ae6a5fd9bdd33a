# kind: separate heads do add rank

from tests.labs.exercises.shared_projections.right_1 import as_one_head, gradient_of_w_o


def largest_rank(d: int, w: int, heads: int, shared: bool) -> int:
    return min(d, w)
