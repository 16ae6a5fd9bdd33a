"""Answers of the explorer as text that a page can bring along: packed, each content once, up to a size.

In: bodies by the paths that they answer. Out: JSON of letters that mean nothing to HTML. What is added together is
unpacked together. Does not know: what the answers are. Memory: what is packed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping

Place = tuple[int, int, int]  # which part, where it begins in there, and how long it is

LEVEL = 6


class Bundle:
    """Answers by path, in parts of at most `limit` letters together; the index of paths comes on top.

    >>> pack = Bundle(200)
    >>> pack.add({"meta": b"{}", "0/0/0/0": None}), pack.add({"large": bytes(range(256))})
    (True, False)
    >>> "meta" in pack, "large" in pack
    (True, False)
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._parts: list[str] = []
        self._index: dict[str, Place | None] = {}
        self._known: dict[bytes, Place] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._index

    @property
    def left(self) -> int:
        """Letters that there is still room for."""
        return self.limit - self.used

    def add(self, answers: Mapping[str, bytes | None]) -> bool:
        """Add all of them, or none if they do not fit; None is an answer without content."""
        places: dict[str, Place | None] = {}
        known: dict[bytes, Place] = {}
        content = bytearray()
        for path, body in answers.items():
            if body is None:
                places[path] = None
                continue
            name = hashlib.blake2b(body, digest_size=16).digest()
            place = self._known.get(name) or known.get(name)
            if place is None:
                place = known[name] = (len(self._parts), len(content), len(body))
                content += body
            places[path] = place
        part = _packed(bytes(content)) if content else ""
        if len(part) > self.left:
            return False
        self._parts += [part] if part else []
        self.used += len(part)
        self._index.update(places)
        self._known.update(known)
        return True

    def text(self) -> str:
        """All of it, as JSON."""
        index = _packed(json.dumps(self._index, separators=(",", ":")).encode())
        return json.dumps({"index": index, "parts": self._parts}, separators=(",", ":"))


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, LEVEL, mtime=0)).decode("ascii")
