"""A name for a trace that follows from what is in it, so that a link and a cache can be trusted.

In: a trace. Out: 32 hexadecimal digits. Does not know: servers. Memory: a piece of a tensor.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from sightline.errors import UnsupportedError
from sightline.record import Trace
from sightline.record.call import Call
from sightline.record.files.expressions import Expressions
from sightline.record.layers.dense import DenseLayer
from sightline.record.layers.recorded import Layer

DIGITS = 32
LOOKED_AT = 2**20  # bytes of a tensor; of a larger one, evenly spread positions


def fingerprint(trace: Trace) -> str:
    """From the model's name, layers, shapes, tokens, masks and tensors; of huge tensors, from positions all over."""
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    _tell(digest, trace.model, trace.tokens())
    for text in trace.texts:
        _tell(digest, text.part, text.since, text.ids)
    rules = Expressions()
    for name, layer in trace.layers.items():
        _tell(digest, name, layer.shape, layer.heads, layer.cross)
        if isinstance(layer, DenseLayer):
            _tell(digest, layer.weights)
        elif isinstance(layer, Layer):
            call = layer.joined()
            _tell(digest, _place(rules, call), call.scale, call.query, call.key)
    _tell(digest, rules.nodes, *rules.tensors.values())
    return digest.hexdigest()


def _place(rules: Expressions, call: Call) -> tuple[object, object]:
    """Where the mask and the score of a call stand among all of them."""
    try:
        return rules.mask(call.mask), None if call.score is None else rules.score(call.score)
    except UnsupportedError:  # of somebody's own making: its kind has to do
        return type(call.mask).__name__, type(call.score).__name__


def derived(identity: str, how: str) -> str:
    """The name of a trace that was made from another.

    >>> derived("0" * 32, "without its mask") == derived("0" * 32, "with it")
    False
    """
    return hashlib.blake2b(f"{identity} {how}".encode(), digest_size=DIGITS // 2).hexdigest()


def _tell(digest: Any, *values: object) -> None:
    """Add values, each with where it ends."""
    for value in values:
        content = _bytes_of(value) if isinstance(value, Tensor) else repr(value).encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)


def _bytes_of(tensor: Tensor) -> bytes:
    """The tensor itself, or every so many of its positions, which stand in the axis before the last."""
    step = -(-tensor.nbytes // LOOKED_AT)
    some = tensor if step <= 1 or tensor.dim() < 2 else tensor[..., ::step, :]
    kind = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
    return kind + some.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
