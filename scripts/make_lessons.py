"""Write the figures and notebooks of the lessons: docs/images/learn, docs/learn/notebooks.

Usage: .venv/bin/python scripts/make_lessons.py
"""

import html
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
PAGES, IMAGES = ROOT / "docs/learn", ROOT / "docs/images/learn"
LESSONS = (
    "recurrence",
    "soft_lookup",
    "dot_products",
    "division",
    "masks",
    "multi_head",
    "positions",
    "block",
    "gpt",
    "cost",
    "trained_heads",
    "build_gpt",
)
"""The pages of the course, in order."""

INK, BLUE, ORANGE, GREY, PALE = "#222222", "#0a5c8f", "#b5480f", "#777777", "#eef4f8"
CODE_BLOCK = re.compile(r"^```python\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
INSTALL = """\
# Install AttnScope where it is missing, such as on Colab.
from importlib.util import find_spec

if find_spec("attnscope") is None:
    %pip install --quiet "attnscope[models]\""""
DOWNLOAD = "\n    !attnscope download smollm2-135m"
"""The first cell of a notebook that imports AttnScope, and its last line if it loads a model."""


class Drawing:
    """A small SVG: boxes, arrows, texts and cells, in pixels from the top left."""

    def __init__(self, width: int, height: int, title: str):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, sans-serif" role="img">',
            f"<title>{html.escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def text(
        self, x: float, y: float, words: str, *, colour: str = INK, size: int = 13, anchor: str = "middle"
    ) -> None:
        """Write words with their baseline at y."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">'
            f"{html.escape(words)}</text>"
        )

    def box(self, x: float, y: float, width: float, height: float, words: str = "", *, colour: str = BLUE) -> None:
        """Draw a box with words in its middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{PALE}" stroke="{colour}"/>'
        )
        self.text(x + width / 2, y + height / 2 + 5, words)

    def arrow(self, *points: tuple[float, float], colour: str = GREY) -> None:
        """Draw a line with an arrow at its end."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4" marker-end="url(#tip)"/>'
        )

    def cells(self, x: float, y: float, size: float, values: Tensor, *, digits: int | None = None) -> None:
        """Draw a matrix of numbers from 0 (white) to 1 (blue); None digits leave the numbers out."""
        for i, row in enumerate(values.tolist()):
            for j, value in enumerate(row):
                strength = min(max(value, 0.0), 1.0)
                red, green, blue = (round(255 + strength * (end - 255)) for end in (10, 92, 143))
                left, top = x + j * size, y + i * size
                stroke = ' stroke="#cccccc"' if digits is not None else ""
                self.parts.append(
                    f'<rect x="{left:g}" y="{top:g}" width="{size:g}" height="{size:g}" '
                    f'fill="#{red:02x}{green:02x}{blue:02x}"{stroke}/>'
                )
                if digits is not None:
                    colour = "white" if strength > 0.55 else INK
                    self.text(left + size / 2, top + size / 2 + 4, f"{value:.{digits}f}", colour=colour, size=12)

    def svg(self) -> str:
        """Return the text of the file."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def recurrence() -> Drawing:
    """A chain of states, and all pairs."""
    drawing = Drawing(640, 250, "A recurrent network and self-attention")
    for name, left in (("recurrent: one step after the other", 20), ("self-attention: all pairs at once", 350)):
        drawing.text(left + 135, 22, name)
        for i in range(4):
            drawing.box(left + 70 * i, 190, 48, 34, f"x{i + 1}")
            drawing.box(left + 70 * i, 60, 48, 34, f"h{i + 1}" if left == 20 else f"y{i + 1}", colour=ORANGE)
    for i in range(4):
        drawing.arrow((44 + 70 * i, 190), (44 + 70 * i, 98))
        if i:
            drawing.arrow((20 + 70 * i - 22, 77), (20 + 70 * i - 2, 77), colour=ORANGE)
        for j in range(4):
            drawing.arrow((374 + 70 * j, 190), (374 + 70 * i, 98))
    return drawing


def soft_lookup() -> Drawing:
    """A query, three keys with weights, three values."""
    drawing = Drawing(640, 230, "A soft dictionary lookup")
    weights = torch.softmax(torch.tensor([0.6, 0.8, -0.6]), dim=0).tolist()
    for x, words in ((80, "query"), (230, "keys"), (355, "weights"), (470, "values"), (590, "output")):
        drawing.text(x, 24, words, colour=GREY)
    drawing.box(30, 100, 100, 34, "(0.6, 0.8)")
    rows = zip(("(1, 0)", "(0, 1)", "(-1, 0)"), weights, (10, 20, 30), strict=True)
    for i, (key, weight, value) in enumerate(rows):
        y = 45 + 60 * i
        drawing.box(185, y, 90, 34, key)
        drawing.arrow((130, 117), (183, y + 17))
        drawing.box(320, y, 70, 34, f"{weight:.2f}", colour=ORANGE)
        drawing.arrow((275, y + 17), (318, y + 17))
        drawing.box(435, y, 70, 34, str(value))
        drawing.arrow((390, y + 17), (433, y + 17))
        drawing.arrow((505, y + 17), (558, 117))
    total = sum(weight * value for weight, value in zip(weights, (10, 20, 30), strict=True))
    drawing.box(560, 100, 60, 34, f"{total:.2f}", colour=ORANGE)
    return drawing


def three_roles() -> Drawing:
    """One token vector and its three projections."""
    drawing = Drawing(560, 190, "Query, key and value of one token")
    drawing.box(20, 78, 80, 34, "x_i")
    roles = (
        ("W_Q", "q_i", "what it looks for"),
        ("W_K", "k_i", "what it is found by"),
        ("W_V", "v_i", "what it passes on"),
    )
    for place, (matrix, vector, words) in enumerate(roles):
        y = 18 + 60 * place
        drawing.arrow((100, 95), (168, y + 17))
        drawing.box(170, y, 70, 34, matrix, colour=ORANGE)
        drawing.arrow((240, y + 17), (288, y + 17))
        drawing.box(290, y, 60, 34, vector)
        drawing.text(366, y + 22, words, anchor="start", colour=GREY)
    return drawing


def dot_products() -> Drawing:
    """The matrices of the example with three tokens."""
    drawing = Drawing(700, 200, "Attention of three tokens, step by step")
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    scores = x @ x.T
    divided = scores / 2**0.5
    exponentials = divided.exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True)
    steps = (
        ("Q Kᵀ", scores, scores / 4),
        ("divided by √2", divided, divided / 4),
        ("exp", exponentials, exponentials / 8),
        ("divided by row sum", weights, weights),
    )
    for place, (name, numbers, shade) in enumerate(steps):
        left = 20 + 172 * place
        drawing.text(left + 69, 24, name)
        drawing.cells(left, 40, 46, shade.clamp(max=0.5), digits=None)
        for i in range(3):
            for j in range(3):
                drawing.text(left + 46 * j + 23, 40 + 46 * i + 28, f"{numbers[i, j]:.3g}", size=13)
        if place < 3:
            drawing.arrow((left + 142, 109), (left + 168, 109))
    return drawing


def masks() -> Drawing:
    """Allowed pairs of three kinds of attention."""
    drawing = Drawing(660, 240, "Allowed pairs of three kinds of attention")
    kinds = (
        ("bidirectional", torch.ones(6, 6)),
        ("causal", torch.ones(6, 6).tril()),
        ("cross-attention", torch.ones(4, 7)),
    )
    for place, (name, allowed) in enumerate(kinds):
        left = 50 + 205 * place
        drawing.text(left + allowed.shape[1] * 12, 24, name)
        drawing.cells(left, 50, 24, 0.6 * allowed)
        for i in range(allowed.shape[0] + 1):
            drawing.parts.append(f'<path d="M{left} {50 + 24 * i}h{24 * allowed.shape[1]}" stroke="white"/>')
        for j in range(allowed.shape[1] + 1):
            drawing.parts.append(f'<path d="M{left + 24 * j} 50v{24 * allowed.shape[0]}" stroke="white"/>')
        drawing.parts.append(
            f'<rect x="{left}" y="50" width="{24 * allowed.shape[1]}" height="{24 * allowed.shape[0]}" fill="none" '
            f'stroke="{GREY}"/>'
        )
        drawing.text(left + allowed.shape[1] * 12, 66 + 24 * allowed.shape[0], "keys", colour=GREY, size=12)
        drawing.text(left - 6, 54 + 12 * allowed.shape[0], "queries", colour=GREY, size=12, anchor="end")
    drawing.text(330, 230, "blue: the query may attend to the key", colour=GREY, size=12)
    return drawing


def multi_head() -> Drawing:
    """Two views of the output projection."""
    drawing = Drawing(660, 250, "Two views of the output projection")
    drawing.text(140, 22, "concatenate, then multiply by W_O")
    for i in range(4):
        drawing.box(20 + 50 * i, 100, 46, 50, f"H{i + 1}")
    drawing.arrow((224, 125), (258, 125))
    drawing.box(262, 60, 50, 130, "W_O", colour=ORANGE)
    drawing.text(355, 130, "=", size=22)
    drawing.text(530, 22, "each head through its own block, then add")
    for i in range(4):
        y = 45 + 48 * i
        drawing.box(410, y, 46, 34, f"H{i + 1}")
        drawing.arrow((456, y + 17), (482, y + 17))
        drawing.box(485, y, 60, 34, f"W_O({i + 1})", colour=ORANGE)
        drawing.arrow((545, y + 17), (598, 134))
    drawing.box(600, 117, 36, 34, "+")
    return drawing


def positions() -> Drawing:
    """The table of sinusoidal positional encoding."""
    drawing = Drawing(690, 300, "Sinusoidal positional encoding")
    angles = torch.arange(64)[:, None] * 10000 ** (-torch.arange(0, 32, 2) / 32)
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    drawing.cells(90, 30, 8, (table.T + 1) / 2)
    drawing.text(346, 20, "position 0 to 63")
    drawing.text(84, 42, "0", size=12, anchor="end")
    drawing.text(84, 284, "31", size=12, anchor="end")
    drawing.text(84, 164, "component", size=12, anchor="end", colour=GREY)
    drawing.text(645, 154, "blue: 1", size=12, colour=BLUE)
    drawing.text(645, 170, "white: -1", size=12, colour=GREY)
    drawing.parts.append(f'<rect x="90" y="30" width="512" height="256" fill="none" stroke="{GREY}"/>')
    return drawing


def block() -> Drawing:
    """A pre-norm block."""
    drawing = Drawing(710, 190, "A pre-norm transformer block")
    drawing.arrow((20, 140), (690, 140), colour=BLUE)
    drawing.text(60, 165, "residual stream", colour=BLUE, size=12, anchor="start")
    for left, names in ((60, ("LayerNorm", "multi-head attention")), (370, ("LayerNorm", "feed-forward"))):
        drawing.arrow((left, 140), (left, 57), (left + 18, 57))
        drawing.box(left + 20, 40, 80, 34, names[0])
        drawing.arrow((left + 100, 57), (left + 118, 57))
        drawing.box(left + 120, 40, 136, 34, names[1], colour=ORANGE)
        drawing.arrow((left + 256, 57), (left + 275, 57), (left + 275, 128))
        drawing.parts.append(f'<circle cx="{left + 275}" cy="140" r="11" fill="white" stroke="{BLUE}"/>')
        drawing.text(left + 275, 145, "+")
    drawing.text(200, 30, "between tokens", colour=GREY, size=12)
    drawing.text(558, 30, "each token on its own", colour=GREY, size=12)
    return drawing


def gpt() -> Drawing:
    """From tokens to a new token, and back."""
    drawing = Drawing(700, 170, "A GPT and its generation loop")
    names = ("tokens", "embedding + positions", "causal blocks", "norm, output layer", "softmax, sample")
    widths, left = (70, 150, 110, 130, 120), 15
    for place, (name, width) in enumerate(zip(names, widths, strict=True)):
        drawing.box(left, 40, width, 40, name, colour=ORANGE if place == 4 else BLUE)
        left += width
        if place < 4:
            drawing.arrow((left, 60), (left + 20, 60))
            left += 22
    drawing.arrow((left - 60, 80), (left - 60, 130), (50, 130), (50, 84))
    drawing.text(350, 122, "append the new token, and run again", colour=GREY)
    return drawing


TEXT = "the cat sat on the mat"


def untrained_weights() -> Tensor:
    """Return the patterns of four heads with random parameters on the characters of TEXT."""
    heads, dim = 4, 8
    torch.manual_seed(0)
    embeddings = {character: torch.randn(heads * dim, dtype=torch.float64) for character in sorted(set(TEXT))}
    x = torch.stack([embeddings[character] for character in TEXT])
    layer = torch.nn.MultiheadAttention(heads * dim, heads, dtype=torch.float64)
    with torch.no_grad():
        return layer(x, x, x, average_attn_weights=False)[1]


def untrained_heads() -> Drawing:
    """The patterns of four heads with random parameters, each scaled to its largest weight."""
    drawing = Drawing(720, 210, "Four heads with random parameters")
    for head, pattern in enumerate(untrained_weights()):
        left = 20 + 175 * head
        drawing.text(left + 77, 22, f"head {head + 1}: largest weight {pattern.max():.2f}", size=11)
        drawing.cells(left, 32, 7, pattern / pattern.max())
        drawing.parts.append(f'<rect x="{left}" y="32" width="154" height="154" fill="none" stroke="{GREY}"/>')
    drawing.text(
        20, 203, f'"{TEXT}": 22 queries down, 22 keys across; uniform weights would be 0.05', size=11, anchor="start"
    )
    return drawing


def query_bars() -> Drawing:
    """The weights of three queries of the first of these heads; the bar of the query itself is orange."""
    drawing = Drawing(720, 320, "Weights of three queries")
    pattern, width, height = untrained_weights()[0], 26, 60
    for place, query in enumerate((0, 8, 15)):
        bottom = 90 + 96 * place
        character = TEXT[query].replace(" ", "space")
        drawing.text(20, bottom - height - 8, f"query {query} ({character}): one bar per key", size=11, anchor="start")
        for key, weight in enumerate((pattern[query] / pattern.max()).tolist()):
            left, tall = 20 + key * width, height * weight
            colour = ORANGE if key == query else BLUE
            drawing.parts.append(
                f'<rect x="{left}" y="{bottom - tall:.2f}" width="{width - 4}" height="{tall:.2f}" fill="{colour}"/>'
            )
            drawing.text(left + width / 2 - 2, bottom + 14, TEXT[key].replace(" ", "·"), size=11, colour=GREY)
        drawing.parts.append(f'<path d="M20 {bottom}h{22 * width - 4}" stroke="{GREY}"/>')
    drawing.text(20, 312, "head 1 of the figure above; orange: the query itself", size=11, anchor="start")
    return drawing


FIGURES: dict[str, Callable[[], Drawing]] = {
    "recurrence": recurrence,
    "three_roles": three_roles,
    "soft_lookup": soft_lookup,
    "dot_products": dot_products,
    "masks": masks,
    "multi_head": multi_head,
    "positions": positions,
    "block": block,
    "gpt": gpt,
    "untrained_heads": untrained_heads,
    "query_bars": query_bars,
}
"""By file name. The other lessons show figures of labs."""


def notebook(name: str) -> dict[str, Any]:
    """Convert the page of a lesson to a notebook in version 4 of the Jupyter format."""
    pieces = CODE_BLOCK.split((PAGES / f"{name}.md").read_text(encoding="utf-8"))
    cells = []
    for place, piece in enumerate(pieces):
        if source := piece.strip("\n"):
            cells.append(code_cell(source) if place % 2 else markdown_cell(source))
    code = "".join(pieces[1::2])
    if "import attnscope" in code:
        cells.insert(1, code_cell(INSTALL + DOWNLOAD * ("smollm2-135m" in code)))
    for number, cell in enumerate(cells):
        cell["id"] = f"{name.replace('_', '-')}-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def code_cell(source: str) -> dict[str, Any]:
    """Return a cell with code."""
    return {"cell_type": "code", "metadata": {}, "source": source, "execution_count": None, "outputs": []}


def markdown_cell(source: str) -> dict[str, Any]:
    """Return a cell with text, whose links start one folder further down."""
    source = re.sub(r"\]\((?![a-z]+:)", "](../", source).replace('href="', 'href="../')
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def notebook_text(name: str) -> str:
    """Return the file of a notebook."""
    return json.dumps(notebook(name), indent=1, ensure_ascii=False) + "\n"


def write(folder: Path, files: Sequence[tuple[str, str]]) -> None:
    """Write the files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files:
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(IMAGES, [(f"{name}.svg", draw().svg()) for name, draw in FIGURES.items()])
    write(PAGES / "notebooks", [(f"{name}.ipynb", notebook_text(name)) for name in LESSONS])
