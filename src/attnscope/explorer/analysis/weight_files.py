"""Blocks of exact weights as NPY and CSV files.

In: weights, (queries, keys), NaN where masked; token texts. Out: the bytes of a file.
Does not know: heads, servers. Memory: the file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from attnscope.errors import Cancelled
from attnscope.explorer.cancellation import CancelCheck, never_cancelled

MAX_TEXT_LENGTH = 200
ROWS_PER_CHECK = 64


def to_npy(weights: NDArray) -> bytes:
    """Encode as an NPY file of float32.

    >>> import numpy
    >>> numpy.load(io.BytesIO(to_npy(numpy.eye(2)))).dtype
    dtype('float32')
    """
    file = io.BytesIO()
    numpy.lib.format.write_array(file, numpy.ascontiguousarray(weights, "<f4"), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def to_csv(
    weights: NDArray, rows: Sequence[str], columns: Sequence[str], cancelled: CancelCheck = never_cancelled
) -> bytes:
    r"""Encode as a CSV file with labelled rows and columns; masked cells are empty. Raises Cancelled.

    >>> to_csv(numpy.array([[1, numpy.nan]]), ["0 a"], ["0 a", "1 ,"])
    b',0 a,"1 ,"\r\n0 a,1,\r\n'
    """
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["", *columns])
    for at, (name, line) in enumerate(zip(rows, weights.tolist(), strict=True)):
        if at % ROWS_PER_CHECK == 0 and cancelled():
            raise Cancelled("writing a CSV file was cancelled")
        writer.writerow([name, *("" if weight != weight else f"{weight:.9g}" for weight in line)])
    return file.getvalue().encode("utf-8", "replace")  # a token may have lone surrogates


def label_positions(positions: range, texts: Sequence[str] | None) -> list[str]:
    """Label positions with their tokens; a leading digit keeps spreadsheets from reading a formula.

    >>> label_positions(range(1, 3), ["a", "=b", "c"]), label_positions(range(2), None)
    (['1 =b', '2 c'], ['0', '1'])
    """
    if texts is None:
        return [str(position) for position in positions]
    return [f"{position} {texts[position][:MAX_TEXT_LENGTH]}" for position in positions]
