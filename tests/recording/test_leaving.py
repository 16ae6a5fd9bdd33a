"""Whatever happens inside, the model, its thread and transformers are left exactly as they were."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from attnscope.recording import Trace, record
from attnscope.recording.hooks.observers import current_observers, is_suppressed
from tests.recording.zoo import EXHIBITS

LLAMA = next(exhibit for exhibit in EXHIBITS if exhibit.name == "Llama")
GEMMA = next(exhibit for exhibit in EXHIBITS if exhibit.name == "Gemma 2")  # eager by default
IDS = torch.tensor([[5, 9, 4, 8, 17, 33, 2]])


@pytest.fixture(params=[LLAMA, GEMMA], ids=["sdpa", "eager"])
def model(request: pytest.FixtureRequest) -> Any:
    return request.param.build()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    registries = [dict(kind._global_mapping) for kind in (AttentionInterface, AttentionMaskInterface)]
    function = F.scaled_dot_product_attention
    yield
    assert [dict(kind._global_mapping) for kind in (AttentionInterface, AttentionMaskInterface)] == registries
    assert F.scaled_dot_product_attention is function
    assert not _get_current_function_mode_stack()
    assert not current_observers()
    assert not is_suppressed()


def state_of(model: nn.Module) -> list[Any]:
    """Everything that recording might touch: hooks of all modules, their attributes, and the configs."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
    found: list[Any] = [[dict(getattr(module, name)) for name in hooks] for module in model.modules()]
    found += [sorted(vars(module)) for module in model.modules()]
    found += [deepcopy(vars(module.config)) for module in model.modules() if hasattr(module, "config")]
    return found


class BrokenError(Exception):
    pass


@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["model.layers.1.mlp", "model.layers.0.self_attn.o_proj", "lm_head"])
def test_an_error_or_an_interrupt_inside_the_model(model: Any, error: type[BaseException], place: str):
    def breaking(*_: Any) -> None:
        if error is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)  # what Ctrl-C does
        raise error

    before, logits = state_of(model), model(IDS).logits
    module = dict(model.named_modules())[place] if place in dict(model.named_modules()) else model.layers[1].mlp
    handle = module.register_forward_hook(breaking)
    with pytest.raises(error), record(model):
        model(IDS)
    handle.remove()
    assert state_of(model) == before
    assert torch.equal(model(IDS).logits, logits)


@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["layers.0.linear2", "layers.1.linear1", "layers.1.self_attn"])
def test_a_recording_after_an_interrupt_equals_a_fresh_one(error: type[BaseException], place: str):
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0), 2)
    text, before = torch.randn(1, 5, 16), state_of(model)
    with record(model) as fresh:
        model(text)
    handle = model.get_submodule(place).register_forward_pre_hook(raising(error))
    with pytest.raises(error), record(model) as trace:
        model(text)
    assert list(trace) == ["layers.0.self_attn", "layers.1.self_attn"][: len(trace)]
    with record(model, layers="layers.0.self_attn") as both, pytest.raises(error):
        model(text)
    handle.remove()
    assert len(both) == 1
    assert state_of(model) == before
    with record(model) as again:
        model(text)
    assert list(again) == list(fresh) == ["layers.0.self_attn", "layers.1.self_attn"]
    for name in fresh:
        assert torch.equal(again[name].to_dense(), fresh[name].to_dense())


def raising(error: type[BaseException]) -> Any:
    def hook(*_: Any) -> None:
        if error is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)  # what Ctrl-C does
        raise error

    return hook


def test_an_error_in_the_block_itself(model: Any):
    before = state_of(model)
    with pytest.raises(BrokenError), record(model):
        raise BrokenError
    assert state_of(model) == before


def test_records_inside_of_each_other_both_see_everything(model: Any):
    before, logits = state_of(model), model(IDS).logits
    with torch.no_grad(), record(model) as outer:
        with record(model, layers=0) as inner:
            within = model(IDS).logits
        assert list(inner) == list(outer)[:1]
    assert state_of(model) == before
    torch.testing.assert_close(within, logits)
    for name in inner:
        assert torch.equal(inner[name].to_dense(), outer[name].to_dense())


def test_an_inner_record_that_fails_leaves_the_outer_one_recording(model: Any):
    with torch.no_grad(), record(model) as outer:
        with pytest.raises(BrokenError), record(model):
            raise BrokenError
        model(IDS)
    assert len(outer) == model.config.num_hidden_layers


def test_records_of_pytorch_code_inside_of_each_other_both_see_everything():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    text = torch.randn(1, 5, 16)
    with torch.no_grad(), record(model) as outer, record(model) as inner:
        model(text)
    assert list(outer) == list(inner) == ["layers.0.self_attn", "layers.1.self_attn"]


def test_two_threads_record_one_model_each_its_own_text(model: Any):
    before = state_of(model)
    texts = [torch.tensor([[5, 9, 4, 8, 17]]), torch.tensor([[30, 31, 32, 33, 34, 35, 36, 37]])]
    expected = [recorded(model, text) for text in texts]
    found: dict[int, Trace] = {}
    gate = threading.Barrier(2, timeout=60)

    def run(at: int) -> None:
        for _ in range(10):
            gate.wait()
            found[at] = recorded(model, texts[at])

    threads = [threading.Thread(target=run, args=(at,)) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state_of(model) == before
    for at in (0, 1):
        assert list(found[at]) == list(expected[at])
        for name in found[at]:
            assert torch.equal(found[at][name].to_dense(), expected[at][name].to_dense())


def test_a_thread_that_does_not_record_gets_what_the_model_does_by_itself(model: Any):
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 0]])
    with torch.no_grad():
        expected = model(IDS, attention_mask=mask).logits
    answers: list[Any] = []

    def run() -> None:
        with torch.no_grad():
            answers.append(model(IDS, attention_mask=mask).logits)

    with torch.no_grad(), record(model) as trace:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        model(IDS)
    assert torch.equal(answers[0], expected)
    assert len(trace) == model.config.num_hidden_layers
    assert trace[0].shape[-1] == IDS.shape[1]


def test_a_thread_may_run_the_model_while_another_adds_or_removes_its_hooks():
    model: Any = LLAMA.build()
    answers: list[Any] = []
    with torch.no_grad(), record(model):
        expected = model(IDS).logits
        marks = [dict(module._forward_pre_hooks_with_kwargs) for module in model.modules()]
        assert any(marks)
        for module in model.modules():  # torch sets these after it has added a hook
            module._forward_pre_hooks_with_kwargs.clear()
        thread = threading.Thread(target=lambda: answers.append(model(IDS).logits.detach()))
        thread.start()
        thread.join()
        for module, mark in zip(model.modules(), marks, strict=True):
            module._forward_pre_hooks_with_kwargs.update(mark)
    assert torch.equal(answers[0], expected)


def test_a_thread_with_another_model_of_the_same_config_is_left_alone():
    first: Any = LLAMA.build()
    second: Any = type(first)(first.config).eval()
    with torch.no_grad():
        expected = second(IDS).logits
    answers: list[Any] = []

    def run() -> None:
        with torch.no_grad():
            answers.append(second(IDS).logits)

    with torch.no_grad(), record(first):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        first(IDS)
    assert torch.equal(answers[0], expected)


def test_records_may_end_in_any_order():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1).eval()
    other: Any = LLAMA.build()
    first, second = record(other), record(other)
    first.__enter__()
    trace = second.__enter__()
    with torch.no_grad():
        other(IDS)
    second.__exit__(None, None, None)
    first.__exit__(None, None, None)
    assert len(trace) == 2
    assert not current_observers()
    with torch.no_grad(), record(model) as again:
        model(torch.randn(1, 5, 16))
    assert len(again) == 1


def recorded(model: Any, ids: torch.Tensor) -> Trace:
    with torch.no_grad(), record(model) as trace:
        model(ids)
    return trace


def test_gradients_are_those_of_the_model_and_recomputation_is_not_recorded_twice():
    model = LLAMA.build().train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model(IDS, labels=IDS).loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    with record(model) as trace:
        model(IDS, labels=IDS).loss.backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert list(trace) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert not trace[0][..., 0:2, :].requires_grad
