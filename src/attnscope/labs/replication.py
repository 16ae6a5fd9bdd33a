"""Runs of the same lab with several random seeds: whether verdicts change, and how much measurements vary.

In: results as JSON, one per seed. Out: means with standard errors, and deviations, by claim and
measurement; verdicts that differ.
Does not know: how labs run. Memory: O(measurements).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnscope.labs.statistics import Mean, mean_with_error

Run = Mapping[str, Any]
"""A result as JSON, or its summary."""


def summarize(result: Run) -> dict[str, Any]:
    """Return the seed, verdicts and measured values of a result, without its tables and texts."""
    kept = ("claim", "verdict", "condition")
    return {
        "seed": result["seed"],
        "claims": [
            {
                **{key: claim[key] for key in kept},
                "measurements": [{"name": one["name"], "value": one["value"]} for one in claim["measurements"]],
            }
            for claim in result["claims"]
        ],
    }


def verdicts_by_claim(run: Run) -> dict[str, tuple[str, str]]:
    """Return the verdict and its condition for each claim."""
    return {claim["claim"]: (claim["verdict"], claim["condition"]) for claim in run["claims"]}


def changed_verdicts(runs: Sequence[Run]) -> list[str]:
    """Return the claims whose verdict is not the same in all runs, or that a run does not decide.

    >>> one, other = ({"claims": [{"claim": "1a", "verdict": it, "condition": ""}]} for it in ("holds", "inconclusive"))
    >>> changed_verdicts([one, one]), changed_verdicts([one, other])
    ([], ['1a'])
    """
    found = [verdicts_by_claim(run) for run in runs]
    claims = dict.fromkeys(claim for verdicts in found for claim in verdicts)
    return [claim for claim in claims if len({verdicts.get(claim) for verdicts in found}) > 1]


class SeedSpread(NamedTuple):
    """A measurement over several seeds; all numbers are NaN where they are not known."""

    mean: Mean
    """The mean over seeds, with its standard error."""
    deviation: float
    """The standard deviation of a single run; 0 where nothing is random."""


UNKNOWN = SeedSpread(Mean(math.nan, math.nan), math.nan)


def seed_spreads(runs: Sequence[Run]) -> dict[tuple[str, str], SeedSpread]:
    """Return the mean, its standard error and the deviation over seeds for each claim and name of a measurement.

    They are unknown for a single run, if a run lacks the measurement, and if a value is not finite.

    >>> runs = [{"claims": [{"claim": "1a", "measurements": [{"name": "share", "value": x}]}]} for x in (1, 2, 3, 4)]
    >>> spread = seed_spreads(runs)["1a", "share"]
    >>> str(spread.mean), round(spread.deviation, 2)
    ('2.5 ± 0.645', 1.29)
    """
    values: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for claim in run["claims"]:
            for one in claim["measurements"]:
                values.setdefault((claim["claim"], one["name"]), []).append(float(one["value"]))
    return {
        key: SeedSpread(mean_with_error(found), statistics.stdev(found))
        if len(found) == len(runs) > 1 and all(map(math.isfinite, found))
        else UNKNOWN
        for key, found in values.items()
    }
