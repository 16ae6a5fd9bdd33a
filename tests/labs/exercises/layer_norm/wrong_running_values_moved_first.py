# kind: running values in training
def layer_norm(x, gain, shift, epsilon=1e-5):
    m = x.mean(-1, keepdim=True)
    return (x - m) / (x.var(-1, keepdim=True, correction=0) + epsilon).sqrt() * gain + shift


def batch_norm(x, gain, shift, running_mean, running_variance, training, momentum=0.1, epsilon=1e-5):
    if training:
        running_mean = (1 - momentum) * running_mean + momentum * x.mean(0)
        running_variance = (1 - momentum) * running_variance + momentum * x.var(0, correction=0)
    return (x - running_mean) / (running_variance + epsilon).sqrt() * gain + shift, running_mean, running_variance
