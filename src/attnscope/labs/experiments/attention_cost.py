"""What does attention cost, in time and in memory?

Every token is compared with every other one, so twice the tokens are four times the comparisons. What that means for
time and memory depends on what else is computed, and on whether the matrix of all comparisons is ever written down.
Operations are counted here. Times are the best of many, taken in turns on one core, and only their ratios are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnscope import AttentionMatrix, Causal, attend
from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict, best_times, count_flops


def textbook(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention as it is written in textbooks: the matrix of weights is built."""
    return (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ value


BUILT, FUSED = "time, matrix built", "time, never built"
WIDTH, HEADS = 128, 4


class Layer(nn.Module):
    """A layer of attention that can be told how to attend."""

    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, attention: Callable[..., Tensor]) -> Tensor:
        """(batch, token, width) in and out."""
        split = self.inward(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        return self.outward(attention(*split).transpose(1, 2).flatten(-2))


def growth_drawn(lengths: list[int], growth: dict[str, list[float]]) -> Any:
    """What doubling to each length multiplies, as curves."""
    return lines(
        lengths,
        growth,
        xlabel="tokens",
        ylabel="times as much as for half the tokens",
        title="Operations grow from twice to four times; time goes its own way",
        log_x=True,
        reference_lines={"4 times": 4.0},
    )


def how_time_grows(lab: Lab) -> None:
    """A layer of attention of width 128 with 4 heads reads longer and longer texts. Its comparisons grow with the
    square of the length, 4 n^2 d operations, but its four projections only with the length, 8 n d^2. The second part is
    the larger one up to n = 2 d. So doubling a short text costs little more than twice, and the factor gets near 4 only
    where the text is many times longer than the model is wide.

    Time goes its own way at both ends. Short texts cost about the same whatever their length, because starting an
    operation takes time. And where the matrix outgrows the cache, or is so large that its memory comes fresh from the
    system in every call, doubling can cost far more than 4 times. So the layer is timed twice: as textbooks write it,
    and by a fused kernel, which computes the same and never builds the matrix.
    """
    torch.manual_seed(lab.seed)
    layer, lengths = Layer(), [64 * 2**step for step in range(7)]
    texts = {length: torch.randn(1, length, WIDTH) for length in lengths}
    costs = {"operations": {n: count_flops(lambda x=x: layer(x, textbook)) for n, x in texts.items()}}
    lab.step("timing a layer at growing lengths")
    ways = {BUILT: textbook, FUSED: attend}
    calls = {(name, n): (lambda x=x, way=way: layer(x, way)) for name, way in ways.items() for n, x in texts.items()}
    timed = best_times(calls, seconds=lab.choose(small=16, full=120))
    costs |= {name: {n: 1000 * timed[name, n] for n in lengths} for name in ways}
    growth = {name: [cost[n] / cost[n // 2] for n in lengths[1:]] for name, cost in costs.items()}
    lab.table(
        "One layer, width 128, 4 heads; times in milliseconds",
        ("tokens", *costs, *(f"{name}: against half" for name in growth)),
        [
            (n, *(cost[n] for cost in costs.values()), *(found[at - 1] if at else "" for found in growth.values()))
            for at, n in enumerate(lengths)
        ],
    )
    drawing = lines(
        lengths[1:],
        growth,
        xlabel="tokens",
        ylabel="times as much as for half the tokens",
        title="Operations grow from twice to four times; time goes its own way",
        log_x=True,
        reference_lines={"4 times": 4.0},
    )
    caption = (
        "What doubling the text to so many tokens multiplies: operations as counted, time as measured on one core."
    )
    lab.figure("doubling", drawing, caption)
    first, last = ({name: found[at] for name, found in growth.items()} for at in (0, -1))
    lab.decide(
        "19a",
        Verdict.HOLDS_WHEN,
        f"From 64 to 128 tokens operations grow {first['operations']:.2f} times and time {first[BUILT]:.2f} times; "
        f"from {lengths[-2]:,} to {lengths[-1]:,} operations grow {last['operations']:.2f} times and time "
        f"{last[BUILT]:.2f} times, or {last[FUSED]:.2f} where the matrix is never built.",
        Measurement(name="operations, 64 to 128", value=first["operations"], low=2.39, high=2.41),
        Measurement(name="operations, last doubling", value=last["operations"], low=3.7, high=3.95),
        Measurement(name="time, 64 to 128", value=first[BUILT], low=0.5, high=2.8),
        Measurement(name="time, last doubling, matrix built", value=last[BUILT], low=2.5),
        Measurement(name="time, last doubling, never built", value=last[FUSED], low=2.5, high=7),
        condition="the text is many times longer than the model is wide",
    )


def bytes_kept(attention: Callable[..., Tensor], *inputs: Tensor) -> int:
    """What a call keeps for its backward pass; a tensor that is kept twice counts once."""
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = attention(*(tensor.clone().requires_grad_() for tensor in inputs))
    del output  # alive until here, so that no storage is given out twice
    return sum(kept.values())


def how_much_memory(lab: Lab) -> None:
    """The matrix has one number for each pair of tokens. The first table asks a tensor of that shape for its size; it
    lies on torch's `meta` device, which knows shapes and holds nothing.

    The second table is the one that is taught, for 16 heads and 32 layers in fp16, whose weights are kept for training.
    Is it one matrix a head that is kept? We count what the textbook's code saves for its backward pass: its inputs and
    one matrix. Beside it stands what `AttentionMatrix` holds, which computes any weight from queries and keys (64 wide)
    when it is asked for: at 131,072 tokens a row is read from it below, out of a matrix of 34 GB that nobody has built.
    """
    single = torch.empty(128_000, 128_000, device="meta").nbytes
    lab.table(
        "The weights of one head over 128,000 tokens in fp32",
        ("bytes", "GB", "GiB", "printed"),
        [(single, single / 1e9, single / 2**30, "62 GB")],
    )
    lab.decide(
        "19b",
        Verdict.DOES_NOT_HOLD,
        f"They take {single / 1e9:.1f} GB, which is {single / 2**30:.1f} GiB: 62 is neither. The size of the "
        "problem is told rightly.",
        Measurement(name="GB", value=single / 1e9, low=65.5, high=65.6),
        Measurement(name="GiB", value=single / 2**30, low=61.0, high=61.1),
    )
    generator = torch.Generator().manual_seed(lab.seed)
    width, matrices = 64, 16 * 32
    printed = {512: 0.2, 2048: 4.0, 8192: 64.0, 32_768: 1024.0, 131_072: 16_384.0}
    rows, right = [], 0
    for length, claimed in printed.items():
        stored = matrices * torch.empty(length, length, dtype=torch.float16, device="meta").nbytes / 2**30
        states = torch.randn(1, length, width, generator=generator).half()
        matrix = AttentionMatrix(states, states.clone(), mask=Causal())
        row = matrix[0, length - 1]
        rows.append((length, claimed, stored, matrices * matrix.nbytes / 2**30, float(row.sum())))
        right += f"{stored:.1f}" == f"{claimed:.1f}"
    lab.table(
        "Weights of 16 heads in 32 layers, in GiB",
        ("tokens", "printed", "stored in fp16", "held by AttentionMatrix", "sum of its last row"),
        rows,
    )
    inputs = [torch.randn(1, 1024, width, generator=generator) for _ in range(3)]
    matrix_bytes = 1024**2 * inputs[0].itemsize
    kept = (bytes_kept(textbook, *inputs) - sum(tensor.nbytes for tensor in inputs)) / matrix_bytes
    without = bytes_kept(attend, *inputs) / matrix_bytes
    lab.decide(
        "20",
        Verdict.HOLDS,
        f"{right} of 5 figures come out as printed (0.2 is 0.25 in full), and the textbook's code keeps {kept:.3g} "
        f"matrix a head beside its inputs. It need not: `attend` keeps {without:.0%} of one at 1,024 tokens, "
        "inputs and all.",
        Measurement(name="figures as printed, of 5", value=right, low=5, high=5),
        Measurement(name="matrices kept by the textbook's code", value=kept, low=1, high=1),
        Measurement(name="matrices kept by attend", value=without, low=0.2, high=0.3),
        Measurement(name="sum of the last row of 131,072", value=rows[-1][-1], low=0.999, high=1.001),
    )


class Watch(TorchDispatchMode):
    """Counts the tensors that are written while it is active, and their bytes; views are not written."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors, self.bytes = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at what came out."""
        result = function(*args, **(kwargs or {}))
        known = {tensor.untyped_storage().data_ptr() for tensor in tree_leaves(args) if isinstance(tensor, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.tensors, self.bytes = self.tensors + 1, self.bytes + tensor.nbytes
        return result


def watched(call: Callable[[], object]) -> Watch:
    """What a call writes."""
    with torch.no_grad(), Watch() as watch:
        call()
    return watch


def timed_beside_a_network(length: int, width: int, seconds: float) -> tuple[dict[str, float], list[float]]:
    """Times of a recurrent network and of attention; operations of the second for one of the first; tensors written."""
    network, narrow = nn.RNN(width, width, batch_first=True), nn.RNN(1, 1, batch_first=True)
    project = [nn.Linear(width, width, bias=False) for _ in range(4)]
    x, thin = torch.randn(1, length, width), torch.randn(1, length, 1)
    calls = {
        "network": lambda: network(x),
        "network of width 1": lambda: narrow(thin),
        "attention": lambda: textbook(x, x, x),
        "attention with projections": lambda: project[3](textbook(*(project[part](x) for part in range(3)))),
    }
    more = count_flops(calls["attention"]) / count_flops(calls["network"])
    written = [watched(calls[name]).tensors for name in ("network", "attention")]
    return best_times(calls, seconds=seconds), [more, *written]


def against_a_recurrent_network(lab: Lab) -> None:
    """A recurrent network reads token after token: each step is a small product that has to wait for the one before. We
    time it beside attention as the textbook writes it, both 64 wide, and count what they do. Below 64 tokens attention
    computes less. Above, it computes more, T / 64 times as much, and is still faster for a while: it writes four
    large tensors, the network two small ones for every token.

    How much of the network's time is computing at all? A network of width 1 computes four thousand times less and takes
    nearly as long: so much is the overhead of starting operations. The factors tell about a machine and a library. What
    they cannot hide is the square: at some thousand tokens the network wins. (The network's time includes its
    projections. The last column gives attention its own.)
    """
    torch.manual_seed(lab.seed)
    printed = {16: "1.7", 64: "4.4", 256: "6.8", 1024: "2.7", 4096: ""}
    columns = ("tokens", "operations, attention / network", "tensors written by the network", "by attention", "printed",
               "times faster", "overhead of the network", "times faster, projections included")  # fmt: skip
    rows, times = [], {}
    for length, claimed in printed.items():
        lab.step(f"timing a recurrent network over {length:,} tokens")
        best, counts = timed_beside_a_network(length, 64, seconds=lab.choose(small=2.5, full=20))
        faster = [best["network"] / best[name] for name in ("attention", "attention with projections")]
        rows.append((length, *counts, claimed, faster[0], best["network of width 1"] / best["network"], faster[1]))
        times[length] = best
    lab.table("A recurrent network beside attention: width 64, one core", columns, rows)
    names = ("network", "network of width 1", "attention")
    lab.figure(
        "recurrent",
        lines(
            list(times),
            {name: [1000 * best[name] for best in times.values()] for name in names},
            xlabel="tokens",
            ylabel="milliseconds",
            log_x=True,
            log_y=True,
            title="Attention is ahead for hundreds of tokens, not for thousands",
        ),
        "Best times on one core. A recurrent network of width 1 has next to nothing to compute: its time is overhead.",
    )
    faster = {row[0]: row[5] for row in rows}
    lab.decide(
        "21",
        Verdict.HOLDS_WHEN,
        f"Here the factors are {faster[16]:.1f}, {faster[64]:.1f}, {faster[256]:.1f} and {faster[1024]:.1f}; at 4,096 "
        f"tokens the network is {1 / faster[4096]:.1f} times faster. {rows[2][6]:.0%} of its time is overhead at 256.",
        Measurement(name="times faster at 64", value=faster[64], low=1.3, high=60),
        Measurement(name="times faster at 256", value=faster[256], low=1.3, high=60),
        Measurement(name="times faster at 4,096", value=faster[4096], high=0.9),
        Measurement(name="overhead at 256", value=rows[2][6], low=0.35, high=1.3),
        Measurement(name="operations at 256, attention / network", value=rows[2][1], low=3.99, high=4.01),
        Measurement(name="tensors that the network writes a token", value=rows[3][2] / 1024, low=2, high=4),
        Measurement(name="tensors that attention writes", value=rows[3][3], low=4, high=4),
        condition="the text has tens to hundreds of tokens; the factors are a machine's, and thousands turn them round",
    )


def tile_by_tile(query: Tensor, key: Tensor, value: Tensor, tile: int) -> Tensor:
    """Attention over tiles of keys, as FlashAttention does it: a running maximum, a running sum, a running output."""
    highest = query.new_full((*query.shape[:-1], 1), -math.inf)
    total, output = torch.zeros_like(highest), torch.zeros_like(query)
    for keys, values in zip(key.split(tile, dim=-2), value.split(tile, dim=-2), strict=True):
        scores = query @ keys.mT / math.sqrt(query.shape[-1])
        above = torch.maximum(highest, scores.amax(-1, keepdim=True))
        shrink, weights = (highest - above).exp(), (scores - above).exp()  # what came before, in the new measure
        total, output = total * shrink + weights.sum(-1, keepdim=True), output * shrink + weights @ values
        highest = above
    return output / total


def the_same_numbers(lab: Lab) -> None:
    """FlashAttention goes over the keys in tiles. Softmax divides by a sum over all keys, which is not known yet after
    the first tile; but all that was summed so far can be corrected by one factor when a larger score turns up. The
    function above is all of it. In exact arithmetic nothing changes, and in fp64 we see no more than rounding. In fp32
    most numbers differ in their last digit, since sums are taken in another order; the errors are of the same size.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    exact = [torch.randn(4, 1000, 64, generator=generator, dtype=torch.float64) for _ in range(3)]
    truth, short = textbook(*exact), [tensor.float() for tensor in exact]
    by_tiles = float((tile_by_tile(*exact, tile=64) - truth).abs().max())
    rounded = {"textbook": textbook(*short), "tile by tile": tile_by_tile(*short, tile=64), "fused": attend(*short)}
    errors = {name: float((output - truth).abs().max()) for name, output in rounded.items()}
    different = float((rounded["textbook"] != rounded["tile by tile"]).float().mean())
    lab.table("Largest error in fp32", ("attention", "error"), list(errors.items()), note="Against fp64.")
    tiled, fused = (errors[name] / errors["textbook"] for name in ("tile by tile", "fused"))
    lab.decide(
        "22a",
        Verdict.HOLDS,
        f"In fp64 both agree to {by_tiles:.0e}. In fp32 {different:.0%} of the numbers are not the same to the last "
        f"bit, and the largest error of the tiles is {tiled:.1f} times that of the textbook's code.",
        Measurement(name="largest difference in fp64", value=by_tiles, high=1e-13),
        Measurement(name="error in fp32, tile by tile / textbook", value=tiled, low=0.1, high=10),
        Measurement(name="error in fp32, fused / textbook", value=fused, low=0.1, high=10),
    )


def fewer_bytes(lab: Lab) -> None:
    """The operations are the same, tile by tile or not. What is saved is writing: the textbook's code writes the matrix
    three times. That takes time where the matrix is larger than the cache, so the gain is a matter of size and machine.
    Times are those of torch's fused kernel on one core of a processor; no GPU was measured.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    rows = []
    for length, heads in ((64, 1), (256, 8), (1024, 8), (2048, 8), *lab.choose(small=(), full=((4096, 8),))):
        lab.step(f"timing the fused kernel at {length:,} tokens")
        x = torch.randn(1, heads, length, 64, generator=generator)
        calls = {"textbook": lambda x=x: textbook(x, x, x), "fused": lambda x=x: attend(x, x, x)}
        best = best_times(calls, seconds=lab.choose(small=3, full=20))
        written = [watched(call).bytes for call in calls.values()]
        rows.append(
            (length, heads, *written, *(1000 * spent for spent in best.values()), best["textbook"] / best["fused"])
        )
    lab.table(
        "The fused kernel beside the textbook's code, on one core",
        ("tokens", "heads", "bytes written: textbook", "fused", "milliseconds: textbook", "fused", "times faster"),
        rows,
    )
    x = torch.randn(1, 1024, 64, generator=generator)
    same = count_flops(lambda: tile_by_tile(x, x, x, tile=64)) / count_flops(lambda: textbook(x, x, x))
    saved, small, large = rows[2][2] / rows[2][3], rows[0][-1], rows[3][-1]
    lab.decide(
        "22b",
        Verdict.HOLDS_WHEN,
        f"At 2,048 tokens the fused kernel is {large:.1f} times faster, at 64 tokens {small:.1f} times. It computes "
        f"the same and writes {saved:.0f} times fewer bytes at 1,024.",
        Measurement(name="operations, tile by tile / textbook", value=same, low=1, high=1),
        Measurement(name="bytes written at 1,024, textbook / fused", value=saved, low=45, high=50),
        Measurement(name="times faster at 64", value=small, high=1.5),
        Measurement(name="times faster at 2,048", value=large, low=1.4, high=10),
        condition="the matrix is large, as for a thousand tokens and more (on a processor; no GPU was measured)",
    )


PARTS = (how_time_grows, how_much_memory, against_a_recurrent_network, the_same_numbers, fewer_bytes)
