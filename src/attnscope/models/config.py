"""What the three models share: config fields, their validation, and parameter initialization.

In: config values, token ids. Out: nothing, or an error that names the value. Does not know: what the fields do.
Memory: O(1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, ShapeError
from attnscope.models.layers import ACTIVATIONS, Activation


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The fields that every model has."""

    vocab_size: int
    """Number of tokens in the vocabulary."""
    hidden_size: int
    """Size of the residual stream."""
    num_layers: int
    """Number of transformer blocks; in an encoder-decoder, of each of the two stacks."""
    num_heads: int
    """Number of attention heads per block."""
    intermediate_size: int
    """Hidden size of the feed-forward network."""
    norm_eps: float = 1e-5
    """Epsilon of the norms."""
    activation: Activation = "gelu"
    """Activation of the feed-forward network."""
    dropout: float = 0.0
    """Dropout probability of activations and attention weights in training."""

    def __post_init__(self):
        """Validate the fields; subclasses add theirs."""
        check_sizes(self, "vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size")
        check_choice(self, "activation", tuple(ACTIVATIONS))
        if not 0 <= self.dropout < 1:
            raise SettingError(f"{type(self).__name__}.dropout must be at least 0 and below 1, got {self.dropout}")


def check_sizes(config: TransformerConfig, *names: str) -> None:
    """Raise a SettingError for sizes below 1; None is allowed for sizes that follow from others."""
    for name in names:
        size = getattr(config, name)
        if size is not None and size < 1:
            raise SettingError(f"{type(config).__name__}.{name} must be at least 1, got {size}")


def check_choice(config: TransformerConfig, name: str, choices: tuple[str, ...]) -> None:
    """Raise a SettingError if a field is not one of the choices."""
    value = getattr(config, name)
    if value not in choices:
        raise SettingError(f"{type(config).__name__}.{name} must be one of {', '.join(choices)}, got {value!r}")


def check_input_ids(input_ids: Tensor, position_ids: Tensor) -> None:
    """Raise a ShapeError unless ids are (batch, sequence) and the position ids match them."""
    if input_ids.dim() != 2:
        raise ShapeError(
            f"input_ids: expected shape (batch, sequence), got {tuple(input_ids.shape)}; "
            "add a batch dimension with input_ids[None]"
        )
    if not input_ids.shape[1]:
        raise ShapeError("input_ids: expected at least one token per row, got none; pass a start token")
    if tuple(position_ids.shape) not in (tuple(input_ids.shape[1:]), tuple(input_ids.shape)):
        raise ShapeError(
            f"position_ids: expected shape ({input_ids.shape[1]},) or {tuple(input_ids.shape)}, "
            f"got {tuple(position_ids.shape)}"
        )


@torch.no_grad()
def initialize_parameters(model: nn.Module, draw: Callable[[str, nn.Parameter], object]) -> None:
    """Set biases to zero and call `draw(name, parameter)` for every matrix; norms keep their ones."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() == 2:
            draw(name, parameter)
