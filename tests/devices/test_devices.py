"""The test devices are strict: what a GPU refuses, they refuse, and what a GPU would wait for, they count."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.devices.fake_cuda import count_work, fake_cuda
from tests.devices.standin import Standins

EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention
BACKWARD = torch.ops.aten._scaled_dot_product_efficient_attention_backward
FLASH = torch.ops.aten._scaled_dot_product_flash_attention


def some(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).to("cuda")


def test_a_tensor_says_where_it_is_and_has_numbers() -> None:
    with torch.no_grad(), Standins():
        for device in ("cuda:0", "cuda:1", "mps:0"):
            one = torch.ones(3).to(device)
            assert str(one.device) == str((one + 1)[1:].device) == device
            assert (one + one).cpu().tolist() == [2.0, 2.0, 2.0]
        assert torch.ones(3).to("cuda").device == torch.arange(3, device="cuda").device == torch.device("cuda", 0)


@pytest.mark.parametrize("other", ["cpu", "cuda:1"])
def test_devices_do_not_mix(other: str) -> None:
    with torch.no_grad(), Standins(), pytest.raises(RuntimeError, match="one device"):
        torch.add(torch.ones(3).to("cuda:0"), torch.ones(3).to(other))


def test_mps_has_no_float64() -> None:
    with torch.no_grad(), Standins():
        assert torch.ones(3).to("cuda").double().dtype == torch.float64
        with pytest.raises(TypeError, match="no float64"):
            torch.ones(3).to("mps").double()


def test_lse_of_memory_efficient_attention_is_padded() -> None:
    with torch.no_grad(), Standins() as standins:
        query = some(1, 2, 40, 8)
        output, lse, *_ = EFFICIENT(query, query, query, None, True, 0.0, True)
        assert lse.shape == (1, 2, 64)
        assert (lse.cpu()[..., 40:] == math.inf).all()
        assert output.stride() == (640, 8, 16, 1)
        assert dict(standins.attention) == {"_scaled_dot_product_efficient_attention": 1}
    with fake_cuda():  # as torch itself says
        query = torch.empty(1, 2, 40, 8, device="cuda")
        output, lse, *_ = EFFICIENT(query, query, query, None, True, 0.0, True)
        assert lse.shape == (1, 2, 64)
        assert output.stride() == (640, 8, 16, 1)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (lambda q: EFFICIENT(q.double(), q.double(), q.double(), None, True), "float64"),
        (lambda q: EFFICIENT(q, q[:, :1], q[:, :1], None, True), "4 heads on 1"),
        (lambda q: EFFICIENT(q[..., :6], q[..., :6], q[..., :6], None, True), "head dim of 6"),
        (lambda q: EFFICIENT(q.mT, q.mT, q.mT, None, True), "last stride"),
        (lambda q: EFFICIENT(q[..., 1:5], q[..., 1:5], q[..., 1:5], None, True), "starts at"),
        (lambda q: EFFICIENT(q, q, q, q.new_zeros(1, 1, 8, 8), True), "bias"),
        (lambda q: EFFICIENT(q, q, q, q.new_zeros(1, 4, 8, 8).bfloat16(), True), "bias"),
        (lambda q: EFFICIENT(q, q, q, q.new_zeros(1, 4, 8, 9)[..., :8], True), "strides"),
        (lambda q: FLASH(q, q, q), "float32"),
        (lambda q: FLASH(*(q.bfloat16()[..., :6],) * 3), "head dim"),
        (lambda q: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q), "on the cpu"),
        (lambda q: backward_with(q, q.new_zeros(1, 4, 8)), "padded to 32"),
    ],
)
def test_attention_refuses_what_cuda_refuses(refused, reason: str) -> None:
    with torch.no_grad(), Standins():
        query = some(1, 4, 8, 8)
        with pytest.raises(RuntimeError, match=f"CUDA does not take .*{reason}"):
            refused(query)


def backward_with(query: Tensor, lse: Tensor) -> object:
    seed = torch.empty((), dtype=torch.long, device="cuda")
    return BACKWARD(query, query, query, query, None, query, lse, seed, seed, 0.0, [True, True, True, False])


def test_the_backward_reads_rows_of_the_output_that_are_heads_times_dim_apart() -> None:
    with torch.no_grad(), Standins():
        query = some(1, 2, 32, 8)
        output, lse, *_ = EFFICIENT(query, query, query, None, True)
        seed = torch.empty((), dtype=torch.long, device="cuda")
        right, wrong = (
            BACKWARD(query, query, query, query, None, one, lse, seed, seed, 0.0, [True, True, True, False])[0].cpu()
            for one in (output, output.contiguous())
        )
        assert right.isfinite().all()
        assert not torch.equal(right, wrong)


def test_flash_attention_is_causal_from_the_lower_right() -> None:
    with torch.no_grad(), Standins():
        query, key = some(1, 1, 2, 8, dtype=torch.bfloat16), torch.zeros(1, 1, 5, 8).bfloat16().to("cuda")
        value = torch.eye(5, 8).bfloat16()[None, None].to("cuda")
        output, *_ = FLASH(query, key, value, 0.0, True)
        assert (output.cpu()[0, 0, 0, :5] > 0).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        (lambda x: x + 1, 0),
        (lambda x: x[..., :3].sum(-1), 0),
        (lambda x: bool((x > 0).all()), 1),
        (lambda x: int(x.argmax()), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: torch.zeros(3).to("cuda"), 0),
    ],
)
def test_waits_are_counted(call, waits: int) -> None:
    with fake_cuda():
        _, work = count_work(lambda: call(torch.empty(4, 4, device="cuda")))
        assert work.waits.total() == waits
    with torch.no_grad(), Standins() as standins:
        tensor = torch.ones(4, 4).to("cuda")
        call(tensor)
        assert standins.waits.total() == waits


def test_kernels_and_bytes_are_counted() -> None:
    with fake_cuda():
        tensor = torch.empty(4, 4, device="cuda")
        _, work = count_work(lambda: (tensor[1:].mT + 1).exp_())
        assert dict(work.kernels) == {"add": 1, "exp_": 1}
        assert work.num_bytes == (12 + 12) * 4 + (12 + 12) * 4
        _, work = count_work(lambda: torch.ones(3) + 1)
        assert work.num_kernels == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")
def test_afterwards_there_is_no_such_device() -> None:
    with torch.no_grad(), Standins():
        held = torch.ones(3).to("cuda")
        _ = held[0]
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")
    with pytest.raises(RuntimeError, match="not linked with support for cuda"):
        _ = held[0]
