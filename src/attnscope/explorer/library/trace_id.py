"""The id of a trace, a hash of its content, so that links and caches stay valid.

In: a trace. Out: 32 hexadecimal digits. Does not know: servers. Memory: part of a tensor.
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
from attnscope.recording.files.images import image_fields, image_tensors
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer

DIGITS = 32
MAX_HASHED_BYTES = 2**20  # per tensor; of a larger one, evenly spaced positions and sums are hashed


def compute_trace_id(trace: Trace) -> str:
    """Hash the model's name, layers, shapes, tokens, masks and tensors.

    Of large tensors, some positions and the sum of every position are hashed, so any changed number changes the id.
    """
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    _update(digest, trace.model, trace.tokens())
    for text in trace.texts:
        _update(digest, text.part, text.since, text.ids)
    rules = ExpressionWriter()
    for name, layer in trace.layers.items():
        _update(digest, name, layer.shape, layer.heads, layer.cross)
        if isinstance(layer, DenseLayer):
            _update(digest, layer.weights)
        elif isinstance(layer, Layer):
            call = layer.merge_calls()
            _update(digest, _place(rules, call), call.scale, call.query, call.key)
    _update(digest, rules.nodes, *rules.tensors.values())
    if trace.image_layouts or trace.photos:
        given = trace.image_layouts, trace.photos
        _update(digest, image_fields(*given), *image_tensors(*given).values())
    return digest.hexdigest()


def _place(rules: ExpressionWriter, call: Call) -> tuple[object, object]:
    """Return the indices of the mask and score modifier of a call among the expressions."""
    try:
        return rules.mask(call.mask), None if call.score_mod is None else rules.score(call.score_mod)
    except UnsupportedError:  # a user-defined mask: equality cannot be decided
        return secrets.token_hex(DIGITS // 2), None


def derive_id(trace_id: str, how: str) -> str:
    """Derive the id of a trace that was made from another.

    >>> derive_id("0" * 32, "without its mask") == derive_id("0" * 32, "with it")
    False
    """
    return hashlib.blake2b(f"{trace_id} {how}".encode(), digest_size=DIGITS // 2).hexdigest()


def _update(digest: Any, *values: object) -> None:
    """Hash values, each with its length."""
    for value in values:
        content = _bytes_of(value) if isinstance(value, Tensor) else repr(value).encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)


def _bytes_of(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor, or of evenly spaced positions (the second last axis) and all sums."""
    tensor = tensor.detach()
    kind = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
    step = -(-tensor.nbytes // MAX_HASHED_BYTES)
    if step <= 1 or tensor.dim() < 2:
        return kind + _plain(tensor)
    return kind + _plain(tensor[..., ::step, :]) + _plain(_sums(tensor))


def _plain(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _sums(tensor: Tensor) -> Tensor:
    """Sum the bits at each position as integers.

    Sums of floats would depend on their order, and so on the machine. Summing eight bytes at once is much faster.
    """
    plain = tensor.cpu().contiguous().view(torch.uint8).numpy()
    width = next(width for width in (8, 4, 2, 1) if plain.shape[-1] % width == 0)
    others = [axis for axis in range(plain.ndim) if axis != plain.ndim - 2]
    return torch.from_numpy(plain.view(f"i{width}")).sum(others, dtype=torch.int64)
