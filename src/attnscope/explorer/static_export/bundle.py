"""`Bundle`: responses encoded as text inside an HTML page, compressed, without duplicates, up to a size.

In: response bodies by path. Out: JSON of characters that are safe in HTML. Responses that are added together are
compressed together. Does not know: their content. Memory: the compressed responses.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping

Location = tuple[int, int, int]  # index of the part, offset and length

LEVEL = 6


class Bundle:
    """Responses by path, of at most `limit` characters in total, without the index of paths.

    >>> bundle = Bundle(200)
    >>> bundle.add({"meta": b"{}", "0/0/0/0": None}), bundle.add({"large": bytes(range(256))})
    (True, False)
    >>> "meta" in bundle, "large" in bundle
    (True, False)
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._parts: list[str] = []
        self._index: dict[str, Location | None] = {}
        self._known: dict[bytes, Location] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._index

    @property
    def remaining(self) -> int:
        """The number of characters that are left."""
        return self.limit - self.used

    def add(self, responses: Mapping[str, bytes | None]) -> bool:
        """Add all responses and return True, or none if they do not fit; None is a response without content."""
        places: dict[str, Location | None] = {}
        known: dict[bytes, Location] = {}
        content = bytearray()
        for path, body in responses.items():
            if body is None:
                places[path] = None
                continue
            digest = hashlib.blake2b(body, digest_size=16).digest()
            place = self._known.get(digest) or known.get(digest)
            if place is None:
                place = known[digest] = (len(self._parts), len(content), len(body))
                content += body
            places[path] = place
        part = _compress(bytes(content)) if content else ""
        if len(part) > self.remaining:
            return False
        self._parts += [part] if part else []
        self.used += len(part)
        self._index.update(places)
        self._known.update(known)
        return True

    def text(self) -> str:
        """Return the bundle as JSON."""
        index = _compress(json.dumps(self._index, separators=(",", ":")).encode())
        return json.dumps({"index": index, "parts": self._parts}, separators=(",", ":"))


def _compress(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, LEVEL, mtime=0)).decode("ascii")
