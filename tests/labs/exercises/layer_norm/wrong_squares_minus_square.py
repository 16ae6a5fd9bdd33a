# kind: digits lost
import torch

from tests.labs.exercises.layer_norm.right_1 import batch_norm


def layer_norm(x, gain, shift, epsilon=1e-5):
    mean = x.mean(-1, keepdim=True)
    variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return (x - mean) / torch.sqrt(variance + epsilon) * gain + shift
