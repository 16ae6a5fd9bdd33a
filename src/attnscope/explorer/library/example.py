"""`example`: the trace that AttnScope ships, which needs no model.

Out: one sentence in six heads of SmolLM2-135M, each with one clear pattern, made by scripts/make_example.py.
Does not know: models. Memory: about 100 KB, memory-mapped.
"""

from __future__ import annotations

from pathlib import Path

from attnscope.recording import Trace, open_trace

FOLDER = Path(__file__).parents[1] / "example"
NAME = "An example: SmolLM2-135M"


def example() -> Trace:
    """Open the shipped example trace.

    Returns:
        A trace with six heads of a trained model on one sentence.

    >>> trace = example()
    >>> len(trace), trace.tokens()[:4]
    (5, ['Mary', ' Whit', 'field', ' lent'])
    """
    return open_trace(FOLDER)
