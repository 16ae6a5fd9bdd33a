"""Counts, sizes and durations as text."""

from __future__ import annotations


def format_bytes(count: float) -> str:
    """Format a number of bytes with its unit.

    >>> format_bytes(4_194_304)
    '4.19 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun in singular or plural.

    >>> format_count(1, "file"), format_count(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_seconds(seconds: float) -> str:
    """Format an estimated duration.

    >>> format_seconds(0.3), format_seconds(95), format_seconds(400), format_seconds(10_000)
    ('1 s', '95 s', '7 min', '2.8 h')
    """
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
