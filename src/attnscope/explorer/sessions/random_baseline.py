"""The random-weight baseline of a model: the same architecture with randomly initialised parameters.

In: a model of AttnScope or of transformers. Out: a copy in eval mode, with the same dtypes and on the same device. The
seed is fixed, so each call returns equal parameters.
Does not know: texts, traces. Memory: that of the model, in float32 during creation.
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn

from attnscope.errors import UnsupportedError
from attnscope.models import Decoder, Encoder

SEED = 0


def has_random_baseline(model: nn.Module) -> bool:
    """Whether the model can be created again from its config alone, with unquantized parameters."""
    if type(model) in (Decoder, Encoder):
        return True
    library = sys.modules.get(
        "transformers.modeling_utils"
    )  # not imported here: a model of transformers has imported it
    if library is None or not isinstance(model, library.PreTrainedModel):
        return False
    return getattr(model.config, "quantization_config", None) is None


def make_random_baseline(model: nn.Module) -> nn.Module:
    """Create a randomly initialised copy of a model.

    Args:
        model: A `Decoder` or `Encoder`, or an unquantized model of transformers.

    Returns:
        The copy, in eval mode.

    Raises:
        UnsupportedError: The model cannot be created from its config alone.

    >>> from attnscope.models import DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> baseline = make_random_baseline(Decoder(config))
    >>> torch.equal(baseline.embedding.weight, make_random_baseline(baseline).embedding.weight)
    True
    """
    if not has_random_baseline(model):
        raise UnsupportedError(
            f"cannot create a randomly initialized copy of {type(model).__name__}; only Decoder and Encoder of "
            "AttnScope and unquantized models of transformers are supported"
        )
    # Initialisation uses torch's global generator, whose state is restored afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        baseline: nn.Module = type(model)(copy.deepcopy(model.config))
    _place_like(baseline, model)
    return baseline.eval()


@torch.no_grad()
def _place_like(baseline: nn.Module, model: nn.Module) -> None:
    """Give each tensor the dtype and device of its original; a bfloat16 model may have some float32 tensors."""
    originals = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in [*baseline.named_parameters(), *baseline.named_buffers()]:
        if name not in originals or originals[name].shape != tensor.shape:
            raise UnsupportedError(
                f"cannot create a randomly initialized copy of this {type(model).__name__}: its config makes {name} "
                f"{tuple(tensor.shape)}, which the model does not have; the model was changed after it was created"
            )
        tensor.data = tensor.data.to(originals[name])
