r"""File names as text that any file or terminal can hold, and back.

A name on disk is a sequence of bytes. Python shows bytes that are not UTF-8 as lone surrogates, which no UTF-8 file can
hold. In: a path as Python shows it. Out: the same path in valid Unicode without control characters, and the reverse.
Does not know: which files exist. Memory: one name.
"""

from __future__ import annotations

import re

ESCAPED = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
ESCAPES = re.compile(r"\\(?:\\|x([0-9a-f]{2})|u([0-9a-f]{4}))")
BYTES = 0xDC00
"""A byte b that is not UTF-8 is the surrogate BYTES + b (PEP 383)."""


def escape_name(name: str) -> str:
    r"""Write a byte that is not UTF-8 as `\xNN`, a control character as `\uNNNN`, and a backslash as `\\`.

    >>> print(escape_name("caf\udce9.txt"), escape_name("a\nb"), escape_name("a\\b"), escape_name("café"))
    caf\xe9.txt a\u000ab a\\b café
    """
    return ESCAPED.sub(lambda found: _escape(found[0]), name)


def unescape_name(text: str) -> str:
    r"""The name that `escape_name` has escaped.

    >>> unescape_name(r"caf\xe9.txt")
    'caf\udce9.txt'
    """
    return ESCAPES.sub(_unescape, text)


def _escape(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    return f"\\x{code - BYTES:02x}" if BYTES + 0x80 <= code <= BYTES + 0xFF else f"\\u{code:04x}"


def _unescape(found: re.Match[str]) -> str:
    byte, code = found.groups()
    return chr(BYTES + int(byte, 16)) if byte else chr(int(code, 16)) if code else "\\"
