"""Checks that the models share: of the settings in their configs, and of the tokens they are given.

In: values. Out: nothing, or an error that names the setting. Does not know: what the settings do. Memory: O(1).
"""

from __future__ import annotations

from torch import Tensor

from attnscope.errors import SettingError, ShapeError
from attnscope.models.layers import ACTIVATIONS


def check_sizes(config: object, *names: str) -> None:
    """Refuse sizes below 1; None stands for a size that follows from others."""
    for name in names:
        size = getattr(config, name)
        if size is not None and size < 1:
            raise SettingError(f"{type(config).__name__}.{name} must be at least 1, but is {size}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not one of the choices: a typing error must not choose another model."""
    if value not in choices:
        raise SettingError(f"{name} must be one of {', '.join(choices)}, but is {value!r}")


def check_network(owner: str, activation: str, dropout: float) -> None:
    """Refuse an unknown activation and a dropout that is no share."""
    check_choice(f"{owner}.activation", activation, tuple(ACTIVATIONS))
    if not 0 <= dropout < 1:
        raise SettingError(f"{owner}.dropout is a share from 0 to below 1, but is {dropout}")


def check_tokens(tokens: Tensor, positions: Tensor) -> None:
    """Refuse tokens that are not (batch, position), and positions that do not belong to them."""
    if tokens.dim() != 2:
        raise ShapeError(f"tokens are (batch, position), got {tuple(tokens.shape)}; one text is tokens[None]")
    if tuple(positions.shape) not in (tuple(tokens.shape[1:]), tuple(tokens.shape)):
        raise ShapeError(
            f"positions are (position,) or (batch, position), so for these tokens ({tokens.shape[1]},) or "
            f"{tuple(tokens.shape)}, but {tuple(positions.shape)} arrived"
        )
