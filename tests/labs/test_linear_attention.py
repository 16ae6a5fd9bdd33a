"""The read-out and the feature map of the lab on linear attention."""

from __future__ import annotations

import torch

from attnscope.labs.experiments.linear_attention import nearest, random_features, recall


def test_random_features_approximate_the_exponential_of_the_scaled_dot_product() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 20, 4, generator=generator)
    exact = (query @ key.T / 2).exp()
    errors = {}
    for count in (100, 100_000):
        phi = random_features(4, count, generator)
        errors[count] = float(((phi(query) @ phi(key).T - exact) / exact).abs().mean())
    assert errors[100_000] < 0.1 < errors[100]


def test_a_small_deviation_from_the_mean_is_recalled_although_another_value_is_closer() -> None:
    value = torch.nn.functional.normalize(torch.randn(8, 16, generator=torch.Generator().manual_seed(1)), dim=-1)
    output = value.mean(0) + 0.01 * (value - value.mean(0))
    assert recall(output, value) == 1.0
    assert nearest(output, value) < 0.5
    assert recall(output.roll(1, dims=0), value) == 0.0
