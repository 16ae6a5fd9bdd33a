"""Models inside wrappers are recorded like the model itself: the weights are those of its own eager attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from attnscope.recording import Trace, record
from tests.recording.test_autocast import tiny_llama

IDS = torch.arange(24).reshape(2, 12) % 50


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A group of one process, on the CPU."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def weights_of(model: nn.Module) -> list[Tensor]:
    """What the eager attention of a model returns."""
    with torch.no_grad():
        return list(model(IDS, output_attentions=True).attentions)


def check(model: Any, right: list[Tensor], *, atol: float = 1e-5) -> Trace:
    """Record a pass, and compare all layers with these weights."""
    with torch.no_grad(), record(model) as trace:
        model(IDS)
    assert len(trace) == len(right)
    for layer, weights in enumerate(right):
        torch.testing.assert_close(trace[layer].to_dense(), weights.float(), rtol=0, atol=atol)
    return trace


def parallel(model: nn.Module) -> nn.Module:
    return nn.DataParallel(model)


def distributed(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for layer in model.get_submodule("model.layers").children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fully_sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def dispatched(model: nn.Module) -> nn.Module:
    accelerate = pytest.importorskip("accelerate")
    return accelerate.dispatch_model(model, {"": "cpu"}, main_device="cpu", force_hooks=True)


def offloaded(model: nn.Module) -> nn.Module:
    accelerate = pytest.importorskip("accelerate")
    return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:FSDP is switching:UserWarning", "ignore:The `NO_SHARD`:FutureWarning")
@pytest.mark.parametrize("wrap", [parallel, distributed, sharded, fully_sharded, dispatched, offloaded])
def test_a_wrapped_model_is_recorded_equal_to_eager(wrap: Callable[[nn.Module], nn.Module]) -> None:
    right = weights_of(tiny_llama(attn_implementation="eager"))
    check(wrap(tiny_llama()), right)


def test_a_model_with_lora_adapters_is_recorded_equal_to_eager() -> None:
    peft = pytest.importorskip("peft")

    def with_lora(implementation: str) -> Any:
        torch.manual_seed(1)
        config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        return peft.get_peft_model(tiny_llama(attn_implementation=implementation), config).eval()

    right = weights_of(with_lora("eager"))
    assert not torch.allclose(right[0], weights_of(tiny_llama(attn_implementation="eager"))[0], atol=1e-5)
    check(with_lora("sdpa"), right)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")
def test_a_model_in_dynamic_int8_is_recorded_equal_to_eager() -> None:
    def quantized(implementation: str) -> nn.Module:
        return torch.ao.quantization.quantize_dynamic(
            tiny_llama(attn_implementation=implementation), {nn.Linear}, dtype=torch.qint8
        )

    check(quantized("sdpa"), weights_of(quantized("eager")))
