# kind: running values in training
import torch

from tests.labs.exercises.layer_norm.right_1 import layer_norm


def batch_norm(x, gain, shift, running_mean, running_variance, training, momentum=0.1, epsilon=1e-5):
    if training:
        mean, variance = running_mean, running_variance
        batch_mean, batch_variance = x.mean(0), x.var(0, correction=0)
        running_mean = (1 - momentum) * running_mean + momentum * batch_mean
        running_variance = (1 - momentum) * running_variance + momentum * batch_variance
    else:
        mean, variance = running_mean, running_variance
    old_mean, old_variance = mean, variance
    return (x - old_mean) / torch.sqrt(old_variance + epsilon) * gain + shift, running_mean, running_variance
