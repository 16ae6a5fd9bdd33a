"""An English text that is part of every Python installation, so labs need no download: the language reference."""

from __future__ import annotations

from pydoc_data.topics import topics


def reference_text() -> str:
    """Return the Python language reference, as `help()` prints it: about 450 KB of English prose.

    >>> len(reference_text()) > 400_000
    True
    """
    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"
