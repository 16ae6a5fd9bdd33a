"""Labs: what is taught about attention, run and judged; and exercises that check themselves."""

from attnscope.labs.catalogue import NAMES, run
from attnscope.labs.claims import CLAIMS, Claim
from attnscope.labs.corpus import reference_text
from attnscope.labs.lab import Lab
from attnscope.labs.measuring import best_times, counted_operations
from attnscope.labs.result import Result
from attnscope.labs.verdicts import Decision, Number, Verdict

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
