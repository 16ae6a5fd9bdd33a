"""A name for a trace that follows from what is in it, so that a link and a cache can be trusted.

In: a trace. Out: 32 hexadecimal digits. Does not know: servers. Memory: a piece of a tensor.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import torch
from torch import Tensor

from attnscope.errors import UnsupportedError
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.files.expressions import ExpressionWriter
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer

DIGITS = 32
MAX_HASHED_BYTES = 2**20  # bytes of a tensor; of a larger one, evenly spread positions


def compute_trace_id(trace: Trace) -> str:
    """From the model's name, layers, shapes, tokens, masks and tensors; of huge tensors, from some of their positions.

    And from a sum of every position, so that another number anywhere is another name.
    """
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    _tell(digest, trace.model, trace.tokens())
    for text in trace.texts:
        _tell(digest, text.part, text.since, text.ids)
    rules = ExpressionWriter()
    for name, layer in trace.layers.items():
        _tell(digest, name, layer.shape, layer.heads, layer.cross)
        if isinstance(layer, DenseLayer):
            _tell(digest, layer.weights)
        elif isinstance(layer, Layer):
            call = layer.joined()
            _tell(digest, _place(rules, call), call.scale, call.query, call.key)
    _tell(digest, rules.nodes, *rules.tensors.values())
    return digest.hexdigest()


def _place(rules: ExpressionWriter, call: Call) -> tuple[object, object]:
    """Where the mask and the score of a call stand among all of them."""
    try:
        return rules.mask(call.mask), None if call.score_mod is None else rules.score(call.score_mod)
    except UnsupportedError:  # of somebody's own making: nobody can say that two of them are the same
        return secrets.token_hex(DIGITS // 2), None


def derive_id(identity: str, how: str) -> str:
    """The name of a trace that was made from another.

    >>> derive_id("0" * 32, "without its mask") == derive_id("0" * 32, "with it")
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
    """The tensor itself, or every so many of its positions, which stand in the axis before the last, and all sums."""
    tensor = tensor.detach()
    kind = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
    step = -(-tensor.nbytes // MAX_HASHED_BYTES)
    if step <= 1 or tensor.dim() < 2:
        return kind + _plain(tensor)
    return kind + _plain(tensor[..., ::step, :]) + _plain(_sums(tensor))


def _plain(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _sums(tensor: Tensor) -> Tensor:
    """A number for each position, from all that stands there.

    Bits are added, as whole numbers: sums of floats would depend on their order, and with that on the machine. Eight
    bytes at once, where they fit, are added much faster than single numbers.
    """
    plain = tensor.cpu().contiguous().view(torch.uint8).numpy()
    width = next(width for width in (8, 4, 2, 1) if plain.shape[-1] % width == 0)
    others = [axis for axis in range(plain.ndim) if axis != plain.ndim - 2]
    return torch.from_numpy(plain.view(f"i{width}")).sum(others, dtype=torch.int64)
