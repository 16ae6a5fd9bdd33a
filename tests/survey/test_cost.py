"""What a survey costs on paper."""

import pytest
import torch

from attnscope.models import Decoder
from attnscope.models.published_configs import DECODERS
from attnscope.survey.cost import Cost, Rates, cost_per_token


@pytest.mark.parametrize("name", ["gpt2-small", "smollm2-135m", "llama-3.1-70b"])
def test_operations_are_two_for_each_weight_of_a_block(name: str) -> None:
    with torch.device("meta"):
        blocks = Decoder(DECODERS[name]).blocks
    weights = sum(weight.numel() for weight in blocks.parameters() if weight.dim() == 2)
    config = DECODERS[name]
    head_dim = config.head_dim or config.hidden_size // config.num_heads
    alone = 4 * config.num_heads * config.num_layers * head_dim  # the products of a token that sees itself
    assert cost_per_token(config, 1, statistics=11).flops == 2 * weights + alone


def test_cells_are_those_under_the_diagonal() -> None:
    config = DECODERS["smollm2-135m"]
    seen = torch.ones(7, 7).tril().sum().item()
    assert cost_per_token(config, 7, statistics=11).attention_weights * 7 == 270 * seen


def test_seconds_add_up() -> None:
    assert (
        Rates(flops=100.0, attention_weights=10.0, binned_values=1.0).seconds(Cost(50.0, 20.0, 3.0)) == 0.5 + 2.0 + 3.0
    )
