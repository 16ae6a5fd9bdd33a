"""`watch` in models of torchtitan and Megatron Core, on the CPU; skipped where they are not installed.

`scripts/trainers` installs them. Both compute attention with their own code by default, and let you choose torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope import watch
from attnscope.errors import UnsupportedError

TOKENS, STEPS = 32, 4
pytestmark = pytest.mark.filterwarnings("ignore")  # what these libraries warn of when they are imported without a GPU


def compare_watched_with_plain(make: Callable[[], nn.Module], loss: Callable[[nn.Module], Tensor], heads: int) -> None:
    """Train a watched model and a plain one: all heads are measured, and the parameters are the same bits."""
    watched, plain = make(), make()
    with watch(watched, every=2) as watching:
        reports = list(train(watched, loss, watching.step))
    list(train(plain, loss, lambda: None))
    assert [(report.step, len(report.heads)) for report in reports if report] == [(1, heads), (2, heads), (4, heads)]
    assert all(map(torch.equal, watched.parameters(), plain.parameters()))


def train(model: nn.Module, loss: Callable[[nn.Module], Tensor], after: Callable[[], Any]) -> Iterator[Any]:
    """Train some steps; yield what `after` returns after each of them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield after()


def titan_model(with_torch_attention: bool = True) -> Any:
    attention = pytest.importorskip("torchtitan.models.common.attention")
    from torchtitan.models.llama3 import model_registry  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    model: Any = model_registry("debugmodel").model.build()
    model.init_states()
    if with_torch_attention:
        for layer in model.layers.values():
            layer.attention.inner_attention = attention.ScaledDotProductAttention.Config().build()
    return model


def titan_inputs() -> tuple[Tensor, Tensor]:
    ids = torch.randint(2048, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    return ids, torch.arange(TOKENS).repeat(2, 1)


def test_a_model_of_torchtitan() -> None:
    ids, positions = titan_inputs()

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(ids, positions=positions).flatten(0, 1), ids.flatten())

    compare_watched_with_plain(titan_model, loss, heads=96)


def test_flex_attention_of_torchtitan_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = titan_model(with_torch_attention=False)
    layer = type(model.layers["0"].attention.inner_attention)
    kernel = staticmethod(lambda query, *_, **__: (query, None))  # that of torch does not train on the CPU
    monkeypatch.setattr(layer, "compiled_flex_attn", kernel)
    ids, positions = titan_inputs()
    masks = model.get_attention_masks(positions)
    expected = r"layers.0.attention.inner_attention \(FlexAttention\)"
    with watch(model, every=1) as watching:
        model(ids, positions=positions, attention_masks=masks)
        with pytest.raises(UnsupportedError, match=expected):
            watching.step()


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """What Megatron Core needs to make a model: a group of one process."""
    state = pytest.importorskip("megatron.core.parallel_state")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        state.initialize_model_parallel()
        yield
    finally:
        state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def test_a_model_of_megatron_core(one_rank: None) -> None:
    from megatron.core.models.gpt import GPTModel  # pyright: ignore[reportMissingImports]
    from megatron.core.models.gpt.gpt_layer_specs import (  # pyright: ignore[reportMissingImports]
        get_gpt_layer_local_spec,
    )
    from megatron.core.transformer import MegatronModule, TransformerConfig  # pyright: ignore[reportMissingImports]

    class TorchAttention(MegatronModule):
        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__(config)

        def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
            query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # (batch, heads, tokens, head dim)
            output = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            return output.permute(2, 0, 1, 3).flatten(2)

    def make() -> nn.Module:
        torch.manual_seed(0)
        sizes = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_query_groups": 2}
        plain = {"attention_dropout": 0.0, "hidden_dropout": 0.0, "use_cpu_initialization": True}
        spec = get_gpt_layer_local_spec()
        spec.submodules.self_attention.submodules.core_attention = TorchAttention
        config = TransformerConfig(**sizes, **plain)
        return GPTModel(config, spec, vocab_size=64, max_sequence_length=TOKENS)

    ids = torch.randint(64, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    compare_watched_with_plain(
        make, lambda model: model(ids, torch.arange(TOKENS).repeat(2, 1), None, labels=ids).mean(), heads=8
    )
