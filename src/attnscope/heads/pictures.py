"""A picture for each label: the attention pattern of its strongest head, on the text that decided the label.

In: a table with labels, and the traces that it was made from. Out: figures by label.
Does not know: files, models. Memory: that of one figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from attnscope.figures import heatmap
from attnscope.heads.labels import LABELS, RELATIONS
from attnscope.heads.table import HeadTable
from attnscope.recording import Trace


def label_pictures(
    table: HeadTable, trace: Trace, probe: Trace | None = None, examples: Mapping[str, Trace] = MappingProxyType({})
) -> Iterator[tuple[str, Any]]:
    """Yield the name of each label in a table, and a figure of the head with the highest score for it.

    Args:
        table: Scores with labels.
        trace: The trace that was scored.
        probe: The trace of the repeated-token probe, if it was scored.
        examples: Traces of sentences for "agreement" and "coreference"; without one, such a label is left out.
    """
    for label in LABELS:
        score = label.find_score(table)
        found = table.with_label(label.name)
        source = examples.get(label.name) if label.name in RELATIONS else trace
        if score is None or source is None or not len(found):
            continue
        if score.endswith("_probe") and probe is not None:
            source = probe
        best = found.top(score, 1)
        name, head = best.layers[0], best.heads[0]
        rows, columns = source.labels(name)
        where = f"head {head} of layer {best.short_names[name]}"
        title = f"{label.name}: {where}, {score.replace('_', ' on the ')} {best[score][0]:.2f}"
        matrix = source[name].batch(0).head(source.layer(name).heads.index(head))
        yield label.name, heatmap(matrix, columns, query_tokens=rows, title=title)
