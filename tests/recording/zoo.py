"""The test zoo: tiny random models of transformers, and the attention weights that they compute themselves."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.recording.exhibit import Exhibit
from tests.recording.zoo_decoders import DECODERS, SPARSE
from tests.recording.zoo_encoders import ENCODERS, SEQUENCES
from tests.recording.zoo_multimodal import MULTIMODAL
from tests.recording.zoo_others import BYPASS, HYBRID, PARTIAL
from tests.recording.zoo_perception import SOUND_MODELS, VISION_MODELS

__all__ = [
    "BYPASS",
    "EXHIBITS",
    "HYBRID",
    "PARTIAL",
    "SPARSE",
    "Exhibit",
    "eager_run",
    "eager_weights",
    "real_outputs",
    "real_rows",
    "real_tokens",
]

EXHIBITS: tuple[Exhibit, ...] = (
    *DECODERS,
    *ENCODERS,
    *SEQUENCES,
    *VISION_MODELS,
    *SOUND_MODELS,
    *MULTIMODAL,
)
"""All attention goes through the interface. HYBRID: so does all softmax, but other layers have none.
SPARSE: so does all, but an index that the interface is told by keyword leaves out keys.
PARTIAL: some attention does and some does not. BYPASS: none does."""


def eager_weights(exhibit: Exhibit) -> dict[str, list[Tensor]]:
    """The weights that a model's own eager attention computes: module path to (B, H, Q, K) of each call, in order."""
    return eager_run(exhibit)[1]


def eager_run(exhibit: Exhibit) -> tuple[Any, dict[str, list[Tensor]]]:
    """What a model returns with its own eager attention, and the weights of that."""
    model = exhibit.build()
    model.set_attn_implementation("eager")
    paths = {module: path for path, module in model.named_modules()}
    weights: dict[str, list[Tensor]] = {}

    def note(module: nn.Module, matrix: Tensor) -> None:
        weights.setdefault(paths[module], []).append(matrix)

    with torch.no_grad(), eager_functions_noted(model, note):
        outputs = model(**exhibit.inputs(model))
    return outputs, weights


@contextmanager
def eager_functions_noted(model: PreTrainedModel, note: Callable[[nn.Module, Tensor], None]) -> Iterator[None]:
    """Tell `note` what the eager attention functions of a model's modeling files return as weights."""
    with ExitStack() as patches:
        for namespace in modeling_files(model):
            for name, function in list(vars(namespace).items()):
                if name.endswith("eager_attention_forward"):
                    patches.enter_context(patch.object(namespace, name, noting(function, note)))
        yield


def modeling_files(model: PreTrainedModel) -> set[ModuleType]:
    """The Python modules that define the classes of a model's parts, and the bases of these classes."""
    classes = {base for module in model.modules() for base in type(module).__mro__}
    return {sys.modules[each.__module__] for each in classes if each.__module__.startswith("transformers.models.")}


def noting(function: Callable[..., Any], note: Callable[[nn.Module, Tensor], None]) -> Callable[..., Any]:
    """An eager attention function that tells its weights."""

    @functools.wraps(function)
    def noted(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        output, matrix = function(module, *args, **kwargs)
        note(module, matrix)
        return output, matrix

    return noted


def real_tokens(inputs: dict[str, Any], batch: int, length: int) -> Tensor:
    """Which tokens (B, L) are not padding: all of them, unless a mask of the inputs has that very shape."""
    for name in ("attention_mask", "decoder_attention_mask"):
        mask = inputs.get(name)
        if mask is not None and mask.shape == (batch, length):
            return mask.bool()
    return torch.ones(batch, length, dtype=torch.bool)


def real_rows(weights: Tensor, inputs: dict[str, Any]) -> Tensor:
    """The rows of weights (B, H, Q, K) whose queries are not padding: (rows, H, K)."""
    batch, _, length, _ = weights.shape
    return weights.transpose(1, 2)[real_tokens(inputs, batch, length)]


def real_outputs(outputs: Any, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """The numbers that a model returns by name, without the positions of padding."""
    tensors = {name: value for name, value in outputs.items() if isinstance(value, Tensor)}
    return {
        name: value[real_tokens(inputs, *value.shape[:2])] if value.ndim == 3 else value
        for name, value in tensors.items()
        if value.is_floating_point()
    }
