"""Labs: claims about attention, tested by experiments; and exercises that check themselves.

Names are imported when they are used, so that labs are listed and completed without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscope.labs.catalogue import NAMES, run
    from attnscope.labs.claims import CLAIMS, Claim
    from attnscope.labs.corpus import reference_text
    from attnscope.labs.lab import Lab
    from attnscope.labs.measuring import best_times, counted_operations
    from attnscope.labs.result import Result
    from attnscope.labs.verdicts import Decision, Number, Verdict

_HOMES = {
    "catalogue": "NAMES run",
    "claims": "CLAIMS Claim",
    "corpus": "reference_text",
    "lab": "Lab",
    "measuring": "best_times counted_operations",
    "result": "Result",
    "verdicts": "Decision Number Verdict",
}

__all__ = [
    "CLAIMS",
    "NAMES",
    "Claim",
    "Decision",
    "Lab",
    "Number",
    "Result",
    "Verdict",
    "best_times",
    "counted_operations",
    "reference_text",
    "run",
]

if not TYPE_CHECKING:  # type checkers read the imports above

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names.split():
                return globals().setdefault(name, getattr(import_module(f"{__name__}.{home}"), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
