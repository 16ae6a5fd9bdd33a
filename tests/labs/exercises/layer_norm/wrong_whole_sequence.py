# kind: over several rows at once
import torch


def layer_norm(x, gain, shift, epsilon=1e-5):
    dimensions = tuple(range(max(x.ndim - 2, 1), x.ndim))
    if x.ndim > 2:
        dimensions = (-2, -1)
    mean = x.mean(dimensions, keepdim=True)
    variance = x.var(dimensions, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon) * gain + shift


def batch_norm(x, gain, shift, running_mean, running_variance, training, momentum=0.1, epsilon=1e-5):
    if training:
        mean, variance = x.mean(0), x.var(0, correction=0)
        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_variance = (1 - momentum) * running_variance + momentum * variance
    else:
        mean, variance = running_mean, running_variance
    return (x - mean) / torch.sqrt(variance + epsilon) * gain + shift, running_mean, running_variance
