# kind: over the columns
import torch

from tests.labs.exercises.layer_norm.right_1 import layer_norm


def batch_norm(x, gain, shift, running_mean, running_variance, training, momentum=0.1, epsilon=1e-5):
    dimension = 1 if training else 0
    mean, variance = x.mean(0), x.var(0, correction=0)
    if training:
        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_variance = (1 - momentum) * running_variance + momentum * variance
        mean = x.mean(dimension, keepdim=True)
        variance = x.var(dimension, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon) * gain + shift, running_mean, running_variance
