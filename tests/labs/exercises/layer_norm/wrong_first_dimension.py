# kind: over the batch
import torch

from tests.labs.exercises.layer_norm.right_1 import batch_norm


def layer_norm(x, gain, shift, epsilon=1e-5):
    mean = x.mean(0, keepdim=True)
    variance = x.var(0, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon) * gain + shift
