"""`attend` and `explain`: what is refused, what is planned, and that no path is quadratic in silence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnscope.attention import (
    ALiBi,
    Causal,
    Documents,
    Full,
    Mask,
    Padding,
    ScoreMod,
    Sinks,
    Softcap,
    Window,
    attend,
    from_bool,
    operation,
)
from attnscope.attention.operation import Backend
from attnscope.errors import ShapeError, UnsupportedError
from tests.largest import LargestTensor


def randoms(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.randn(*shape) for _ in range(3))
    return query, key, value


LENGTH = 3000
TRAPS: dict[str, tuple[tuple[int, ...], int, Mask, ScoreMod | None, float]] = {
    "plain": ((1, 1, LENGTH, 16), 16, Causal(), None, 0.0),
    "three dimensions": ((1, LENGTH, 16), 16, Full(), None, 0.0),
    "two dimensions": ((LENGTH, 16), 16, Causal(), None, 0.0),
    "wider values": ((1, 1, LENGTH, 16), 24, Causal(), None, 0.0),
    "narrower values": ((1, 1, LENGTH, 16), 8, Causal(), None, 0.0),
    "dropout": ((1, 1, LENGTH, 16), 16, Causal(), None, 0.1),
    "window": ((1, 1, LENGTH, 16), 16, Window(300), None, 0.0),
    "wide window": ((1, 1, LENGTH, 16), 16, Window(2500), None, 0.0),
    "documents": ((1, 1, LENGTH, 16), 16, Documents(torch.arange(LENGTH) // 700), None, 0.0),
    "many small documents": ((1, 1, LENGTH, 16), 16, Documents(torch.arange(LENGTH) // 7), None, 0.0),
    "scattered documents": ((1, 1, LENGTH, 16), 16, Documents(torch.arange(LENGTH) % 3), None, 0.0),
    "padding": ((1, 1, LENGTH, 16), 16, Causal() & Padding([2000]), None, 0.0),
    "scattered keys": ((1, 1, LENGTH, 16), 16, Causal() & Padding(keep=torch.arange(LENGTH)[None] % 3 > 0), None, 0.0),
    "softcap": ((1, 1, LENGTH, 16), 16, Causal(), Softcap(5.0), 0.0),
    "alibi": ((1, 1, LENGTH, 16), 16, Causal(), ALiBi(1), 0.0),
    "sinks": ((1, 1, LENGTH, 16), 16, Causal(), Sinks(torch.zeros(1)), 0.0),
}


@pytest.mark.parametrize("learning", [False, True], ids=["forward", "with gradients"])
@pytest.mark.parametrize("trap", TRAPS)
def test_no_path_is_quadratic(trap: str, learning: bool) -> None:
    shape, value_dim, mask, score, dropout = TRAPS[trap]
    query, key = torch.randn(shape, requires_grad=learning), torch.randn(shape, requires_grad=learning)
    value = torch.randn(*shape[:-1], value_dim, requires_grad=learning)
    with LargestTensor() as largest:
        output = attend(query, key, value, mask=mask, score_mod=score, dropout=dropout)
        if learning:
            output.sum().backward()
    assert largest.elements <= LENGTH * LENGTH / 4
    assert not any("attention_math" in name for name in largest.names)


def test_the_reference_is_seen_to_be_quadratic() -> None:
    with LargestTensor() as largest:
        attend(*randoms(1, 1, 300, 16), backend="reference")
    assert largest.elements >= 300 * 300


def test_a_quarter_million_tokens_behind_a_window_take_linear_memory() -> None:
    query, key, value = randoms(1, 1, 250_000, 8)
    with LargestTensor() as largest:
        output = attend(query, key, value, mask=Window(64))
    assert largest.elements < 30_000_000
    row = attend(query[:, :, -1:], key[:, :, -64:], value[:, :, -64:], backend="reference")
    torch.testing.assert_close(output[:, :, -1:], row)


def test_long_gradients_agree_between_the_backends() -> None:
    """At this size the kernel's blocks repeat and share columns, and sums run on all threads."""
    mask = Window(500) & Documents(torch.arange(6000) // 2900)
    above = torch.randn(1, 2, 6000, 16)
    found = []
    for backend in ("fused", "streaming"):
        torch.manual_seed(0)
        tensors = [tensor.requires_grad_() for tensor in randoms(1, 2, 6000, 16)]
        attend(*tensors, mask=mask, backend=backend).backward(above)
        found.append([tensor.grad for tensor in tensors])
    for fused, streamed in zip(*found, strict=True):
        torch.testing.assert_close(fused, streamed, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((3, 4), (4,), (3, 4)), r"number of dimensions.*got query \(3, 4\), key \(4,\)"),
        (((2, 5, 4), (2, 5, 3), (2, 5, 4)), r"same head dim.*query \(2, 5, 4\), key \(2, 5, 3\)"),
        (((2, 5, 4), (2, 5, 4), (2, 6, 4)), r"number of positions.*value \(2, 6, 4\)"),
        (((2, 2, 5, 4), (3, 2, 5, 4), (3, 2, 5, 4)), r"same batch shape; use expand\(\)"),
        (((1, 5, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4)), r"query heads.*multiple.*key heads.*query \(1, 5, 5, 4\)"),
        (((2, 5, 0), (2, 5, 0), (2, 5, 4)), r"head dim, above 0"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        attend(*(torch.zeros(shape) for shape in shapes))


def test_mixed_and_whole_numbers_are_refused() -> None:
    query, key, value = randoms(1, 2, 5, 4)
    with pytest.raises(ShapeError, match=r"one floating dtype.*one device.*key torch.float64 on cpu"):
        attend(query, key.double(), value)
    with pytest.raises(ShapeError, match="one floating dtype"):
        attend(query.long(), key.long(), value.long())


def test_a_bare_boolean_is_no_mask() -> None:
    with pytest.raises(TypeError, match=r"mask.*got Tensor.*from_bool\(attend=...\)"):
        attend(*randoms(1, 1, 3, 4), mask=torch.ones(3, 3).tril().bool())  # pyright: ignore[reportArgumentType]


def test_unknown_backends_and_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match=r"backend.*auto, fused, streaming, reference.*got 'flash'"):
        attend(*randoms(1, 1, 3, 4), backend="flash")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"dropout.*got 1\.0"):
        attend(*randoms(1, 1, 3, 4), dropout=1.0)


@pytest.mark.parametrize("backend", ["reference", "streaming"])
def test_dropout_keeps_the_mean_and_follows_the_seed(backend: Backend) -> None:
    query, key, _ = randoms(1, 1, 8, 4)
    value = torch.ones(1, 1, 8, 4)

    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attend(query, key, value, dropout=0.4, backend=backend)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    mean = torch.stack([draw(seed) for seed in range(600)]).mean(0)
    torch.testing.assert_close(mean, torch.ones_like(mean), rtol=0, atol=0.15)


@pytest.mark.usefixtures("tiny_blocks")
def test_dropout_drops_the_same_weights_in_the_backward() -> None:
    tensors = [torch.randn(1, 2, 9, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def operation(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        return attend(*tensors, mask=Causal(), dropout=0.3, backend="streaming", return_lse=True)

    assert torch.autograd.gradcheck(operation, tensors)


def test_dropout_leaves_lse_alone_and_is_refused_by_the_fused_backend() -> None:
    query, key, value = randoms(1, 2, 9, 4)
    _, dropped = attend(query, key, value, dropout=0.3, return_lse=True)
    _, whole = attend(query, key, value, return_lse=True)
    torch.testing.assert_close(dropped, whole)
    with pytest.raises(UnsupportedError, match="dropout on cpu; use backend='streaming'"):
        attend(query, key, value, dropout=0.3, backend="fused")


def test_tensors_changed_after_the_forward_are_noticed() -> None:
    for backend in ("fused", "streaming"):
        query, key, value = randoms(1, 1, 9, 4)
        leaf = query.requires_grad_()
        moved = leaf * 1.0
        output = attend(moved, key, value, backend=backend)
        with torch.no_grad():
            moved.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


def test_plans_are_kept_for_masks_without_tensors_only() -> None:
    tensors = randoms(1, 1, 12, 4)
    operation._cached_plan.cache_clear()
    for mask in (Causal(), Causal(), Padding([5]), Padding([6]), from_bool(attend=torch.ones(12, 12) > 0)):
        attend(*tensors, mask=mask)
    kept = operation._cached_plan.cache_info()
    assert (kept.hits, kept.misses) == (1, 1)


@pytest.mark.compiled
def test_a_compiled_function_gives_the_same() -> None:
    query, key, value = randoms(1, 2, 50, 8)

    def block(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query.sin(), key, value, mask=Causal() & Padding([40])).cos()

    torch.testing.assert_close(torch.compile(block)(query, key, value), block(query, key, value))


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:.*should not be instantiated")  # dynamo's
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", ["documents", "window"])
def test_a_compiled_function_with_many_rectangles_gives_the_same(kind: str, grad: bool) -> None:
    """Documents of equal length with others between them, and windows, are blocks that repeat."""
    torch.compiler.reset()
    documents = torch.tensor([[0] * 11 + [1] * 8 + [2] * 10 + [3] * 8, [0] * 8 + [1] * 3 + [2] * 8 + [3] * 18])

    def block(query: Tensor, key: Tensor, value: Tensor, documents: Tensor) -> Tensor:
        mask = Causal() & Documents(documents) if kind == "documents" else Window(70)
        return attend(query.sin(), key, value, mask=mask).cos()

    length = 37 if kind == "documents" else 300
    tensors = randoms(2, 4, length, 8)
    results = []
    for function in (block, torch.compile(block, backend="aot_eager")):
        leaves = [tensor.detach().clone().requires_grad_(grad) for tensor in tensors]
        output = function(*leaves, documents)
        if grad:
            output.sum().backward()
        results.append([output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    for compiled, plain in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(compiled, plain)


def test_checkpointing_recomputes_the_same_gradients() -> None:
    def gradients(wrapped: bool, backend: Backend) -> list[Tensor]:
        torch.manual_seed(0)
        tensors = [tensor.requires_grad_() for tensor in randoms(1, 2, 40, 8)]

        def run(*tensors: Tensor) -> Tensor:
            return attend(*tensors, mask=Window(9), backend=backend)

        output = checkpoint(run, *tensors, use_reentrant=False) if wrapped else run(*tensors)
        output.square().sum().backward()
        return [tensor.grad for tensor in tensors if tensor.grad is not None]

    for backend in ("fused", "streaming"):
        for plain, again in zip(gradients(False, backend), gradients(True, backend), strict=True):
            torch.testing.assert_close(again, plain)


@pytest.mark.parametrize("mask", [Causal(), Window(3), Padding([4])], ids=str)
def test_transforms_of_torch_func_take_the_reference(mask: Mask) -> None:
    query = torch.randn(1, 3, 5, 4, dtype=torch.float64)

    def total(states: Tensor, backend: Backend = "auto") -> Tensor:
        return attend(states, states, states, mask=mask, backend=backend).square().sum()

    wanted = query.clone().requires_grad_()
    total(wanted).backward()
    torch.testing.assert_close(torch.func.grad(total)(query), wanted.grad)
    value, tangent, *_ = torch.func.jvp(total, (query,), (query,))
    torch.testing.assert_close(value, total(query))
    assert wanted.grad is not None
    torch.testing.assert_close(tangent, (wanted.grad * query).sum())
    batch = torch.randn(6, 1, 3, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(total)(batch), torch.stack([total(one) for one in batch]))
    for backend in ("fused", "streaming"):
        with pytest.raises(UnsupportedError, match=r"torch\.func.*backend='reference'"):
            torch.func.grad(total)(query, backend)
