"""A hash that is another for other weights, and the same for the same."""

import pytest
import torch
from torch import nn

from attnscope.models.fingerprint import fingerprint_model


class Tied(nn.Module):
    """Two names for one matrix, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.output = nn.Linear(3, 5, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(4))
        self.register_buffer("nothing", torch.zeros(0))


def hash_of(model: nn.Module) -> str:
    return fingerprint_model(model, "model")["hash"]


def test_every_single_number_decides() -> None:
    model = Tied()
    before = hash_of(model)
    assert hash_of(model) == before
    for name, tensor in model.state_dict().items():
        for place in range(tensor.numel()):
            tensor.view(-1)[place] += 1
            assert hash_of(model) != before, name
            tensor.view(-1)[place] -= 1
    model.load_state_dict(Tied().state_dict())
    assert hash_of(model) != before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_names_shapes_and_dtypes_decide_too(dtype: torch.dtype) -> None:
    flat, square = nn.Module(), nn.Module()
    flat.register_buffer("weight", torch.zeros(4))
    square.register_buffer("weight", torch.zeros(2, 2))
    other = nn.Module()
    other.register_buffer("bias", torch.zeros(4))
    wide = nn.Module()
    wide.register_buffer("weight", torch.zeros(4, dtype=dtype))
    assert len({hash_of(model) for model in (flat, square, other, wide)}) == 4


def test_a_copy_has_the_same_hash_also_where_its_memory_lies_otherwise() -> None:
    model, copy = nn.Linear(3, 2), nn.Linear(3, 2)
    copy.load_state_dict(model.state_dict())
    copy.weight = nn.Parameter(model.weight.detach().t().contiguous().t())
    assert not copy.weight.is_contiguous()
    assert hash_of(copy) == hash_of(model)


def test_parameters_with_two_names_are_counted_once() -> None:
    about = fingerprint_model(Tied(), "tied")
    assert (about["name"], about["parameters"]) == ("tied", 15)
