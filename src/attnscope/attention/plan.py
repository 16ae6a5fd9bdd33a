"""Which engine answers an attention, what it will do, what memory it takes, and why.

In: a rule. Out: a `Plan` that `attend` executes and `explain` prints. The fused kernel is taken wherever its answer is
exact, streaming for everything else, and the quadratic reference only when it is asked for by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.attention import fused, kernels, reference, streaming
from attnscope.attention.algebra import Lowered
from attnscope.attention.blocks import walk
from attnscope.attention.regions import Region, area, band
from attnscope.attention.rule import Rule
from attnscope.attention.tiles import cut
from attnscope.errors import UnsupportedError

BACKENDS = ("auto", "fused", "streaming", "reference")
BLOCK_COLUMNS = 512
BLOCK_CELLS = 2**20  # of all heads together: 4 MiB of fp32 scores, near the size of a second-level cache
MIN_BLOCK_ROWS, MAX_BLOCK_ROWS = 64, 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be executed: the fused work, the streaming walk, or neither for the reference. Printable."""

    why: str
    rule: Rule
    work: fused.Work | None = None
    walk: streaming.Walk | None = None

    def execute(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Output and lse of tensors in four dimensions; autocast does not change how they are computed."""
        device = self.rule.signature.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self.execute(query, key, value)
        if self.work is not None:
            output, lse = fused.solve(self.work, query, key, value)
        elif self.walk is not None:
            output, lse = streaming.solve(self.rule, self.walk, query, key, value)
        else:
            return reference.solve(self.rule, query, key, value)[:2]
        return (output, lse) if self.rule.sinks is None else self.rule.sinks.absorb(output, lse)

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return "fused" if self.work is not None else "streaming" if self.walk is not None else "reference"

    @property
    def cells(self) -> int:
        """Scores that will be computed, over all batch rows and heads."""
        batch, heads = self.rule.sizes[:2]
        if self.work is not None:
            return heads * sum(
                len(range(batch)[group.batch]) * tile.cells for group in self.work.groups for tile in group.tiles
            )
        if self.walk is not None:
            return heads * sum(
                len(range(batch)[group.batch]) * (rows.bottom - rows.top) * (columns.right - columns.left)
                for group in self.walk.groups
                for rows in walk(group.regions, self.walk.block_rows, self.walk.block_columns)
                for columns in rows.columns
            )
        return self.dense_cells

    @property
    def dense_cells(self) -> int:
        """Cells of the matrix that the textbooks build."""
        batch, heads, queries, keys = self.rule.sizes
        return batch * heads * queries * keys

    @property
    def kernel_calls(self) -> int:
        """Calls of the fused kernel; a tile that repeats takes one for each batch row."""
        if self.work is None:
            return 0
        batch = range(self.rule.sizes.batch)
        return sum(
            1 if tile.times == 1 else len(batch[group.batch]) for group in self.work.groups for tile in group.tiles
        )

    @property
    def extra_bytes(self) -> int:
        """Memory beside inputs and output that the forward takes at its peak, about."""
        batch, heads, queries, _ = self.rule.sizes
        item = self.rule.precise.itemsize
        if self.work is not None:
            merged = batch * heads * queries * (self.rule.signature.value[-1] + 1) * item
            return merged if self.kernel_calls > 1 else batch * heads * queries * item
        if self.walk is not None:
            return 3 * batch * heads * self.walk.block_rows * self.walk.block_columns * item
        return 3 * self.dense_cells * item

    def __str__(self) -> str:
        sizes, signature = self.rule.sizes, self.rule.signature
        share = 100 * self.cells / max(self.dense_cells, 1)
        lines = {
            "attention": f"{sizes.queries:,} queries x {sizes.keys:,} keys, {sizes.heads} heads on "
            f"{self.rule.key_heads}, batch {sizes.batch}, {str(signature.dtype)[6:]} on {signature.device}",
            "mask": str(self.rule.mask),
            "engine": f"{self.engine}, {self._how()}",
            "scores": f"{self.cells:,} of {self.dense_cells:,} cells ({share:.3g} %)",
            "memory": f"{size_text(self.extra_bytes)} beside inputs and output; the dense weights would take "
            f"{size_text(self.dense_cells * self.rule.precise.itemsize)}",
            "why": self.why,
        }
        return "\n".join(f"{name:10} {text}" for name, text in lines.items())

    def _how(self) -> str:
        if self.work is not None:
            kinds = sorted({tile.kind.value for group in self.work.groups for tile in group.tiles})
            calls = f"{self.kernel_calls} kernel call" + "s" * (self.kernel_calls != 1)
            return f"{calls} ({', '.join(kinds) or 'nothing to see'})" + " merged by lse" * (self.kernel_calls > 1)
        if self.walk is not None:
            return f"online softmax over blocks of {self.walk.block_rows} x {self.walk.block_columns} scores a head"
        return "the whole matrix is built"


def make_plan(rule: Rule, backend: str = "auto") -> Plan:
    """The plan for a rule; raises UnsupportedError when the named backend cannot answer it exactly."""
    if backend not in BACKENDS:
        raise ValueError(f"attend: backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend == "reference":
        return Plan(why="asked for by name", rule=rule)
    lowered = rule.mask.lower(rule.sizes)
    obstacle = find_obstacle(rule, lowered)
    if backend == "fused" and obstacle is not None:
        raise UnsupportedError(
            f"attend: backend='fused' cannot answer this exactly: {obstacle}; "
            "use backend='streaming' (O(n) memory) or 'auto'"
        )
    if backend == "streaming" or obstacle is not None or lowered is None:
        why = "asked for by name" if backend == "streaming" else f"{obstacle}; streaming is exact in O(n) memory"
        return Plan(why=why, rule=rule, walk=_walk(rule, lowered))
    # Repetitions of a tile are written through an unfolded view; traced, that loses what lies between them.
    joined = not torch.compiler.is_compiling()
    groups = tuple(fused.Group(batch, cut(regions, joined=joined)) for batch, regions in row_groups(lowered))
    why = "the scores are plain and the mask is a short list of rectangles, so the fused kernel is exact"
    bias = None if lowered.keep is None else fused.bias_of(lowered.keep, rule.precise)
    return Plan(why=why, rule=rule, work=fused.make_work(groups, rule.sizes.queries, rule.sizes.keys, rule.scale, bias))


def find_obstacle(rule: Rule, lowered: Lowered | None) -> str | None:
    """What keeps the fused kernel from being exact here, if anything."""
    if rule.signature.device.type != "cpu":
        return f"the fused kernel with lse is known on cpu only, these tensors are on {rule.signature.device}"
    if kernels.DIFFERENCE is not None:
        return kernels.DIFFERENCE
    if rule.steps:
        return f"the fused kernel has no {' + '.join(map(repr, rule.steps))}"
    if rule.dropout:
        return "the fused kernel has no dropout on cpu"
    if lowered is None:
        return f"the mask {rule.mask} is not a short list of rectangles"
    return None


def row_groups(lowered: Lowered) -> list[tuple[slice, tuple[Region, ...]]]:
    """Neighbouring batch rows with the same regions, together."""
    if len(set(lowered.regions)) == 1:
        return [(slice(None), lowered.regions[0])]
    groups: list[tuple[slice, tuple[Region, ...]]] = []
    for row, regions in enumerate(lowered.regions):
        if groups and groups[-1][1] == regions:
            groups[-1] = (slice(groups[-1][0].start, row + 1), regions)
        else:
            groups.append((slice(row, row + 1), regions))
    return groups


def _walk(rule: Rule, lowered: Lowered | None) -> streaming.Walk:
    sizes = rule.sizes
    columns = min(BLOCK_COLUMNS, max(sizes.keys, 1))
    rows = BLOCK_CELLS // (columns * max(sizes.batch * sizes.heads, 1)) // MIN_BLOCK_ROWS * MIN_BLOCK_ROWS
    rows = min(max(rows, MIN_BLOCK_ROWS), MAX_BLOCK_ROWS, max(sizes.queries, 1))
    everything = Lowered((band(sizes.queries, sizes.keys, None, None),))
    groups = tuple(streaming.Group(batch, regions) for batch, regions in row_groups(lowered or everything))
    keys_a_row = max(area(group.regions) for group in groups) // max(sizes.queries, 1)
    rows = min(rows, max(MIN_BLOCK_ROWS, keys_a_row))  # high blocks of a narrow band are mostly outside it
    exact = lowered is not None and lowered.keep is None
    return streaming.Walk(groups, exact, rows, columns)


def size_text(count: float) -> str:
    """Bytes in words.

    >>> size_text(4_194_304)
    '4.19 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
