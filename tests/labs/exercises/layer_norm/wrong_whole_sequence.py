# kind: over several rows at once
import torch

from tests.labs.exercises.layer_norm.right_1 import batch_norm


def layer_norm(x, gain, shift, epsilon=1e-5):
    dimensions = tuple(range(max(x.ndim - 2, 1), x.ndim))
    if x.ndim > 2:
        dimensions = (-2, -1)
    mean = x.mean(dimensions, keepdim=True)
    variance = x.var(dimensions, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon) * gain + shift
