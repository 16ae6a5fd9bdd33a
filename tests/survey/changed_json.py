"""All copies of a JSON value with one change."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any


def changed_once(found: Any, wrong: Sequence[Any], *, items: int | None = None) -> Iterator[Any]:
    """Copies of a JSON value, each with one inner value replaced, one field left out, or one item doubled.

    Args:
        found: The value.
        wrong: What inner values are replaced by.
        items: How many items of each list are changed; all by default.
    """
    inside = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in list(inside)[: items if isinstance(found, list) else None]:
        for inner in (*wrong, *changed_once(value, wrong, items=items)):
            other = copy.copy(found)
            other[key] = inner
            yield other
        other = copy.copy(found)
        del other[key]
        yield other
        if isinstance(found, list):
            yield [*found, value]
