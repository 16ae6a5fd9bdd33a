"""Streamed text, up to the first stop string.

In: chunks of text, split anywhere, and stop strings. Out: the text before the first stop string, each part as soon as
it cannot belong to one; the same for any chunks.
Does not know: tokens, models.
Memory: O(longest stop string + longest chunk).
"""

from __future__ import annotations

from collections.abc import Iterable

from attnscope.errors import SettingError


class StopStringFilter:
    """Passes streamed text on until the first stop string.

    The first stop string is the one that starts first. Text that may be the start of a stop string is held back until
    the next chunks decide.

    Args:
        stops: The stop strings.

    Raises:
        SettingError: If a stop string is empty.

    >>> stop_filter = StopStringFilter(["</answer>"])
    >>> [stop_filter.add(chunk) for chunk in ("It is 4", "2.</an", "swer> and")]
    ['It is 4', '2.', '']
    >>> stop_filter.stopped
    True
    """

    def __init__(self, stops: Iterable[str] = ()):
        self.stops = (stops,) if isinstance(stops, str) else tuple(stops)
        if not all(self.stops):
            raise SettingError(f"stop strings must not be empty, got {list(self.stops)!r}")
        self.stopped = False
        self._held = ""

    def add(self, chunk: str) -> str:
        """Add the next chunk, and return the text that cannot belong to a stop string."""
        if self.stopped:
            return ""
        text = self._held + chunk
        complete, partial = self._find_complete(text), self._find_partial(text)
        self.stopped = complete < len(text) and complete <= partial
        end = min(complete, partial)
        self._held = "" if self.stopped else text[end:]
        return text[:end]

    def finish(self) -> str:
        """Return the text that was held back, up to a stop string in it; no chunks follow."""
        text, self._held = self._held, ""
        end = self._find_complete(text)
        self.stopped = self.stopped or end < len(text)
        return text[:end]

    def _find_complete(self, text: str) -> int:
        """The start of the first complete stop string, or the length of the text."""
        return min((start for stop in self.stops if (start := text.find(stop)) >= 0), default=len(text))

    def _find_partial(self, text: str) -> int:
        """The start of the first stop string that is cut off at the end of the text, or the length of the text."""
        longest = max(map(len, self.stops), default=1)
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if any(len(stop) > len(text) - start and stop.startswith(text[start:]) for stop in self.stops):
                return start
        return len(text)
