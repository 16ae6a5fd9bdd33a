import torch


def softmax(scores):
    return torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True))


def jacobian(scores):
    w = softmax(scores)
    result = -torch.einsum("...a,...b->...ab", w, w)
    result.diagonal(dim1=-2, dim2=-1).add_(w)
    return result


def loss_gradient(scores, target):
    rows = []
    for row, index in zip(scores, target.tolist(), strict=True):
        gradient = softmax(row)
        rows.append(torch.cat([gradient[:index], gradient[index : index + 1] - 1, gradient[index + 1 :]]))
    return torch.stack(rows)
