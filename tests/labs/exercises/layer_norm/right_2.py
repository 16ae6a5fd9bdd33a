"""torch's own, with what it refuses done by hand."""

import torch.nn.functional as F


def layer_norm(x, gain, shift, epsilon=1e-5):
    return F.layer_norm(x, x.shape[-1:], gain, shift, epsilon)


def batch_norm(x, gain, shift, running_mean, running_variance, training, momentum=0.1, epsilon=1e-5):
    running_mean, running_variance = running_mean.clone(), running_variance.clone()
    if training and len(x) == 1:
        running_mean.lerp_(x[0], momentum)
        return shift.expand_as(x).clone(), running_mean, running_variance * (1 - momentum)
    output = F.batch_norm(x, running_mean, running_variance, gain, shift, training, momentum, epsilon)
    return output, running_mean, running_variance
