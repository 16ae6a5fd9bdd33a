"""A server of one synthetic head, as a process of its own: its memory is then its own too.

`python load_server.py TOKENS` prints its address, then answers `threads` on standard input with how many it has, until
that is closed.
"""

from __future__ import annotations

import sys
import threading

import torch

from attnscope.attention import Causal
from attnscope.explorer.launch import Server
from attnscope.explorer.library.library import Library
from attnscope.recording import Trace
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer


def synthetic(tokens: int, width: int = 64) -> Trace:
    """A causal head over random queries and keys."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, tokens, width, generator=generator) for _ in range(2))
    call = Call(query=query * 2, key=key, value=None, mask=Causal(), scale=None)
    trace = Trace("synthetic")
    trace.layers["head"] = Layer("head", call, cross=False)
    return trace


if __name__ == "__main__":
    torch.set_num_threads(1)
    library = Library()
    library.add(synthetic(int(sys.argv[1])), name="synthetic")
    with Server(library) as server:
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            sys.stdout.write(f"{threading.active_count()}\n")
            sys.stdout.flush()
