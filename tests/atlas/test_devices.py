"""The pyramid of a head whose matrix is on a device without float64."""

import numpy as np
import torch

from attnscope import AttentionMatrix, Causal
from attnscope.atlas.plan import ZoomPlan
from attnscope.atlas.pyramid import Pyramid
from tests.devices.standin import Standins


def build(matrix: AttentionMatrix) -> Pyramid:
    pyramid = Pyramid(ZoomPlan(*matrix.shape))
    while not pyramid.step(matrix, lambda share: None, lambda: False):
        pass
    return pyramid


def test_a_pyramid_is_built_on_a_device_without_float64() -> None:
    torch.manual_seed(0)
    matrix = AttentionMatrix(torch.randn(600, 4), torch.randn(600, 4), mask=Causal())
    expected = build(matrix)
    with torch.no_grad(), Standins():
        found = build(matrix.to("mps"))
    for name in ("entropy", "received"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-5)
