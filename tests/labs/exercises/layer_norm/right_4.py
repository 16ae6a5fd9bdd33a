import torch
import torch.nn.functional as F


def layer_norm(x, gain, shift, epsilon=1e-5):
    return F.layer_norm(x, x.shape[-1:], gain, shift, epsilon)


def batch_norm(x, gain, shift, running_mean, running_variance, training, momentum=0.1, epsilon=1e-5):
    if training:
        m = x.sum(0) / len(x)
        v = ((x - m) ** 2).sum(0) / len(x)
        keep = torch.lerp(running_mean, m, momentum), torch.lerp(running_variance, v, momentum)
    else:
        m, v = keep = running_mean, running_variance
    return (x - m) * gain * torch.rsqrt(v + epsilon) + shift, *keep
