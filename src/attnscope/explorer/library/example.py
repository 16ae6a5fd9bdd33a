"""`example`: the trace that AttnScope brings along, for a first look without a model.

Out: one sentence in six heads of SmolLM2-135M, each of which does one thing: scripts/make_example.py has made it.
Does not know: models. Memory: some 100 KB, mapped.
"""

from __future__ import annotations

from pathlib import Path

from attnscope.recording import Trace, open_trace

FOLDER = Path(__file__).parents[1] / "example"
NAME = "An example: SmolLM2-135M"


def example() -> Trace:
    """The trace.

    >>> trace = example()
    >>> len(trace), trace.tokens()[:4]
    (5, ['Mary', ' Whit', 'field', ' lent'])
    """
    return open_trace(FOLDER)
