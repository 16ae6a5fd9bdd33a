"""Make the picture at the top of the README: a head of SmolLM2 on 8,192 tokens, from the whole to single weights.

In: .cache/models/smollm2-135m, as scripts/fetch_models.py puts it there, and the topics of Python's own help().
Out: docs/images/front.png.

Usage: .venv/bin/python scripts/make_front.py [TRACE]    (a saved trace of the same text is not read again)
"""

from __future__ import annotations

import io
import sys
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, FancyBboxPatch, Rectangle
from PIL import Image

import attnscope as ats
from attnscope.figures.token_labels import format_token
from attnscope.recording import load, read

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".cache" / "models" / "smollm2-135m"
PICTURE = ROOT / "docs" / "images" / "front.png"

TOPICS = ("with", "try", "for", "while", "if", "compound")  # the last has the others again, in another order
TOKENS = 8192
LAYER, HEAD = 18, 8

WIDTH, HEIGHT, DOTS = 1600, 850, 200  # pixels; shown at half of that, so nothing is thinner than two
CARD, INK, SOFT, MARK = "#14171a", "#e6e9ec", "#98a2ad", "#56b4e9"
COLOURS, SCALE = "magma", LogNorm(2**-15, 1, clip=True)
LABEL = {"facecolor": CARD, "edgecolor": "none", "pad": 1.0}  # no line runs through it
SMALL = 7.5  # points: ten pixels where the picture is shown
PHRASE = " error occurs during the assignment"  # comes twice, thousands of tokens apart


Corners = tuple[tuple[int, int], tuple[int, int]]
"""How far right and how far down, of the small frame and of the large one."""


class View(NamedTuple):
    """Some queries and keys from `query` and `key` on, `tokens` of each, `stride` to a cell, drawn at a place."""

    query: int
    key: int
    tokens: int
    stride: int
    left: int
    top: int
    side: int

    def edges(self, first: int) -> list[int]:
        """Where cells begin and end along an axis that begins at a token."""
        return [*range(first, first + self.tokens, self.stride), first + self.tokens]


def document() -> str:
    """Five topics of help(), and the chapter that has all of them once more."""
    return "\n\n".join(topics[name].strip() for name in TOPICS)


def recorded(folder: str | None) -> ats.Trace:
    """What the head attends to in the document."""
    if folder:
        return ats.open_trace(folder)
    model, tokenizer = load(MODEL, dtype=torch.float32)
    return read(model, tokenizer.encode(document())[:TOKENS], tokenizer, heads={LAYER: [HEAD]})


def sections(trace: ats.Trace) -> list[tuple[str, int]]:
    """What is written along the diagonal, and at which token."""
    text, starts = starting(trace)
    found = [(name, text.index(f'The "{name}" statement')) for name in ("with", "try", "for")]
    found += [(name, text.rindex(f'The "{name}" statement\n')) for name in ("for", "try", "with")]
    return [(name, bisect_left(starts, place)) for name, place in found]


def starting(trace: ats.Trace) -> tuple[str, list[int]]:
    """The text, and where in it each token begins."""
    found = trace.spans()
    assert found is not None, "this tokenizer can tell where tokens stand"
    return found[0], [start for start, _ in found[1]]


def views(trace: ats.Trace) -> list[View]:
    """The whole of it, the part around the place where the phrase comes back, and that place."""
    text, starts = starting(trace)
    first = text.index(PHRASE)
    query, key = bisect_left(starts, text.index(PHRASE, first + 1)), bisect_left(starts, first)
    return [
        View(0, 0, TOKENS, 24, 44, 124, 684),
        View(query - 60, key - 85, 150, 1, 444, 124, 300),
        View(query, key, 18, 1, 868, 232, 540),
    ]


def painted(figure: Figure, head: ats.AttentionMatrix, view: View) -> Axes:
    """One view, each cell the largest of the weights in it; what the mask hides is left out."""
    box = view.left / WIDTH, 1 - (view.top + view.side) / HEIGHT, view.side / WIDTH, view.side / HEIGHT
    axes = figure.add_axes(box)
    bins = head.bins(view.edges(view.query), view.edges(view.key))
    values = np.ma.array(bins.max.numpy(), mask=bins.visible_cells.numpy() == 0)
    left, top, tokens = view.key - 0.5, view.query - 0.5, view.tokens
    axes.imshow(
        values, norm=SCALE, cmap=COLOURS, extent=(left, left + tokens, top + tokens, top), interpolation="nearest"
    )
    axes.set(xticks=[], yticks=[], facecolor=CARD)
    return axes


def zoomed(figure: Figure, outer: Axes, inner: Axes, view: View, corners: Sequence[Corners]) -> None:
    """A frame around a part of one panel, and lines from its corners to those of the panel that has it large."""
    left, top, tokens = view.key - 0.5, view.query - 0.5, view.tokens
    outer.add_patch(Rectangle((left, top), tokens, tokens, fill=False, edgecolor=MARK, linewidth=1.1))
    for pair in corners:
        start, stop = ((left + right * tokens, top + down * tokens) for right, down in pair)
        line = ConnectionPatch(
            start, stop, "data", "data", axesA=outer, axesB=inner, color=MARK, linewidth=0.7, alpha=0.8
        )
        figure.add_artist(line)
    for spine in inner.spines.values():
        spine.set(color=MARK, linewidth=1.1)


def write_tokens(axes: Axes, words: Sequence[str], view: View) -> None:
    """The words of single tokens: keys above, queries to the right, where no line crosses them."""
    keys, queries = (range(first, first + view.tokens) for first in (view.key, view.query))
    axes.set_xticks(keys, [format_token(words[at]) for at in keys], rotation=90)
    axes.set_yticks(queries, [format_token(words[at]) for at in queries])
    axes.xaxis.tick_top()
    axes.yaxis.tick_right()
    axes.tick_params(length=0, pad=3, labelsize=SMALL, labelcolor=INK, labelfontfamily="monospace")


def write(figure: Figure, left: float, top: float, text: str, **style: Any) -> None:
    """A line of text at a place in pixels."""
    figure.text(left / WIDTH, 1 - top / HEIGHT, text, **{"color": INK, "fontsize": SMALL, "va": "center", **style})


def add_scale(figure: Figure, left: int, top: int) -> None:
    """What the colours mean."""
    axes = figure.add_axes((left / WIDTH, 1 - (top + 18) / HEIGHT, 260 / WIDTH, 18 / HEIGHT))
    axes.imshow(np.linspace(0, 1, 256)[None], cmap=COLOURS, aspect="auto")
    axes.set_axis_off()
    write(figure, left - 12, top + 9, "weight   2⁻¹⁵", ha="right", color=SOFT)
    write(figure, left + 272, top + 9, "1", color=SOFT)


def draw(trace: ats.Trace) -> Figure:
    """The card with its three panels."""
    layer = next(name for name in trace if f".{LAYER}." in name)
    matrix, words = trace[layer].batch(0), trace.tokens() or []
    head = matrix.head(HEAD if matrix.shape[0] > 1 else 0)
    figure = Figure(figsize=(WIDTH / DOTS, HEIGHT / DOTS), dpi=DOTS, facecolor="none")
    card = FancyBboxPatch(
        (0, 0),
        1,
        1,
        "round,pad=0,rounding_size=0.012",
        mutation_aspect=WIDTH / HEIGHT,
        facecolor=CARD,
        edgecolor="none",
        transform=figure.transFigure,
        zorder=-1,
    )
    figure.add_artist(card)
    whole, part, single = views(trace)
    panels = [painted(figure, head, view) for view in (whole, part, single)]
    for spine in panels[0].spines.values():
        spine.set_visible(False)
    zoomed(figure, panels[0], panels[1], part, [((0, 0), (0, 0)), ((1, 1), (1, 1))])
    zoomed(figure, panels[1], panels[2], single, [((1, 0), (0, 0)), ((1, 1), (0, 1))])
    write_tokens(panels[2], words, single)
    for name, at in sections(trace):
        place = at / TOKENS * whole.side
        write(figure, whole.left + place + 24, whole.top + place + 2, name, color=SOFT, bbox=LABEL)
    rows, columns = (f"{first:,} to {first + single.tokens - 1:,}" for first in (single.query, single.key))
    write(
        figure,
        whole.left,
        52,
        f"Layer {LAYER}, head {HEAD} of SmolLM2 reads {TOKENS:,} tokens",
        fontsize=10,
        weight="bold",
    )
    write(figure, part.left, part.top - 18, f"{part.tokens} tokens", color=SOFT)
    note = f"each pixel the largest of {whole.stride} × {whole.stride} weights"
    write(figure, whole.left, whole.top + whole.side + 20, note, color=SOFT)
    write(figure, single.left, single.top + single.side + 24, f"rows: tokens {rows} · columns: {columns}", color=SOFT)
    add_scale(figure, 1290, 44)
    return figure


def main(folder: str | None = None) -> None:
    """Record, paint, and write."""
    figure = draw(recorded(folder))
    pixels = io.BytesIO()
    figure.savefig(pixels, format="png")
    Image.open(pixels).save(PICTURE, optimize=True)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
