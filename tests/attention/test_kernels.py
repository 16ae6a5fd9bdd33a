"""The private operators have the form that the fused engine was written for."""

import pytest
import torch

from attnscope.attention import kernels

FORWARD = (
    "aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., "
    "bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"
)
BACKWARD = (
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, "
    "Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, "
    "float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)"
)


def test_schemas_are_those_of_the_supported_torch() -> None:
    assert str(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default._schema) == FORWARD
    assert str(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default._schema) == BACKWARD


def test_causal_counts_from_the_upper_left() -> None:
    query, key = torch.zeros(1, 1, 2, 5), torch.zeros(1, 1, 5, 5)
    output, _ = kernels.flash(query, key, torch.eye(5)[None, None], causal=True, scale=1.0)
    torch.testing.assert_close(output[0, 0], torch.tensor([[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]]))


def test_a_row_without_keys_has_lse_zero_as_the_fused_engine_expects() -> None:
    mask = torch.full((1, 1, 1, 3), -torch.inf)
    output, lse = kernels.flash(*(torch.ones(1, 1, 3, 4),) * 3, causal=False, scale=1.0, mask=mask)
    assert (lse == 0.0).all()
    assert (output == 0.0).all()


def test_the_backward_takes_the_lse_of_the_whole_row() -> None:
    query, key, value = (torch.randn(1, 1, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    above = torch.randn(1, 1, 6, 4, dtype=torch.float64)
    (torch.softmax(query @ key.mT, -1) @ value).backward(above)
    with torch.no_grad():
        output, lse = kernels.flash(query, key, value, causal=False, scale=1.0)
        halves = [
            kernels.flash_backward(
                above, query, key[:, :, half], value[:, :, half], output, lse, causal=False, scale=1.0
            )
            for half in (slice(0, 2), slice(2, 6))
        ]
    torch.testing.assert_close(halves[0][0] + halves[1][0], query.grad)
    torch.testing.assert_close(torch.cat([halves[0][1], halves[1][1]], 2), key.grad)
    torch.testing.assert_close(torch.cat([halves[0][2], halves[1][2]], 2), value.grad)


@pytest.mark.parametrize("found", ["2.12.1", "2.14.0", "3.0.0+cu130"])
def test_another_torch_is_refused_by_version(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", found)
    with pytest.raises(ImportError, match=rf'this is torch {found[:4]}.*pip install "torch>=2.13,<2.14"'):
        kernels._check_torch()


@pytest.mark.parametrize("found", ["2.13.0", "2.13.0+cpu", "2.13.2a0+git1234"])
def test_builds_of_the_supported_torch_are_taken(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", found)
    kernels._check_torch()
