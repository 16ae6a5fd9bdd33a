"""Labs: what is taught about attention, run and judged; and exercises that check themselves."""

from sightline.labs.catalogue import NAMES, run
from sightline.labs.claims import CLAIMS, Claim
from sightline.labs.corpus import reference_text
from sightline.labs.lab import Lab
from sightline.labs.measuring import best_times, counted_operations
from sightline.labs.result import Result
from sightline.labs.verdicts import Decision, Number, Verdict

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
