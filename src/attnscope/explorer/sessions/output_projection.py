"""`project_head`: what a head adds to the residual stream, by the output projection (W_O) of the session's model.

In: a trace of the model, a head, and its output at a query. Out: a vector of the residual stream, or UnsupportedError.
The projection is the module that takes the concatenated head outputs; it is found by their values, in a run of a few
tokens. Does not know: HTTP. Memory: the activations of these tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.errors import UnsupportedError
from attnscope.explorer.cancellation import never_cancelled
from attnscope.explorer.sessions.model_check import is_model_of
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.heads.activations import Activations, TokenPosition
from attnscope.heads.residual_stream import residual_updates
from attnscope.recording import Trace

NUM_TOKENS = 4


def project_head(session: ModelSession, trace: Trace, layer: int, head: int, output: Tensor) -> Tensor:
    """Return the output of a head through its columns of W_O, without the bias.

    Args:
        session: The session of the model.
        trace: A trace of this model.
        layer: The layer, counted in the trace.
        head: The head, counted in the layer.
        output: The output of the head at a query, (dim,).

    Returns:
        The vector, (hidden_size,), float64.

    Raises:
        UnsupportedError: The trace is not one of this model, or no linear projection follows the heads.
        BusyError: The model is running for somebody else.
    """
    name, recorded = list(trace.layers.items())[layer]
    ids = trace.ids(0)[1]
    if ids is None:
        raise UnsupportedError("This trace has no token ids, so W_O cannot be found in the model.")
    with session.acquire(f"project {id(trace)}", never_cancelled) as model, torch.no_grad():
        if not is_model_of(model, trace, ids[:1]):
            raise UnsupportedError(f"This trace was not recorded from {session.name}, so its W_O is not known.")
        some = ids[:1, :NUM_TOKENS].to(next(model.parameters()).device)
        activations = Activations(model, TokenPosition(some.shape[1], some.shape[1] - 1))
        activations.run(some)
        found = next((one for one in residual_updates(activations) if one.layer.name == name), None)
        if found is None:
            raise UnsupportedError(f"No output projection was found behind the heads of {name}.")
        rows = torch.zeros(2, *found.layer.outputs.shape).to(found.layer.outputs)
        rows[0, recorded.heads[head]] = output.to(rows)
        with_head, without = found.projection(rows.flatten(1)[None])[0].cpu().double()
        return with_head - without
