"""Models are recorded inside torch.autocast, also by a callback of transformers' Trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from attnscope.heads import ablate
from attnscope.recording import record

ROUNDING = 2**-7  # of a score in bfloat16

TRAIN = """
import sys, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from attnscope.recording import record
from tests.recording.test_autocast import tiny_llama

class Texts(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, at):
        ids = torch.arange(at, at + 12) % 50
        return {"input_ids": ids, "labels": ids}

class Recording(TrainerCallback):
    traces = []
    def on_step_begin(self, args, state, control, model=None, **_):
        self.manager = record(model)
        self.traces.append(self.manager.__enter__())
    def on_step_end(self, args, state, control, **_):
        self.manager.__exit__(None, None, None)

settings = TrainingArguments(
    sys.argv[1], bf16=True, use_cpu=True, max_steps=2, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
    save_strategy="no", logging_strategy="no",
)
Trainer(tiny_llama(), settings, train_dataset=Texts(), callbacks=[Recording()]).train()
for trace in Recording.traces:
    print(len(trace), tuple(trace[0].shape), trace[0].to_dense().sum(-1).sub(1).abs().max().item() < 1e-5)
"""


def tiny_llama(**options: object) -> LlamaForCausalLM:
    """Two layers with rotary embeddings, which make float32 queries and keys inside autocast."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            **options,  # pyright: ignore[reportArgumentType]
        )
    ).eval()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_rotary_model_is_recorded_inside_autocast(implementation: str) -> None:
    model = tiny_llama(attn_implementation=implementation)
    ids = torch.randint(0, 50, (2, 12))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), record(model) as trace:
        model(ids)
    eager = tiny_llama(attn_implementation="eager")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        attentions = eager(ids, output_attentions=True).attentions
    for layer, weights in enumerate(attentions):
        torch.testing.assert_close(trace[layer].to_dense(), weights.float(), rtol=ROUNDING, atol=ROUNDING)


def test_gradients_flow_through_a_pass_that_is_recorded_inside_autocast() -> None:
    found = []
    for recording in (False, True):
        model = tiny_llama()
        ids = torch.arange(12)[None]
        with torch.autocast("cpu", torch.bfloat16):
            if recording:
                with record(model):
                    loss = model(ids, labels=ids).loss
            else:
                loss = model(ids, labels=ids).loss
        loss.backward()
        gradient = model.get_parameter("model.layers.0.self_attn.q_proj.weight").grad
        assert gradient is not None
        found.append(gradient)
    torch.testing.assert_close(found[0], found[1], rtol=0.1, atol=float(found[0].abs().max()) * 0.02)


def test_heads_are_ablated_inside_autocast() -> None:
    model, ids = tiny_llama(), torch.arange(12)[None]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        before = model(ids).logits
        with ablate(model, {0: [1]}):
            assert not torch.equal(model(ids).logits, before)
        assert torch.equal(model(ids).logits, before)


class Plain(nn.Module):
    """Calls PyTorch's attention with float32 queries and keys and a bfloat16 value."""

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, query, query.bfloat16(), is_causal=True)


def test_what_is_recorded_of_pytorch_is_what_autocast_computes() -> None:
    model, query = nn.ModuleDict({"attention": Plain()}), torch.randn(1, 2, 9, 8)
    with torch.autocast("cpu", torch.bfloat16), record(model, values=True) as trace:
        output = model["attention"](query)
    assert output.dtype == torch.bfloat16
    weights = trace["attention"].to_dense()
    torch.testing.assert_close(weights @ query.bfloat16().float(), output.float(), rtol=ROUNDING, atol=ROUNDING)
    rounded = query.bfloat16().float()
    scores = (rounded @ rounded.mT / 8**0.5).masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close(weights, scores.softmax(-1))


def run_trainer(folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", TRAIN, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_trainer_in_bf16_is_recorded_by_a_callback(tmp_path: Path) -> None:
    assert run_trainer(tmp_path).splitlines()[-2:] == ["2 (2, 4, 12, 12) True"] * 2


@pytest.mark.slow
def test_ten_trainers_in_fresh_processes_are_all_recorded(tmp_path: Path) -> None:
    for number in range(10):
        assert run_trainer(tmp_path / str(number)).splitlines()[-2:] == ["2 (2, 4, 12, 12) True"] * 2
