"""The stack names the innermost running module, and is empty again afterwards, whatever happens inside."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnscope.recording import record
from attnscope.recording.hooks.module_stack import ModuleStack


class Attention(nn.Module):
    """Calls the kernel, notes what runs, and may fail or call itself."""

    def __init__(self, stack: ModuleStack, error: type[BaseException] | None = None, again: int = 0) -> None:
        super().__init__()
        self.stack, self.error, self.again = stack, error, again
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.stack.innermost())
        if self.error is not None:
            raise self.error
        if self.again:
            self.again -= 1
            x = self(x)
            self.seen.append(self.stack.innermost())
        return F.scaled_dot_product_attention(x, x, x)


class Block(nn.Module):
    def __init__(self, attention: nn.Module, checkpointed: bool | None = None) -> None:
        super().__init__()
        self.attention, self.checkpointed = attention, checkpointed

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed is None:
            return self.attention(x)
        return checkpoint(self.attention, x, use_reentrant=self.checkpointed)  # type: ignore[return-value]


X = torch.ones(1, 2, 3, 4)


def test_the_innermost_module_is_named_and_nothing_is_left() -> None:
    stack = ModuleStack()
    model = Block(Attention(stack))
    with stack.track(model):
        assert stack.innermost() is None
        model(X)
        assert stack.innermost() is None
    assert model.attention.seen == [model.attention]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_error_inside_unwinds_the_stack() -> None:
    stack = ModuleStack()
    model = Block(Attention(stack, ArithmeticError))
    with stack.track(model):
        with pytest.raises(ArithmeticError):
            model(X)
        assert stack.innermost() is None


def test_a_module_around_an_interrupt_removes_what_it_left() -> None:
    stack = ModuleStack()

    class Catching(Block):
        def forward(self, x: Tensor) -> Tensor:
            with pytest.raises(KeyboardInterrupt):
                self.attention(x)
            return x

    model = Catching(Attention(stack, KeyboardInterrupt))
    with stack.track(model):
        model(X)
        assert stack.innermost() is None


def test_nothing_runs_after_an_interrupt_that_is_caught_outside_of_the_model() -> None:
    stack = ModuleStack()
    attention = Attention(stack, KeyboardInterrupt)
    model = Block(attention)
    with stack.track(model):
        with pytest.raises(KeyboardInterrupt):
            model(X)
        assert stack.innermost() is None
        attention.error = None
        model(X)
        assert stack.innermost() is None
    assert attention.seen == [attention] * 2


def test_a_module_that_calls_itself_is_still_running_afterwards() -> None:
    stack = ModuleStack()
    model = Block(Attention(stack, again=2))
    with stack.track(model):
        model(X)
        assert stack.innermost() is None
    assert model.attention.seen == [model.attention] * 5


def test_each_thread_has_its_own_stack() -> None:
    stack, elsewhere = ModuleStack(), []

    class Asking(Attention):
        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: elsewhere.append(self.stack.innermost()))
            thread.start()
            thread.join()
            return super().forward(x)

    model = Block(Asking(stack))
    with stack.track(model):
        model(X)
    assert elsewhere == [None]
    assert model.attention.seen == [model.attention]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_of_a_checkpoint_is_not_recorded_twice(reentrant: bool) -> None:
    model = Block(Attention(ModuleStack()), checkpointed=reentrant)
    with record(model) as trace:
        model(X.clone().requires_grad_()).sum().backward()
    assert list(trace) == ["attention"]


@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
def test_a_kernel_called_outside_of_the_model_is_not_recorded_after_an_error(error: type[BaseException]) -> None:
    attention = Attention(ModuleStack())
    model = Block(attention)
    with record(model) as trace:
        model(X)
        attention.error = error
        with pytest.raises(error):
            model(X)
        F.scaled_dot_product_attention(X, X, X)
    assert list(trace) == ["attention"]
