"""A watched training loop: what is measured is exact, and training is not changed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from attnscope.telemetry.watcher import Report, Watch

IDS = torch.randint(64, (3, 24), generator=torch.Generator().manual_seed(1))


def make_model(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **options)).train()


def train(model: Any, steps: int, watch: Watch | None = None) -> tuple[list[Tensor], list[Report]]:
    """Train for some steps; return the gradients of every step, and the reports."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    gradients, reports = [], []
    for _ in range(steps):
        model(IDS, labels=IDS).loss.backward()
        gradients += [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        report = None if watch is None else watch.step()
        reports += [] if report is None else [report]
    return gradients, reports


def logits_of(model: Any) -> list[Tensor]:
    """All logits of each layer in fp64 from the weights that eager attention returns, up to a constant of each row."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(IDS, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    return list(weights)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_watched_steps_are_the_same_bits(checkpointing: bool) -> None:
    plain, watched = make_model(), make_model()
    for model in (plain, watched):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
    expected, _ = train(plain, 3)
    with Watch(watched, every=1) as watch:
        found, reports = train(watched, 3, watch)
    assert len(reports) == 3
    assert all(map(torch.equal, found, expected))


def test_the_first_step_and_multiples_are_measured_and_the_others_are_left_alone() -> None:
    model = make_model()
    with Watch(model, every=4) as watch:
        _, reports = train(model, 3, watch)
        assert model.config._attn_implementation == "attnscope"  # the fourth step is next
        assert [report.step for report in reports] == [1]
        _, reports = train(model, 1, watch)
        assert [report.step for report in reports] == [4]
        assert model.config._attn_implementation == "sdpa"
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_statistics_equal_those_of_eager_weights() -> None:
    model = make_model()
    weights = logits_of(model)
    with Watch(model, every=1) as watch:
        _, (report,) = train(model, 1, watch)
    assert report.heads == [(f"model.layers.{layer}.self_attn", head) for layer in range(2) for head in range(4)]
    entropy = torch.cat([-torch.special.xlogy(one, one).sum(-1).mean((0, 2)) for one in weights])
    sink = torch.cat([one[..., 0].mean((0, 2)) for one in weights])
    assert torch.allclose(torch.from_numpy(report.statistics.entropy).float(), entropy, atol=1e-5)
    assert torch.allclose(torch.from_numpy(report.statistics.sink_weight).float(), sink, atol=1e-5)


def test_several_forward_passes_of_a_step_are_measured_together() -> None:
    model = make_model()
    with torch.no_grad(), Watch(model, every=1) as watch:
        model(IDS)
        whole = watch.step()
        for row in IDS:
            model(row[None])
        parts = watch.step()
    assert whole is not None
    assert parts is not None
    for name in ("max_logit", "entropy", "collapsed", "effective_keys", "max_query", "max_key"):
        values = (torch.from_numpy(getattr(report.statistics, name)) for report in (whole, parts))
        assert torch.allclose(*values, rtol=1e-5)


def test_evaluation_is_not_measured() -> None:
    model = make_model()
    with torch.no_grad(), Watch(model, every=1) as watch:
        model(IDS[:1])
        model.eval()
        model(IDS)
        model.train()
        report = watch.step()
    assert report is not None
    assert (report.statistics.max_sequence == 0).all()


def test_numbers_go_to_a_logger() -> None:
    logged: list[tuple[dict[str, float], int]] = []
    model = make_model()
    with Watch(model, every=2, log=lambda values, step: logged.append((values, step))) as watch:
        train(model, 4, watch)
    assert [step for _, step in logged] == [1, 2, 4]
    values = logged[0][0]
    assert values["attention/max_logit"] == max(
        values[f"attention/model.layers.{layer}.self_attn/max_logit"] for layer in range(2)
    )
    assert all(math.isfinite(value) for value in values.values())


@pytest.mark.filterwarnings("ignore:watch. LlamaForCausalLM is compiled:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # while torch traces the model
def test_a_compiled_model_runs_eagerly_on_measured_steps_only() -> None:
    runs: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        def run(*args: Any) -> Any:
            runs.append(1)
            return graph.forward(*args)

        return run

    model = make_model()
    compiled: Any = torch.compile(model, backend=backend)
    counts = []
    with Watch(compiled, every=3) as watch:
        for _ in range(4):
            runs.clear()
            compiled(IDS, labels=IDS).loss.backward()
            report = watch.step()
            counts.append((report is not None, len(runs) > 0))
    assert counts == [(True, False), (False, True), (True, False), (False, True)]


def test_torch_functions_are_measured_in_any_module() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    model = Block().train()
    with Watch(model, every=1) as watch:
        model(torch.randn(2, 7, 16)).sum().backward()
        report = watch.step()
    assert report is not None
    assert report.heads == [("attention", 0), ("attention", 1)]
