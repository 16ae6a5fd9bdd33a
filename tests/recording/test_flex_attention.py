"""FlexAttention is refused by name, and models of transformers that name it are recorded without it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch.nn.attention.flex_attention import flex_attention

from attnscope.errors import UnsupportedError
from attnscope.heads import ablate
from attnscope.recording import record
from tests.recording.test_autocast import tiny_llama

IDS = torch.arange(24).reshape(2, 12) % 50
REFUSED = r"^FlexAttention \(torch\.nn\.attention\.flex_attention\) was called, which cannot be intercepted"


class FlexMixer(nn.Module):
    """A layer that is not named after attention."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, 16)).transpose(1, 2)
        output: Any = flex_attention(heads, heads, heads)
        return output.transpose(1, 2).flatten(2)


class FlexModel(nn.Module):
    """A layer that is recorded, after one that calls FlexAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = FlexMixer()
        self.layer = nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mixer(x)
        return self.layer(mixed, mixed, mixed)[0]


def ablate_all(model: nn.Module) -> AbstractContextManager[Any]:
    return ablate(model, {"layer": [0]})


@pytest.mark.compiled
@pytest.mark.parametrize("opened", [record, ablate_all])
@pytest.mark.parametrize("stance", ["default", "force_eager"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_a_model_that_calls_flex_attention_is_refused_by_name(
    opened: Callable[[nn.Module], AbstractContextManager[Any]], stance: Any
) -> None:
    model, x = FlexModel().eval(), torch.randn(1, 6, 32)
    with torch.compiler.set_stance(stance), pytest.raises(UnsupportedError, match=REFUSED), opened(model):
        model(x)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_other_errors_of_the_compiler_and_calls_outside_of_the_model_stay_as_they_are() -> None:
    heads = torch.randn(1, 2, 6, 16)
    model = nn.ModuleDict({"layer": nn.MultiheadAttention(32, 2, batch_first=True)})
    x = torch.randn(1, 6, 32)
    with torch.compiler.set_stance("force_eager"):
        expected = flex_attention(heads, heads, heads)
        with record(model) as trace:
            torch.testing.assert_close(flex_attention(heads, heads, heads), expected)
            model["layer"](x, x, x)
    assert list(trace) == ["layer"]
    with pytest.raises(Unsupported, match="another reason"), record(model):
        raise Unsupported("another reason")


@torch.no_grad()
def test_a_model_of_transformers_that_names_flex_attention_is_recorded_exactly() -> None:
    model, plain = tiny_llama(), tiny_llama()
    plain.load_state_dict(model.state_dict())
    model.set_attn_implementation("flex_attention")
    plain.set_attn_implementation("eager")
    expected = plain(IDS, output_attentions=True)
    with record(model) as trace:
        logits = model(IDS).logits
    torch.testing.assert_close(logits, expected.logits)
    for layer, weights in enumerate(expected.attentions):
        torch.testing.assert_close(trace[layer].to_dense(), weights, rtol=0, atol=1e-6)
    assert model.config._attn_implementation == "flex_attention"
