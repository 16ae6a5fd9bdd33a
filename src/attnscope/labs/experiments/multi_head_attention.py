"""Multi-head attention

This lab shows you how to count the parameters of multi-head attention, how W_O adds up the heads, and what is lost
if heads share their projections.

An attention layer has several heads. Each has its own query, key and value projections to a part of the hidden size.
The outputs of all heads are concatenated and multiplied by one last matrix, W_O ([Vaswani et al.,
2017](https://arxiv.org/abs/1706.03762)).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from attnscope import attend
from attnscope.figures import grouped_bars
from attnscope.labs import Lab, Measurement, Verdict, best_times, count_flops
from attnscope.labs.statistics import mean_with_error
from attnscope.models import Decoder, MultiHeadAttention
from attnscope.models.published_configs import DECODERS

HEADS, HEAD_DIM = 4, 4
WIDTH, LENGTH = HEADS * HEAD_DIM, 8


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def parameter_counts(lab: Lab) -> None:
    """Query, key, value and output projections are four matrices of d² parameters each, whatever the number of heads:
    heads split the hidden size, they do not add to it. Biases are 4 d more.

    The models are created on the device `meta`, where a tensor has a shape and no data, so that 175 billion parameters
    fit.
    """
    with torch.device("meta"):
        layers = {heads: count_parameters(MultiHeadAttention(hidden_size=128, num_heads=heads)) for heads in (1, 4, 32)}
        plain = count_parameters(MultiHeadAttention(hidden_size=768, num_heads=12, bias=False))
        biased = count_parameters(MultiHeadAttention(hidden_size=768, num_heads=12))
        gpt2, gpt3 = Decoder(DECODERS["gpt2-small"]), Decoder(DECODERS["gpt3-175b"])
    small, large, blocks = count_parameters(gpt2), count_parameters(gpt3), count_parameters(gpt3.blocks)
    rows = [
        *((f"attention, hidden size 128, heads: {heads}", count) for heads, count in layers.items()),
        ("attention of GPT-2 small without biases", plain),
        ("attention of GPT-2 small with biases", biased),
        ("GPT-2 small", small),
        ("96 blocks of hidden size 12,288", blocks),
        ("96 blocks and the embeddings of GPT-3", large),
    ]
    lab.table("Parameter counts", ("module", "parameters"), rows)
    lab.decide(
        "10",
        Verdict.HOLDS,
        f"Hidden size 128 with 4 heads has {layers[4]:,} parameters with biases, and as many with 1 head or 32.",
        *(Measurement(name=f"heads: {heads}", value=count, low=66_048, high=66_048) for heads, count in layers.items()),
    )
    lab.decide(
        "11a",
        Verdict.HOLDS,
        f"Four matrices of 768 by 768 have {plain:,} parameters; with biases, the layer of GPT-2 has {biased:,}.",
        Measurement(name="without biases", value=plain, low=4 * 768**2, high=4 * 768**2),
        Measurement(name="with biases", value=biased, low=4 * 768**2 + 4 * 768, high=4 * 768**2 + 4 * 768),
    )
    lab.decide(
        "11b",
        Verdict.HOLDS,
        f"GPT-2 small has {small:,} parameters; input and output share their embeddings.",
        Measurement(name="millions", value=small / 1e6, low=123.5, high=124.5),
    )
    lab.decide(
        "11c",
        Verdict.HOLDS,
        f"The 96 blocks have {blocks / 1e9:.1f} billion parameters, and {large / 1e9:.1f} billion with embeddings for "
        f"50,257 tokens and 2,048 positions.",
        Measurement(name="billions", value=large / 1e9, low=174.5, high=175.5),
    )


def sum_over_heads(layer: MultiHeadAttention, x: Tensor, order: list[int]) -> Tensor:
    """Return the output of a layer as a sum over heads; head h uses the block of W_O that `order` names."""
    query, key, value = layer.query_key_value(x).unflatten(-1, (3, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
    found = attend(query, key, value)
    w_o_blocks = layer.output.weight.split(layer.head_dim, dim=1)
    return sum(found[:, head] @ w_o_blocks[block].T for head, block in enumerate(order)) + layer.output.bias


def concatenation_is_a_sum_over_heads(lab: Lab) -> None:
    """A product of a row and a matrix can be split: the first columns times the first rows, plus the rest times the
    rest. So concatenating heads and multiplying by W_O is the same as multiplying each head by its own block of W_O and
    adding. Each head adds its own term to the residual stream, which is why a single head can be ablated.

    As a negative control, the heads are also multiplied by each other's blocks.
    """
    torch.manual_seed(lab.seed)
    layer, x = MultiHeadAttention(hidden_size=128, num_heads=8), torch.randn(4, 50, 128)
    straight, turned = list(range(8)), [*range(1, 8), 0]
    with torch.no_grad():
        single = float((layer(x) - sum_over_heads(layer, x, straight)).abs().max())
        layer, x = layer.double(), x.double()
        double = float((layer(x) - sum_over_heads(layer, x, straight)).abs().max())
        wrong = float((layer(x) - sum_over_heads(layer, x, turned)).abs().max())
    rows = [("own blocks, fp32", single), ("own blocks, fp64", double), ("each other's blocks, fp64", wrong)]
    lab.table("Sum over heads compared with the layer", ("blocks of W_O", "largest difference"), rows)
    lab.decide(
        "12",
        Verdict.HOLDS,
        f"Both differ by {double:.0e} in fp64, which is rounding; with exchanged blocks, by {wrong:.2f}.",
        Measurement(name="largest difference in fp64", value=double, high=1e-13),
        Measurement(name="with exchanged blocks", value=wrong, low=0.05),
    )


@torch.no_grad()
def share_projections(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Give all heads the projections of the first one; return one narrow head that should compute the same."""
    heads, dim, width = layer.num_heads, layer.head_dim, layer.output.out_features
    single = MultiHeadAttention(hidden_size=width, num_heads=1, head_dim=dim).to(layer.output.weight.dtype)
    for learned, copy in zip(layer.query_key_value.parameters(), single.query_key_value.parameters(), strict=True):
        by_head = learned.view(3, heads, dim, -1)
        by_head.copy_(by_head[:, :1].clone().expand_as(by_head))
        copy.copy_(by_head[:, 0].reshape(copy.shape))
    single.output.weight.copy_(layer.output.weight.unflatten(1, (heads, dim)).sum(dim=1))
    single.output.bias.copy_(layer.output.bias)
    return single


def output_rank(layer: MultiHeadAttention, x: Tensor) -> int:
    """Return the rank of the output without its bias."""
    return int(torch.linalg.matrix_rank(layer(x)[0] - layer.output.bias))


def heads_with_shared_projections(lab: Lab) -> None:
    """If all heads have the same projections, they compute the same output H. The sum over blocks is then H times the
    sum of the blocks: one head with one narrow matrix. Many heads that cover the hidden size have become one head of a
    single head dimension.

    The rank of the outputs shows what such a layer can write: the number of directions that the rows span.
    """
    torch.manual_seed(lab.seed)
    layer, x = MultiHeadAttention(hidden_size=32, num_heads=8).double(), torch.randn(1, 400, 32).double()
    with torch.no_grad():
        separate = output_rank(layer, x)
        single = share_projections(layer)
        shared, difference = output_rank(layer, x), float((layer(x) - single(x)).abs().max())
        rows = [
            ("8 heads of 4, separate", count_parameters(layer), separate),
            ("8 heads of 4, shared", count_parameters(layer), shared),
            ("1 head of 4, blocks added", count_parameters(single), output_rank(single, x)),
        ]
    lab.table(
        "Output rank of a layer of hidden size 32",
        ("layer", "stored parameters", "rank of the output"),
        rows,
        note=f"The last two differ by {difference:.0e} at most.",
    )
    lab.decide(
        "13a",
        Verdict.HOLDS,
        f"Eight heads with shared projections and one narrow head with the sum of their blocks differ by "
        f"{difference:.0e}. The rank of their output is {shared}, compared with {separate} of separate heads.",
        Measurement(name="largest difference in fp64", value=difference, high=1e-13),
        Measurement(name="rank of shared heads", value=shared, low=4, high=4),
        Measurement(name="rank of separate heads", value=separate, low=32, high=32),
    )


class PositionalHeads(nn.Module):
    """Heads whose queries and keys depend on positions, and whose values depend on contents."""

    def __init__(self, heads: int, head_dim: int, *, shared: bool):
        super().__init__()
        own = 1 if shared else heads
        self.heads = heads
        self.query, self.key = (nn.Parameter(torch.randn(own, LENGTH, head_dim)) for _ in range(2))
        self.value = nn.Linear(WIDTH, own * head_dim, bias=False)
        self.output = nn.Linear(heads * head_dim, WIDTH, bias=False)

    def forward(self, contents: Tensor) -> Tensor:
        """Of contents (batch, position, width), the same shape."""
        value = self.value(contents).unflatten(-1, (len(self.query), -1)).transpose(1, 2)
        query, key = self.query.expand(len(contents), -1, -1, -1), self.key.expand(len(contents), -1, -1, -1)
        query, key, value = (tensor.expand(-1, self.heads, -1, -1) for tensor in (query, key, value))
        return self.output(attend(query, key, value).transpose(1, 2).flatten(2))


def make_batch(count: int, task: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random contents and targets: the previous content, or a quarter of each of the previous four."""
    contents = torch.randn(count, LENGTH, WIDTH, generator=generator)
    if task == "copy":
        return contents, contents.roll(1, dims=1)
    quarters = contents.chunk(HEADS, dim=-1)
    return contents, torch.cat([quarter.roll(back, dims=1) for back, quarter in enumerate(quarters, 1)], dim=-1)


@cache
def loss_after_training(task: str, heads: int, head_dim: int, shared: bool, steps: int, seed: int) -> float:
    """Return the mean squared error on new contents after training; an output of 0 has an error of 1."""
    torch.manual_seed(seed)
    generator, unseen = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(1_000)
    model = PositionalHeads(heads, head_dim, shared=shared)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(steps):
        contents, target = make_batch(64, task, generator)
        loss = (model(contents) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        contents, target = make_batch(4_000, task, unseen)
        return float((model(contents) - target).square().mean())


MODELS = {
    "4 heads": (HEADS, HEAD_DIM, False),
    "4 shared heads": (HEADS, HEAD_DIM, True),
    "1 narrow head": (1, HEAD_DIM, False),
    "1 wide head": (1, WIDTH, False),
}


def training_with_shared_projections(lab: Lab) -> None:
    """Is that one head a *wide* one? Two tasks decide. Contents are 16 random numbers per token. To **copy**, output
    the content of the previous token. To **gather**, output a quarter of the content of each of the previous four
    tokens. Queries and keys depend on positions only, so the smallest possible error can be computed.

    A narrow head (dimension 4 of 16) carries 4 directions of a content; a copy loses 12/16 = 0.75. A wide head loses
    nothing. To gather, a head must attend to four tokens, and gets their weighted sum. With weights w, at most a share
    of w_k² / Σ w² of the quarter of token k can be recovered, and these shares sum to 1 of 4. So any single head loses
    at least 0.75. Four separate heads of dimension 4 lose nothing in either task.

    Each model is trained with three seeds and the best is kept, because sometimes two heads attend to the same token.
    """
    steps = lab.choose(small=300, full=1_500)
    losses: dict[str, dict[str, float]] = {}
    for task in ("copy", "gather"):
        losses[task] = {}
        for name, model in MODELS.items():
            lab.step(f"{task}: {name}")
            starts = range(3 * lab.seed, 3 * lab.seed + 3)
            losses[task][name] = min(loss_after_training(task, *model, steps, start) for start in starts)
    lab.table("Error after training", ("task", *MODELS), [(task, *found.values()) for task, found in losses.items()])
    title = "Shared heads are one narrow head, not a wide one"
    shown = {name: {task: round(found[name], 3) for task, found in losses.items()} for name in MODELS}
    bars = grouped_bars(
        shown, ylabel="mean squared error", title=title, reference_lines={"bound of one narrow head": 0.75}
    )
    lab.figure(
        "shared_heads", bars, "Error after training of four heads, of four with shared projections, and of one head."
    )
    copy, gather = losses["copy"], losses["gather"]
    lab.decide(
        "13b",
        Verdict.DOES_NOT_HOLD,
        f"Four shared heads copy with an error of {copy['4 shared heads']:.2f}, like one narrow head; one wide head "
        f"reaches {copy['1 wide head']:.4f}. In the gather task, a wider head does not help, and the losses are equal.",
        Measurement(name="copy: shared heads", value=copy["4 shared heads"], low=0.72, high=0.78),
        Measurement(
            name="copy: shared / one narrow", value=copy["4 shared heads"] / copy["1 narrow head"], low=0.97, high=1.03
        ),
        Measurement(name="copy: one wide", value=copy["1 wide head"], high=0.02),
        Measurement(
            name="gather: shared / one wide",
            value=gather["4 shared heads"] / gather["1 wide head"],
            low=0.97,
            high=1.03,
        ),
    )


def fused_projection(lab: Lab) -> None:
    """Queries, keys and values are three products of the same input. Stacking the three matrices gives the same numbers
    in one product, with the same number of operations.

    What a fused product saves is overhead: two calls, and reading the input twice more. This counts where the matrices
    are small. For a single token, splitting the result costs about as much as the calls that are saved.
    """
    torch.manual_seed(lab.seed)
    x, weight = torch.randn(50, 128).double(), torch.randn(3 * 128, 128).double()
    fused = nn.functional.linear(x, weight)
    separate = torch.cat([nn.functional.linear(x, part) for part in weight.chunk(3)], dim=-1)
    difference = float((fused - separate).abs().max() / fused.abs().max())
    rows, ratios = [], {}
    for width in (32, 128, 768):
        for tokens in (1, 1024):
            x, weight = torch.randn(tokens, width), torch.randn(3 * width, width)
            parts = [part.clone() for part in weight.chunk(3)]
            calls = {
                "fused": lambda x=x, weight=weight: nn.functional.linear(x, weight).chunk(3, dim=-1),
                "separate": lambda x=x, parts=parts: [nn.functional.linear(x, part) for part in parts],
            }
            times = best_times(calls, seconds=lab.choose(small=0.7, full=5))
            ratios[width, tokens] = times["separate"] / times["fused"]
            counts = [count_flops(call) for call in calls.values()]
            rows.append((width, tokens, *counts, 1e6 * times["fused"], ratios[width, tokens]))
    columns = (
        "hidden size",
        "tokens",
        "operations, fused",
        "operations, separate",
        "microseconds, fused",
        "time, separate / fused",
    )
    lab.table("One product or three, on one core", columns, rows)
    lab.decide(
        "42a",
        Verdict.HOLDS,
        f"The outputs differ by {difference:.0e} of their size in fp64, and both forms take the same operations.",
        Measurement(name="relative difference in fp64", value=difference, high=1e-14),
        Measurement(name="operations, separate / fused", value=rows[0][3] / rows[0][2], low=1, high=1),
    )
    lab.decide(
        "42b",
        Verdict.HOLDS_WHEN,
        f"For 1,024 tokens of hidden size 128, as in the text, three products take {ratios[128, 1024]:.2f} times as "
        f"long; of size 768, {ratios[768, 1024]:.2f} times. For one token it is {ratios[128, 1]:.2f} and "
        f"{ratios[768, 1]:.2f} times. The operations are the same.",
        Measurement(name="time, separate / fused, size 128, 1,024 tokens", value=ratios[128, 1024], low=1.1, high=2),
        Measurement(name="time, separate / fused, size 768, 1,024 tokens", value=ratios[768, 1024], low=0.75, high=1.1),
        condition="the matrices are small, as with a hidden size of 128, not 768 (on a CPU; no GPU was measured)",
    )


NUM_KEYS, NOISE = 32, 0.5


@cache
def matching_error(num_heads: int, steps: int, seed: int) -> float:
    """Train attention of hidden size 64 to recall the vector of which the query is a noisy copy; return its error.

    An output of 0 has an error of 1.
    """
    torch.manual_seed(seed)
    layer = MultiHeadAttention(hidden_size=64, num_heads=num_heads, bias=False)
    optimizer = torch.optim.Adam(layer.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        stored = torch.randn(16, NUM_KEYS, 64)
        loss = (layer(stored + NOISE * torch.randn_like(stored), stored) - stored).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        stored = torch.randn(200, NUM_KEYS, 64)
        return float((layer(stored + NOISE * torch.randn_like(stored), stored) - stored).square().mean())


def dense_attention(x: Tensor, num_heads: int) -> Tensor:
    """Apply attention to x as queries, keys and values, storing all weights."""
    heads = x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    return (heads @ heads.mT * heads.shape[-1] ** -0.5).softmax(dim=-1) @ heads


def eight_heads_of_eight_dimensions(lab: Lab) -> None:
    """A hidden size of 64 can be one head of 64 dimensions, or eight of 8. The parameters and the operations of all
    matrix products are the same. But eight heads have eight matrices of weights, so the softmax and the memory for
    weights cost eight times as much. The fused kernel avoids the memory, not the exponentials.

    Each head also has less to compare by. The scores of a head are a bilinear form of rank 8 instead of 64
    ([Bhojanapalli et al., 2020](https://arxiv.org/abs/2002.07028)). The lab trains both layers to recall one of 32
    random vectors from a noisy copy, which is one relation that needs all 64 dimensions. The opposite case, several
    relations that need one head each, is the *gather* task above.
    """
    steps, seeds = lab.choose(small=300, full=3_000), lab.seeds(3)
    errors = {heads: mean_with_error([matching_error(heads, steps, seed) for seed in seeds]) for heads in (1, 8)}
    x = torch.randn(1, 1024, 64)
    calls = {
        (name, heads): lambda call=call, heads=heads: call(heads)
        for name, call in {
            "stored": lambda heads: dense_attention(x, heads),
            "fused": lambda heads: attend(*[x.unflatten(-1, (heads, -1)).transpose(1, 2)] * 3),
        }.items()
        for heads in (1, 8)
    }
    times = best_times(calls, seconds=lab.choose(small=2, full=20))
    flops = [count_flops(calls["stored", heads]) for heads in (1, 8)]
    parameters = [count_parameters(MultiHeadAttention(hidden_size=64, num_heads=heads)) for heads in (1, 8)]
    slower = {name: times[name, 8] / times[name, 1] for name in ("stored", "fused")}
    lab.table(
        "One head of 64 dimensions or eight of 8",
        ("", "1 head of 64", "8 heads of 8"),
        [
            ("parameters", *parameters),
            ("operations of the matrix products, 1,024 tokens", *flops),
            ("weights, 1,024 tokens", 1024**2, 8 * 1024**2),
            ("milliseconds, weights stored", *(1e3 * times["stored", heads] for heads in (1, 8))),
            ("milliseconds, fused kernel", *(1e3 * times["fused", heads] for heads in (1, 8))),
            ("error at recalling one of 32 vectors", *(errors[heads].value for heads in (1, 8))),
            ("standard error of it over 3 seeds", *(errors[heads].error for heads in (1, 8))),
        ],
    )
    lab.decide(
        "43",
        Verdict.HOLDS_WHEN,
        f"Parameters and matrix products are the same. But eight heads take {slower['stored']:.1f} times as long at "
        f"1,024 tokens if weights are stored, and {slower['fused']:.1f} times with the fused kernel. They recall one "
        f"of 32 vectors with an error of {errors[8].value:.3f}, and one head of 64 with {errors[1].value:.4f}.",
        Measurement(name="parameters, eight heads / one", value=parameters[1] / parameters[0], low=1, high=1),
        Measurement(name="operations, eight heads / one", value=flops[1] / flops[0], low=1, high=1),
        Measurement(name="time, eight heads / one, weights stored", value=slower["stored"], low=2),
        Measurement(name="error of eight heads", value=errors[8].value, low=0.1, high=0.25),
        Measurement(name="error of one head", value=errors[1].value, high=0.01),
        condition="only parameters and matrix products are counted, and no relation needs more than 8 dimensions",
    )


PARTS = (
    parameter_counts,
    concatenation_is_a_sum_over_heads,
    heads_with_shared_projections,
    training_with_shared_projections,
    fused_projection,
    eight_heads_of_eight_dimensions,
)
