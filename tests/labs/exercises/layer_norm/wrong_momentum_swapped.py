# kind: momentum the wrong way round
import torch

from tests.labs.exercises.layer_norm.right_1 import layer_norm


def batch_norm(x, gain, shift, running_mean, running_variance, training, momentum=0.1, epsilon=1e-5):
    if training:
        mean, variance = x.mean(0), x.var(0, correction=0)
        running_mean = momentum * running_mean + (1 - momentum) * mean
        running_variance = (1 - momentum) * running_variance + momentum * variance
    else:
        mean, variance = running_mean, running_variance
    return (x - mean) / torch.sqrt(variance + epsilon) * gain + shift, running_mean, running_variance
