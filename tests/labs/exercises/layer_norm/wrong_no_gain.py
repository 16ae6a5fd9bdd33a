# kind: gain and shift unused
import torch

from tests.labs.exercises.layer_norm.right_1 import batch_norm


def layer_norm(x, gain, shift, epsilon=1e-5):
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon)
