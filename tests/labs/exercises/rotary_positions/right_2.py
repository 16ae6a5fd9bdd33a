import torch


def rotate(x, positions):
    width = x.shape[-1]
    angles = torch.outer(positions.double(), 10000.0 ** (-torch.arange(0, width, 2).double() / width))
    turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def scores(q, k, q_positions, k_positions):
    return torch.einsum("...nd,...md->...nm", rotate(q, q_positions), rotate(k, k_positions)) * q.shape[-1] ** -0.5


def relative_score(q, k, distance):
    return rotate(q[None], torch.tensor([-distance]))[0] @ k / len(k) ** 0.5
