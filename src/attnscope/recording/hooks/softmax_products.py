"""Finds attention that code computes by itself: a softmax over keys, and a product of its result with values.

In: calls of torch functions with their results, in the order in which they run. Out: whether a call is such a product.
Does not know: models, what is recorded. Memory: a weak reference for each softmax whose result is in use.

A softmax over experts or over a codebook is not taken for attention: its product has one row, or a parameter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SOFTMAX = frozenset({torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax})
PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm})


class SoftmaxProducts:
    """Follows softmax results through dropout, casts and reshapes, until they are multiplied by values."""

    def __init__(self) -> None:
        self._weights: dict[int, weakref.ref[Tensor]] = {}

    def is_attention(self, function: Callable, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> bool:
        """Whether a call weights values by a softmax; every call of the model has to come here."""
        if function in SOFTMAX:
            if _is_over_last_axis(args, kwargs, result):
                self._add(result)
            return False
        if not self._weights:
            return False
        if function in PRODUCTS:
            return len(args) == 2 and args[0] in self and _is_over_keys(*args)
        if function is torch.einsum:
            return len(args) == 3 and args[1] in self and _is_einsum_over_keys(args[0], args[2])
        if isinstance(result, Tensor) and any(arg in self and _has_same_keys(arg, result) for arg in args):
            self._add(result)
        return False

    def __contains__(self, tensor: object) -> bool:
        found = self._weights.get(id(tensor))
        return found is not None and found() is tensor

    def _add(self, tensor: Tensor) -> None:
        number = id(tensor)
        self._weights[number] = weakref.ref(tensor, lambda gone: self._remove(number, gone))

    def _remove(self, number: int, gone: weakref.ref[Tensor]) -> None:
        if self._weights.get(number) is gone:
            del self._weights[number]


def _is_over_last_axis(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> bool:
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return axis in (-1, result.dim() - 1) and result.dim() >= 2


def _has_same_keys(weights: Tensor, result: Tensor) -> bool:
    return result.dim() >= 2 and result.numel() == weights.numel() and result.shape[-1] == weights.shape[-1]


def _is_over_keys(weights: Tensor, values: Any) -> bool:
    is_tensor = isinstance(values, Tensor) and not isinstance(values, nn.Parameter)
    return is_tensor and values.dim() >= 2 and weights.shape[-2] > 1


def _is_einsum_over_keys(equation: Any, values: Any) -> bool:
    """Whether the last index of the first operand is summed, and each operand has an index that the other has not."""
    if not isinstance(equation, str) or "->" not in equation or isinstance(values, nn.Parameter):
        return False
    operands, result = equation.replace(" ", "").split("->")
    weights, _, values = operands.partition(",")
    key = weights[-1:]
    return key in values and key not in result and bool(set(weights) - set(values)) and bool(set(values) - set(weights))
