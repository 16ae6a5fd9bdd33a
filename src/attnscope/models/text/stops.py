"""Text as it comes, up to the first stop string.

In: pieces of text, cut anywhere, and strings that end it. Out: the text before the earliest of them, each part as soon
as it is certain not to belong to one; the same whatever the pieces are.
Does not know: tokens, models, or where the pieces come from.
Memory: O(longest stop string + longest piece).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attnscope.errors import SettingError


class TextUntil:
    """The text before the first of some stop strings, given back as early as it is certain.

    The first is the one that begins first. So a stop string that is found waits while another one, begun before it,
    may still be completed; and the text that may be the beginning of a stop string is held back until it is not.

    >>> text = TextUntil(["</answer>"])
    >>> [text.add(piece) for piece in ("It is 4", "2.</an", "swer> and")]
    ['It is 4', '2.', '']
    >>> text.stopped
    True
    """

    def __init__(self, stops: Iterable[str] = ()):
        self.stops = (stops,) if isinstance(stops, str) else tuple(stops)
        if not all(self.stops):
            raise SettingError(f"a stop string needs at least one character, got {list(self.stops)!r}")
        self.stopped = False
        self._held = ""

    def add(self, piece: str) -> str:
        """Take the next piece, and give back the text that has become certain."""
        if self.stopped:
            return ""
        text = self._held + piece
        found, begun = self._found(text), self._begun(text)
        self.stopped = found < len(text) and found <= begun
        certain = min(found, begun)
        self._held = "" if self.stopped else text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """No piece will come any more: give back what was held, up to a stop string that was waiting in it."""
        text, self._held = self._held, ""
        found = self._found(text)
        self.stopped = self.stopped or found < len(text)
        return text[:found]

    def _found(self, text: str) -> int:
        """Where the first whole stop string begins, or the length of the text."""
        return min((start for stop in self.stops if (start := text.find(stop)) >= 0), default=len(text))

    def _begun(self, text: str) -> int:
        """Where the earliest stop string begins of which the text ends too early to tell, or the length of the text."""
        longest = max(map(len, self.stops), default=1)
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if any(len(stop) > len(text) - start and stop.startswith(text[start:]) for stop in self.stops):
                return start
        return len(text)


def text_until(pieces: Iterable[str], stops: Iterable[str]) -> Iterator[str]:
    """The pieces up to the first stop string, which is not part of them; no piece is asked for after it.

    >>> list(text_until(["one, t", "wo, thr", "ee"], [", th"]))
    ['one', ', two']
    """
    text = TextUntil(stops)
    for piece in pieces:
        if certain := text.add(piece):
            yield certain
        if text.stopped:
            return
    if rest := text.finish():
        yield rest
