"""A mode that intercepts every torch function is used only for models that may call torch's attention themselves."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from attnscope.heads import ablate
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording import record
from attnscope.recording.hooks.function_mode import TORCH_ATTENTION
from tests.recording.exhibit import IS_OLDER
from tests.recording.zoo import EXHIBITS

BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
INTERFACE = ("Llama", "Mistral", "Gemma 2", "Gemma 3", "gpt-oss", "GPT-2", "Qwen3", "OPT", "BERT", "T5", "BART", "ViT")
IDS = torch.tensor([[5, 9, 4, 8, 17, 33, 2]])


def modes_inside(model: nn.Module) -> int:
    """How many modes and foreign hooks there are while a model is recorded."""
    context = record(model)
    context.__enter__()
    try:
        return len(_get_current_function_mode_stack())
    finally:
        with pytest.raises(Exception, match="no attention was recorded"):
            context.__exit__(None, None, None)


@pytest.mark.parametrize("name", INTERFACE)
def test_models_of_the_interface_run_without_a_mode(name: str):
    model = BY_NAME[name].build()
    if IS_OLDER and "torch.nn.attention" in inspect.getsource(sys.modules[type(model).__module__]):
        pytest.skip(f"this version of transformers imports attention functions of torch for {name}")
    assert modes_inside(model) == 0


def test_a_name_that_contains_that_of_a_function_of_torch_is_no_call():
    assert not TORCH_ATTENTION.search('_no_split_modules = ["SiglipMultiheadAttentionPoolingHead"]')
    assert TORCH_ATTENTION.search("self.attention = nn.MultiheadAttention(8, 2)")


class Wrapper(nn.Module):
    """A model of somebody else around one of transformers, with attention of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        x = self.model(ids).logits[:, None]
        return F.scaled_dot_product_attention(x, x, x)


def llama() -> Any:
    return BY_NAME["Llama"].build()


def with_hook() -> nn.Module:
    model = llama()
    model.model.layers[0].mlp.register_forward_hook(
        lambda module, args, output: F.scaled_dot_product_attention(output[:, None], output[:, None], output[:, None])[
            :, 0
        ]
    )
    return model


def with_forward() -> nn.Module:
    model = llama()
    mlp, plain = model.model.layers[0].mlp, model.model.layers[0].mlp.forward
    mlp.forward = lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], plain(x)[:, None])[:, 0]
    return model


def with_own_layer() -> nn.Module:
    class OwnMLP(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]

    model = llama()
    model.model.layers[0].mlp = OwnMLP()
    return model


def with_torch_layer() -> nn.Module:
    class OwnMLP(nn.MultiheadAttention):
        def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().forward(x, x, x)[0]

    model = llama()
    model.model.layers[0].mlp = OwnMLP(model.config.hidden_size, 2, batch_first=True)
    return model


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Wrapper(llama()), ""),
        (with_hook, "model.layers.0.mlp"),
        (with_forward, "model.layers.0.mlp"),
        (with_own_layer, "model.layers.0.mlp"),
        (with_torch_layer, "model.layers.0.mlp"),
    ],
    ids=["wrapper", "hook", "forward", "own layer", "torch layer"],
)
def test_attention_of_torch_inside_a_model_of_the_interface_is_still_recorded(build: Any, name: str):
    model = build()
    assert modes_inside(model) == 1
    with torch.no_grad(), record(model) as trace:
        model(IDS)
    assert name in trace
    assert len(trace) == 3


def test_models_that_call_attend_have_a_mode():
    config = DecoderConfig(
        vocab_size=50, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_position_embeddings=32
    )
    assert modes_inside(Decoder(config)) == 1


def test_ablation_of_a_model_of_the_interface_has_no_mode_either():
    model = llama()
    with torch.no_grad(), ablate(model, {0: [0]}):
        assert not _get_current_function_mode_stack()
        changed = model(IDS).logits
    assert not torch.equal(changed, model(IDS).logits)


def count_calls(model: Any, tokens: int, recorded: bool) -> Counter[str]:
    """How many functions of Python and of C run while a model generates."""
    calls: Counter[str] = Counter()

    def profile(frame: Any, event: str, argument: Any) -> None:
        calls[event] += 1

    def run() -> None:
        with torch.no_grad():
            model.generate(IDS, max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=-1)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        if recorded:
            with record(model):
                run()
        else:
            run()
    finally:
        sys.setprofile(before)
    return calls


def test_a_recorded_step_calls_few_more_functions_than_a_plain_one():
    model = llama()
    for recorded in (False, True):
        count_calls(model, 3, recorded)  # what happens the first time only
    steps = {
        recorded: count_calls(model, 40, recorded).total() - count_calls(model, 20, recorded).total()
        for recorded in (False, True)
    }
    assert steps[True] / steps[False] < 2
