"""A text that is there wherever Python is: the reference of the language, as `help()` prints it.

In: nothing. Out: some 450 KB of English prose. Experiments that need a text to read or to learn from take this one,
so that they run without a network and without a file of anybody's.
Does not know: tokens. Memory: the text.
"""

from __future__ import annotations

from pydoc_data.topics import topics


def reference_text() -> str:
    """The topics of Python's help in alphabetical order, each as plain paragraphs.

    >>> len(reference_text()) > 400_000
    True
    """
    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"
