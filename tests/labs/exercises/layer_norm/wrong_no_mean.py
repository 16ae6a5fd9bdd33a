# kind: the mean is not 0
import torch

from tests.labs.exercises.layer_norm.right_1 import batch_norm


def layer_norm(x, gain, shift, epsilon=1e-5):
    variance = x.var(-1, correction=0, keepdim=True)
    return x / torch.sqrt(variance + epsilon) * gain + shift
