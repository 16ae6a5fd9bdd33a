"""What are many heads, and what is lost if they share their projections?

A layer of attention has several heads. Each makes queries, keys and values of its own, a slice of the width wide; what
they find is laid side by side and goes through one last matrix, W_O. This lab counts the weights of that, takes W_O
apart, and trains heads that were made to share everything.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from attnscope import attend
from attnscope.figures import grouped_bars
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.models import Decoder, MultiHeadAttention
from attnscope.models.published_configs import DECODERS

HEADS, HEAD_DIM = 4, 4
WIDTH, LENGTH = HEADS * HEAD_DIM, 8


def weights_of(model: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in model.parameters())


def how_many_weights(lab: Lab) -> None:
    """Queries, keys, values and the way back are four matrices of width by width, d² each, whatever the number of
    heads: heads cut the width into slices, they do not add to it. Biases are 4 d more.

    Models are built here on the device `meta`, where a tensor has a shape and no numbers, so that 175 billion weights
    fit.
    """
    with torch.device("meta"):
        layers = {heads: weights_of(MultiHeadAttention(hidden_size=128, num_heads=heads)) for heads in (1, 4, 32)}
        plain = weights_of(MultiHeadAttention(hidden_size=768, num_heads=12, bias=False))
        biased = weights_of(MultiHeadAttention(hidden_size=768, num_heads=12))
        gpt2, gpt3 = Decoder(DECODERS["gpt2-small"]), Decoder(DECODERS["gpt3-175b"])
    small, large, blocks = weights_of(gpt2), weights_of(gpt3), weights_of(gpt3.blocks)
    rows = [
        *((f"attention, width 128, heads: {heads}", count) for heads, count in layers.items()),
        ("attention of GPT-2 small without biases", plain),
        ("attention of GPT-2 small as it is", biased),
        ("GPT-2 small", small),
        ("96 blocks of width 12,288", blocks),
        ("these with GPT-3's embeddings", large),
    ]
    lab.table("Weights, counted", ("what", "weights"), rows)
    lab.decide(
        "10",
        Verdict.HOLDS,
        f"Width 128 with 4 heads has {layers[4]:,} weights, biases included, and as many with 1 head or 32.",
        *(Measurement(name=f"heads: {heads}", value=count, low=66_048, high=66_048) for heads, count in layers.items()),
    )
    lab.decide(
        "11a",
        Verdict.HOLDS,
        f"Four matrices of 768 by 768 are {plain:,} weights; with its biases GPT-2's layer has {biased:,}.",
        Measurement(name="without biases", value=plain, low=4 * 768**2, high=4 * 768**2),
        Measurement(name="with biases", value=biased, low=4 * 768**2 + 4 * 768, high=4 * 768**2 + 4 * 768),
    )
    lab.decide(
        "11b",
        Verdict.HOLDS,
        f"GPT-2 small has {small:,} weights, its embeddings counted once for both ends.",
        Measurement(name="millions", value=small / 1e6, low=123.5, high=124.5),
    )
    lab.decide(
        "11c",
        Verdict.HOLDS,
        f"The 96 blocks have {blocks / 1e9:.1f} billion weights, and {large / 1e9:.1f} billion with embeddings for "
        f"50,257 tokens and 2,048 positions.",
        Measurement(name="billions", value=large / 1e9, low=174.5, high=175.5),
    )


def merged_by_slabs(layer: MultiHeadAttention, x: Tensor, order: list[int]) -> Tensor:
    """The output of a layer as a sum over heads, head h through the slab of W_O that `order` names."""
    query, key, value = layer.query_key_value(x).unflatten(-1, (3, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
    found = attend(query, key, value)
    slabs = layer.output.weight.split(layer.head_dim, dim=1)
    return sum(found[:, head] @ slabs[slab].T for head, slab in enumerate(order)) + layer.output.bias


def laying_side_by_side_is_adding(lab: Lab) -> None:
    """A row of numbers times a matrix can be cut anywhere: the first numbers times the first rows, plus the rest times
    the rest. So laying heads side by side and going through W_O is the same as sending each head through its own slab
    of W_O and adding. A head can be read as one that writes on its own; that is why one can be taken out of a layer.

    As a check that could fail, the heads are also sent through each other's slabs.
    """
    torch.manual_seed(lab.seed)
    layer, x = MultiHeadAttention(hidden_size=128, num_heads=8), torch.randn(4, 50, 128)
    straight, turned = list(range(8)), [*range(1, 8), 0]
    with torch.no_grad():
        single = float((layer(x) - merged_by_slabs(layer, x, straight)).abs().max())
        layer, x = layer.double(), x.double()
        double = float((layer(x) - merged_by_slabs(layer, x, straight)).abs().max())
        wrong = float((layer(x) - merged_by_slabs(layer, x, turned)).abs().max())
    rows = [("own slabs, fp32", single), ("own slabs, fp64", double), ("each other's slabs, fp64", wrong)]
    lab.table("Sum over heads against the layer", ("how", "largest difference"), rows)
    lab.decide(
        "12",
        Verdict.HOLDS,
        f"Both ways differ by {double:.0e} in fp64, which is rounding; with slabs exchanged, by {wrong:.2f}.",
        Measurement(name="largest difference in fp64", value=double, high=1e-13),
        Measurement(name="with slabs exchanged", value=wrong, low=0.05),
    )


@torch.no_grad()
def share(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Give all heads the projections of the first one, and hand back one narrow head that should do the same."""
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
    """How many directions the rows of an output span, its bias apart."""
    return int(torch.linalg.matrix_rank(layer(x)[0] - layer.output.bias))


def heads_that_share(lab: Lab) -> None:
    """If all heads have the same projections, they find the same thing, H. Then the sum over slabs is H times the sum
    of the slabs: one head, one narrow matrix. Many heads as wide as the layer have become one head as wide as a slice.

    What such a layer can write is seen in the rank of its outputs: how many directions the rows span.
    """
    torch.manual_seed(lab.seed)
    layer, x = MultiHeadAttention(hidden_size=32, num_heads=8).double(), torch.randn(1, 400, 32).double()
    with torch.no_grad():
        separate = output_rank(layer, x)
        single = share(layer)
        shared, difference = output_rank(layer, x), float((layer(x) - single(x)).abs().max())
        rows = [
            ("8 heads of 4, separate", weights_of(layer), separate),
            ("8 heads of 4, shared", weights_of(layer), shared),
            ("1 head of 4, slabs added", weights_of(single), output_rank(single, x)),
        ]
    lab.table(
        "What a layer of width 32 can write",
        ("layer", "weights stored", "rank of its output"),
        rows,
        note=f"The last two differ by {difference:.0e} at most.",
    )
    lab.decide(
        "13a",
        Verdict.HOLDS,
        f"Eight heads that share projections and one narrow head with their slabs added up differ by {difference:.0e}, "
        f"and write in {shared} directions, against {separate} of separate heads.",
        Measurement(name="largest difference in fp64", value=difference, high=1e-13),
        Measurement(name="rank of shared heads", value=shared, low=4, high=4),
        Measurement(name="rank of separate heads", value=separate, low=32, high=32),
    )


class PlacedHeads(nn.Module):
    """Heads whose queries and keys come from positions and whose values come from contents."""

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


def contents_and_wanted(count: int, task: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random contents, and what is wanted at each place: the content before, or a quarter each of the four before."""
    contents = torch.randn(count, LENGTH, WIDTH, generator=generator)
    if task == "copy":
        return contents, contents.roll(1, dims=1)
    quarters = contents.chunk(HEADS, dim=-1)
    return contents, torch.cat([quarter.roll(back, dims=1) for back, quarter in enumerate(quarters, 1)], dim=-1)


@cache
def loss_after_training(task: str, heads: int, head_dim: int, shared: bool, steps: int, seed: int) -> float:
    """Mean squared error on fresh contents; 1 is that of writing nothing."""
    torch.manual_seed(seed)
    generator, unseen = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(1_000)
    model = PlacedHeads(heads, head_dim, shared=shared)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(steps):
        contents, wanted = contents_and_wanted(64, task, generator)
        loss = (model(contents) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        contents, wanted = contents_and_wanted(4_000, task, unseen)
        return float((model(contents) - wanted).square().mean())


MODELS = {
    "4 heads": (HEADS, HEAD_DIM, False),
    "4 that share": (HEADS, HEAD_DIM, True),
    "1 narrow head": (1, HEAD_DIM, False),
    "1 wide head": (1, WIDTH, False),
}


def shared_heads_in_training(lab: Lab) -> None:
    """Is that one head a *wide* one? Two tasks tell. Contents are 16 random numbers a token. To **copy**, write the
    content of the token before. To **gather**, write a quarter each of the contents of the four tokens before. Queries
    and keys are made from positions alone, so that the least possible error can be computed.

    A narrow head (4 of 16) carries 4 directions of a content: of a copy, 12/16 = 0.75 are lost. A wide head loses
    nothing. To gather, a head must look at four tokens, and what it gets is their weighted sum: if the weights are w,
    a share of w_k² / Σ w² of the quarter of token k can be read from the sum at best, and these shares sum to 1 of 4.
    So any one head, wide or narrow, loses 0.75 or more. Four separate heads of 4 lose nothing in either task.

    Each model is trained from three starts and its best is kept: now and then two heads fall for the same token.
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
        shown, ylabel="mean squared error", title=title, reference_lines={"least of one narrow head": 0.75}
    )
    lab.figure("shared_heads", bars, "Error after training of four heads, of four that share, and of one head.")
    copy, gather = losses["copy"], losses["gather"]
    lab.decide(
        "13b",
        Verdict.DOES_NOT_HOLD,
        f"Four shared heads copy with an error of {copy['4 that share']:.2f}, as one head of a quarter of the width "
        f"does; a head as wide as all of them ends at {copy['1 wide head']:.4f}. Where four tokens have to be told "
        f"apart, width does not help, and there the losses are the same.",
        Measurement(name="copy: shared heads", value=copy["4 that share"], low=0.72, high=0.78),
        Measurement(
            name="copy: shared / one narrow", value=copy["4 that share"] / copy["1 narrow head"], low=0.97, high=1.03
        ),
        Measurement(name="copy: one wide", value=copy["1 wide head"], high=0.02),
        Measurement(
            name="gather: shared / one wide", value=gather["4 that share"] / gather["1 wide head"], low=0.97, high=1.03
        ),
    )


PARTS = (how_many_weights, laying_side_by_side_is_adding, heads_that_share, shared_heads_in_training)
