"""The cost of attention

This lab shows you how time and memory of attention grow with the sequence length, when a recurrent network is
faster, and what FlashAttention saves.

Attention compares every token with every other one, so twice the tokens need four times the comparisons. The effect on
time and memory depends on the rest of the layer, and on whether the attention matrix is stored. Operations are counted.
Times are the best of many alternating runs on one core, and only their ratios are used.
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


def dense_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute attention with a dense matrix of weights."""
    return (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ value


DENSE, FUSED = "time, dense", "time, fused"
WIDTH, HEADS = 128, 4


class AttentionLayer(nn.Module):
    """A multi-head attention layer with an exchangeable attention function."""

    def __init__(self):
        super().__init__()
        self.query_key_value, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, attention: Callable[..., Tensor]) -> Tensor:
        """Return the output for an input, (batch, tokens, hidden size) each."""
        split = self.query_key_value(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        return self.output(attention(*split).transpose(1, 2).flatten(-2))


def time_and_sequence_length(lab: Lab) -> None:
    """An attention layer with hidden size 128 and 4 heads reads longer and longer sequences. Its comparisons take 4 n²
    d operations, its four projections 8 n d². The projections dominate up to n = 2 d. So doubling a short sequence
    costs little more than twice as much. The factor approaches 4 only if the sequence is many times longer than the
    hidden size.

    Time differs at both ends. Short sequences take about the same time, because starting an operation takes time. Once
    the matrix exceeds the cache, or needs fresh memory from the system in every call, doubling can cost more than 4
    times. So the layer is timed twice: with a dense matrix, and with a fused kernel that computes the same without
    storing it.
    """
    torch.manual_seed(lab.seed)
    layer, lengths = AttentionLayer(), [64 * 2**step for step in range(7)]
    texts = {length: torch.randn(1, length, WIDTH) for length in lengths}
    costs = {"operations": {n: count_flops(lambda x=x: layer(x, dense_attention)) for n, x in texts.items()}}
    lab.step("timing a layer at growing sequence lengths")
    functions = {DENSE: dense_attention, FUSED: attend}
    calls = {
        (name, n): (lambda x=x, function=function: layer(x, function))
        for name, function in functions.items()
        for n, x in texts.items()
    }
    timed = best_times(calls, seconds=lab.choose(small=16, full=120))
    costs |= {name: {n: 1000 * timed[name, n] for n in lengths} for name in functions}
    growth = {name: [cost[n] / cost[n // 2] for n in lengths[1:]] for name, cost in costs.items()}
    lab.table(
        "One layer, hidden size 128, 4 heads; times in milliseconds",
        ("tokens", *costs, *(f"{name}: relative to half the tokens" for name in growth)),
        [
            (n, *(cost[n] for cost in costs.values()), *(found[at - 1] if at else "" for found in growth.values()))
            for at, n in enumerate(lengths)
        ],
    )
    drawing = lines(
        lengths[1:],
        growth,
        xlabel="tokens",
        ylabel="factor relative to half the tokens",
        title="Operations grow by a factor of two to four; time differs",
        log_x=True,
        reference_lines={"4 times": 4.0},
    )
    caption = "Growth of operations and time when the sequence length doubles, on one core."
    lab.figure("doubling", drawing, caption)
    first, last = ({name: found[at] for name, found in growth.items()} for at in (0, -1))
    lab.decide(
        "19a",
        Verdict.HOLDS_WHEN,
        f"From 64 to 128 tokens, operations grow by a factor of {first['operations']:.2f} and time by "
        f"{first[DENSE]:.2f}; from {lengths[-2]:,} to {lengths[-1]:,} operations grow by {last['operations']:.2f} and "
        f"time by {last[DENSE]:.2f}, or by {last[FUSED]:.2f} with the fused kernel.",
        Measurement(name="operations, 64 to 128", value=first["operations"], low=2.39, high=2.41),
        Measurement(name="operations, last doubling", value=last["operations"], low=3.7, high=3.95),
        Measurement(name="time, 64 to 128", value=first[DENSE], low=0.5, high=2.8),
        Measurement(name="time, last doubling, dense", value=last[DENSE], low=2.5),
        Measurement(name="time, last doubling, fused", value=last[FUSED], low=2.5, high=7),
        condition="the sequence is many times longer than the hidden size",
    )


def saved_bytes(attention: Callable[..., Tensor], *inputs: Tensor) -> int:
    """Return the bytes that a call saves for its backward pass; a tensor that is saved twice counts once."""
    saved = {}

    def save(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        output = attention(*(tensor.clone().requires_grad_() for tensor in inputs))
    del output  # alive until here, so that no storage is reused
    return sum(saved.values())


def memory_and_sequence_length(lab: Lab) -> None:
    """The attention matrix has one number per pair of tokens. The first table is the size of a tensor of that shape on
    the `meta` device of torch, which stores no data.

    The second table repeats figures of a text: 16 heads and 32 layers in fp16, with all weights saved for training. The
    text also prints what it calls the matrix of a layer, which is that of one head. Is one matrix per head saved? The
    lab counts what dense attention saves for its backward pass: its inputs and one matrix. The last columns are for
    `AttentionMatrix`, which computes weights from queries and keys (head dimension 64) on demand. It reads one row of a
    matrix of 131,072 tokens, which would take 34 GB.
    """
    single = torch.empty(128_000, 128_000, device="meta").nbytes
    lab.table(
        "The weights of one head over 128,000 tokens in fp32",
        ("bytes", "GB", "GiB", "printed"),
        [(single, single / 1e9, single / 2**30, "62 GB")],
    )
    lab.decide(
        "19b",
        Verdict.HOLDS_WHEN,
        f"They take {single / 1e9:.1f} GB, which is {single / 2**30:.1f} GiB: the printed figure is "
        f"{1 - 62e9 / single:.0%} too small in GB and {62 * 2**30 / single - 1:.0%} too large in GiB.",
        Measurement(name="GB", value=single / 1e9, low=65.5, high=65.6),
        Measurement(name="GiB", value=single / 2**30, low=61.0, high=61.1),
        Measurement(name="62 GiB / its size", value=62 * 2**30 / single, low=0.95, high=1.05),
        Measurement(name="62 GB / its size", value=62e9 / single, high=0.95),
        condition="GB means GiB",
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
        ("tokens", "printed", "stored in fp16", "stored by AttentionMatrix", "sum of its last row"),
        rows,
    )
    inputs = [torch.randn(1, 1024, width, generator=generator) for _ in range(3)]
    matrix_bytes = 1024**2 * inputs[0].itemsize
    kept = (saved_bytes(dense_attention, *inputs) - sum(tensor.nbytes for tensor in inputs)) / matrix_bytes
    without = saved_bytes(attend, *inputs) / matrix_bytes
    layer_bytes = 16 * torch.empty(512, 512, dtype=torch.float16, device="meta").nbytes
    lab.decide(
        "20b",
        Verdict.DOES_NOT_HOLD,
        f"The weights of one layer of 16 heads over 512 tokens take {layer_bytes / 2**20:g} MiB. The printed figures "
        "are those of one head.",
        Measurement(name="weights of a layer over 512 tokens, MiB", value=layer_bytes / 2**20, low=8, high=8),
        Measurement(name="the same / printed", value=layer_bytes / 2**20 / 0.5, low=16, high=16),
    )
    lab.decide(
        "20a",
        Verdict.HOLDS,
        f"{right} of 5 figures are right (0.2 is 0.25), and dense attention saves {kept:.3g} "
        f"matrix per head in addition to its inputs. This is not necessary: `attend` saves {without:.0%} of a matrix "
        "at 1,024 tokens, including its inputs.",
        Measurement(name="correct figures, of 5", value=right, low=5, high=5),
        Measurement(name="matrices saved by dense attention", value=kept, low=1, high=1),
        Measurement(name="matrices saved by attend", value=without, low=0.2, high=0.3),
        Measurement(name="sum of the last row of 131,072", value=rows[-1][-1], low=0.999, high=1.001),
    )


class WriteCounter(TorchDispatchMode):
    """Counts the tensors that are written while it is active, and their bytes; views do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors, self.bytes = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count its new tensors."""
        result = function(*args, **(kwargs or {}))
        known = {tensor.untyped_storage().data_ptr() for tensor in tree_leaves(args) if isinstance(tensor, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.tensors, self.bytes = self.tensors + 1, self.bytes + tensor.nbytes
        return result


def count_writes(call: Callable[[], object]) -> WriteCounter:
    """Count what a call writes."""
    with torch.no_grad(), WriteCounter() as counter:
        call()
    return counter


def time_rnn_and_attention(length: int, width: int, seconds: float) -> tuple[dict[str, float], list[float]]:
    """Return the times of an RNN and of attention; the ratio of their operations, and the tensors that each writes."""
    network, narrow = nn.RNN(width, width, batch_first=True), nn.RNN(1, 1, batch_first=True)
    project = [nn.Linear(width, width, bias=False) for _ in range(4)]
    x, thin = torch.randn(1, length, width), torch.randn(1, length, 1)
    calls = {
        "RNN": lambda: network(x),
        "RNN of hidden size 1": lambda: narrow(thin),
        "attention": lambda: dense_attention(x, x, x),
        "attention with projections": lambda: project[3](dense_attention(*(project[part](x) for part in range(3)))),
    }
    more = count_flops(calls["attention"]) / count_flops(calls["RNN"])
    written = [count_writes(calls[name]).tensors for name in ("RNN", "attention")]
    return best_times(calls, seconds=seconds), [more, *written]


def comparison_with_an_rnn(lab: Lab) -> None:
    """A recurrent network reads one token after the other: each step is a small matrix product that waits for the
    previous one. The lab times it and dense attention, both with hidden size 64, and counts their operations. Below 64
    tokens attention computes less. Above, it computes T / 64 times as much, and is still faster for a while: it writes
    four large tensors, and the RNN writes two small ones per token.

    How much of the RNN's time is computation? An RNN with hidden size 1 computes four thousand times less and takes
    nearly as long, so most of the time is overhead. The factors depend on the machine and the library. At some thousand
    tokens, the quadratic cost of attention dominates, and the RNN is faster. The time of the RNN includes its
    projections; the last column includes those of attention.
    """
    torch.manual_seed(lab.seed)
    printed = {16: "1.7", 64: "4.4", 256: "6.8", 1024: "2.7", 4096: ""}
    columns = ("tokens", "operations, attention / RNN", "tensors written by the RNN", "by attention", "printed",
               "times faster", "overhead of the RNN", "times faster, with projections")  # fmt: skip
    rows, times = [], {}
    for length, claimed in printed.items():
        lab.step(f"timing an RNN over {length:,} tokens")
        best, counts = time_rnn_and_attention(length, 64, seconds=lab.choose(small=2.5, full=20))
        faster = [best["RNN"] / best[name] for name in ("attention", "attention with projections")]
        rows.append((length, *counts, claimed, faster[0], best["RNN of hidden size 1"] / best["RNN"], faster[1]))
        times[length] = best
    lab.table("An RNN compared with attention: hidden size 64, one core", columns, rows)
    names = ("RNN", "RNN of hidden size 1", "attention")
    lab.figure(
        "recurrent",
        lines(
            list(times),
            {name: [1000 * best[name] for best in times.values()] for name in names},
            xlabel="tokens",
            ylabel="milliseconds",
            log_x=True,
            log_y=True,
            title="Attention is faster for hundreds of tokens, not for thousands",
        ),
        "Best times on one core. An RNN of hidden size 1 computes next to nothing: its time is overhead.",
    )
    faster = {row[0]: row[5] for row in rows}
    lab.decide(
        "21a",
        Verdict.HOLDS,
        f"Attention is {faster[256]:.1f} times faster at 256 tokens. At 4,096 tokens the RNN is {1 / faster[4096]:.1f} "
        f"times faster. At 256 tokens, {rows[2][6]:.0%} of its time is overhead.",
        Measurement(name="times faster at 64", value=faster[64], low=1.3),
        Measurement(name="times faster at 256", value=faster[256], low=2),
        Measurement(name="times faster at 4,096", value=faster[4096], high=0.9),
        Measurement(name="overhead at 256", value=rows[2][6], low=0.35, high=1.3),
        Measurement(name="operations at 256, attention / RNN", value=rows[2][1], low=3.99, high=4.01),
        Measurement(name="tensors that the RNN writes per token", value=rows[3][2] / 1024, low=2, high=4),
        Measurement(name="tensors that attention writes", value=rows[3][3], low=4, high=4),
    )
    ratios = [faster[length] / float(claimed) for length, claimed in printed.items() if claimed]
    worst = max(max(ratio, 1 / ratio) for ratio in ratios)
    lab.decide(
        "21b",
        Verdict.DOES_NOT_HOLD,
        f"Here the factors are {faster[16]:.1f}, {faster[64]:.1f}, {faster[256]:.1f} and {faster[1024]:.1f}; one "
        f"differs from the printed one by a factor of {worst:.1f}. They depend on the machine.",
        Measurement(name="largest ratio of a factor and the printed one", value=worst, low=1.5),
    )


def blockwise_attention(query: Tensor, key: Tensor, value: Tensor, block: int) -> Tensor:
    """Compute attention over blocks of keys, as FlashAttention does, with a running maximum, sum and output."""
    highest = query.new_full((*query.shape[:-1], 1), -math.inf)
    total, output = torch.zeros_like(highest), torch.zeros_like(query)
    for keys, values in zip(key.split(block, dim=-2), value.split(block, dim=-2), strict=True):
        scores = query @ keys.mT / math.sqrt(query.shape[-1])
        above = torch.maximum(highest, scores.amax(-1, keepdim=True))
        shrink, weights = (highest - above).exp(), (scores - above).exp()  # corrects the previous blocks
        total, output = total * shrink + weights.sum(-1, keepdim=True), output * shrink + weights @ values
        highest = above
    return output / total


def flash_attention_is_exact(lab: Lab) -> None:
    """FlashAttention ([Dao et al., 2022](https://arxiv.org/abs/2205.14135)) processes the keys in blocks. Softmax
    divides by a sum over all keys, which is unknown after the first block. When a larger score appears, one factor
    corrects everything that was summed before. `blockwise_attention` in
    [attention_cost.py](../../src/attnscope/labs/experiments/attention_cost.py) is the whole algorithm. In exact
    arithmetic the result is the same; in fp64 the difference is rounding. In fp32 many numbers differ in the last
    digit, because the order of the sums differs; the errors have the same size.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    exact = [torch.randn(4, 1000, 64, generator=generator, dtype=torch.float64) for _ in range(3)]
    truth, short = dense_attention(*exact), [tensor.float() for tensor in exact]
    by_blocks = float((blockwise_attention(*exact, block=64) - truth).abs().max())
    rounded = {
        "dense": dense_attention(*short),
        "blockwise": blockwise_attention(*short, block=64),
        "fused": attend(*short),
    }
    errors = {name: float((output - truth).abs().max()) for name, output in rounded.items()}
    different = float((rounded["dense"] != rounded["blockwise"]).float().mean())
    lab.table("Largest error in fp32", ("attention", "error"), list(errors.items()), note="Compared with fp64.")
    blockwise, fused = (errors[name] / errors["dense"] for name in ("blockwise", "fused"))
    lab.decide(
        "22a",
        Verdict.HOLDS,
        f"In fp64 both agree to {by_blocks:.0e}. In fp32 {different:.0%} of the numbers differ in the last "
        f"bit, and the largest blockwise error is {blockwise:.1f} times that of dense attention.",
        Measurement(name="largest difference in fp64", value=by_blocks, high=1e-13),
        Measurement(name="error in fp32, blockwise / dense", value=blockwise, low=0.1, high=10),
        Measurement(name="error in fp32, fused / dense", value=fused, low=0.1, high=10),
    )


def flash_attention_writes_less(lab: Lab) -> None:
    """The number of operations is the same with and without blocks. What is saved is memory traffic: dense attention
    writes the matrix three times. This takes time if the matrix is larger than the cache, so the gain depends on its
    size and the machine. Times are those of the fused CPU kernel of torch on one core; no GPU was measured.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    rows = []
    for length, heads in ((64, 1), (256, 8), (1024, 8), (2048, 8), *lab.choose(small=(), full=((4096, 8),))):
        lab.step(f"timing the fused kernel at {length:,} tokens")
        x = torch.randn(1, heads, length, 64, generator=generator)
        calls = {"dense": lambda x=x: dense_attention(x, x, x), "fused": lambda x=x: attend(x, x, x)}
        best = best_times(calls, seconds=lab.choose(small=3, full=20))
        written = [count_writes(call).bytes for call in calls.values()]
        rows.append(
            (length, heads, *written, *(1000 * spent for spent in best.values()), best["dense"] / best["fused"])
        )
    lab.table(
        "The fused kernel compared with dense attention, on one core",
        ("tokens", "heads", "bytes written: dense", "fused", "milliseconds: dense", "fused", "times faster"),
        rows,
    )
    x = torch.randn(1, 1024, 64, generator=generator)
    same = count_flops(lambda: blockwise_attention(x, x, x, block=64)) / count_flops(lambda: dense_attention(x, x, x))
    saved, small, large = rows[2][2] / rows[2][3], rows[0][-1], rows[3][-1]
    lab.decide(
        "22b",
        Verdict.HOLDS_WHEN,
        f"At 2,048 tokens the fused kernel is {large:.1f} times faster, at 64 tokens {small:.1f} times. It computes "
        f"the same and writes {saved:.0f} times fewer bytes at 1,024 tokens.",
        Measurement(name="operations, blockwise / dense", value=same, low=1, high=1),
        Measurement(name="bytes written at 1,024, dense / fused", value=saved, low=45, high=50),
        Measurement(name="times faster at 64", value=small, high=1.5),
        Measurement(name="times faster at 2,048", value=large, low=1.4, high=10),
        condition="the sequence has a thousand tokens or more (on a CPU; no GPU was measured)",
    )


PARTS = (
    time_and_sequence_length,
    memory_and_sequence_length,
    comparison_with_an_rnn,
    flash_attention_is_exact,
    flash_attention_writes_less,
)
