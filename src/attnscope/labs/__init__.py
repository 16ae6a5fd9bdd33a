"""Labs: experiments that test claims about attention, and exercises with automatic feedback.

Names are imported on first use, so labs can be listed and completed without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscope.labs.catalogue import NAMES, run
    from attnscope.labs.claims import CLAIMS, Claim
    from attnscope.labs.corpus import reference_text
    from attnscope.labs.lab import Lab
    from attnscope.labs.profiling import best_times, count_flops
    from attnscope.labs.result import Result
    from attnscope.labs.verdicts import Decision, Measurement, Verdict

_MODULES = {
    "catalogue": "NAMES run",
    "claims": "CLAIMS Claim",
    "corpus": "reference_text",
    "lab": "Lab",
    "profiling": "best_times count_flops",
    "result": "Result",
    "verdicts": "Decision Measurement Verdict",
}

__all__ = [
    "CLAIMS",
    "NAMES",
    "Claim",
    "Decision",
    "Lab",
    "Measurement",
    "Result",
    "Verdict",
    "best_times",
    "count_flops",
    "reference_text",
    "run",
]

if not TYPE_CHECKING:  # type checkers read the imports above

    def __getattr__(name: str) -> object:
        for module, names in _MODULES.items():
            if name in names.split():
                return globals().setdefault(name, getattr(import_module(f"{__name__}.{module}"), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
