"""The untrained twin of a model: the same shape, with weights as they were before the first step of training.

In: a model of AttnScope or of transformers. Out: another one, in eval mode, with the same dtypes and on the same
device. It is drawn from a fixed seed, so that each call gives the same one.
Does not know: texts, traces. Memory: as much as the model, once more, and while it is made in float32.
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
    library = sys.modules.get("transformers.modeling_utils")  # not imported: a model of it would have brought it
    if library is None or not isinstance(model, library.PreTrainedModel):
        return False
    return getattr(model.config, "quantization_config", None) is None


def make_random_baseline(model: nn.Module) -> nn.Module:
    """The same architecture with fresh weights.

    >>> from attnscope.models import DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=32
    ... )
    >>> twin = make_random_baseline(Decoder(config))
    >>> torch.equal(twin.embedding.weight, make_random_baseline(twin).embedding.weight)
    True
    """
    if not has_random_baseline(model):
        raise UnsupportedError(
            f"cannot create a randomly initialized copy of {type(model).__name__}; only Decoder and Encoder of "
            "AttnScope and unquantized models of transformers are supported"
        )
    # Models draw from torch's one stream of random numbers. Whoever else uses it finds it where it was.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        twin: nn.Module = type(model)(copy.deepcopy(model.config))
    _place_like(twin, model)
    return twin.eval()


@torch.no_grad()
def _place_like(twin: nn.Module, model: nn.Module) -> None:
    """Give each tensor the dtype and device of its original: a model in bfloat16 may keep some in float32."""
    originals = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in [*twin.named_parameters(), *twin.named_buffers()]:
        if name not in originals or originals[name].shape != tensor.shape:
            raise UnsupportedError(
                f"cannot create a randomly initialized copy of this {type(model).__name__}: its config makes {name} "
                f"{tuple(tensor.shape)}, which the model does not have; the model was changed after it was created"
            )
        tensor.data = tensor.data.to(originals[name])
