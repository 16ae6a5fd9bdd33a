"""Loops over rows and columns, and einsum for sums of squares."""

import torch


def normalised(numbers, epsilon):
    centred = numbers - numbers.sum() / len(numbers)
    variance = torch.einsum("i,i->", centred, centred) / len(numbers)
    return centred * (variance + epsilon).rsqrt(), numbers.sum() / len(numbers), variance


def layer_norm(x, gain, shift, epsilon=1e-5):
    rows = [normalised(row, epsilon)[0] for row in x.reshape(-1, x.shape[-1])]
    return torch.addcmul(shift, torch.stack(rows).view(x.shape), gain)


def batch_norm(x, gain, shift, running_mean, running_variance, training, momentum=0.1, epsilon=1e-5):
    columns, means, variances = [], [], []
    for column in range(x.shape[1]):
        values, mean, variance = x[:, column], running_mean[column], running_variance[column]
        if training:
            values, batch_mean, batch_variance = normalised(values, epsilon)
            mean = mean + momentum * (batch_mean - mean)
            variance = variance + momentum * (batch_variance - variance)
        else:
            values = (values - mean) / (variance + epsilon) ** 0.5
        columns.append(gain[column] * values + shift[column])
        means.append(mean)
        variances.append(variance)
    return torch.stack(columns, dim=1), torch.stack(means), torch.stack(variances)
