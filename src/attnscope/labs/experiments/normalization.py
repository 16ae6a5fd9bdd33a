"""Layer norm and batch norm

This lab shows you why transformers use layer norm ([Ba et al., 2016](https://arxiv.org/abs/1607.06450)), and when
batch norm ([Ioffe and Szegedy, 2015](https://arxiv.org/abs/1502.03167)) fails on a batch of one.

A norm shifts and scales numbers to mean 0 and variance 1. Layer norm computes mean and variance over the features of
one token. Batch norm computes them over the batch, per feature, so the output for one sample depends on the others.

A language model generates one sequence, one token at a time. So it matters whether a norm needs other samples.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnscope.labs import Lab, Measurement, Verdict

WIDTH = 32
NUM_TEST = 512  # held-out samples
EPSILON = 1e-5  # added to the variance, the default of torch


def normalize(x: Tensor, dim: int) -> Tensor:
    """Normalise to mean 0 and variance 1 along a dimension: layer norm along the last, batch norm along the first."""
    return (x - x.mean(dim, keepdim=True)) / (x.var(dim, keepdim=True, correction=0) + EPSILON).sqrt()


def one_formula_two_dimensions(lab: Lab) -> None:
    """Both norms use the same formula; they differ in the dimension over which mean and variance are computed.

    With eight samples, both agree with torch. With a single sample, layer norm still has 32 numbers. Batch norm has one
    number per feature, which equals its own mean, so the output is 0 whatever the input is.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    eight, one = (5 + 3 * torch.randn(rows, WIDTH, generator=generator) for rows in (8, 1))
    layer, batch = nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH)
    rows = []
    for name, dim, module in (("layer norm", -1, layer), ("batch norm", 0, batch)):
        mean_squared_error = float((normalize(eight, dim) - module(eight)).detach().abs().max())
        rows.append(
            (name, mean_squared_error, float(normalize(eight, dim).std()), float(normalize(one, dim).abs().max()))
        )
    lab.table(
        "The formula compared with torch",
        ("norm", "difference from torch, 8 samples", "standard deviation, 8 samples", "largest output, 1 sample"),
        rows,
        note="An output of 0 for every input contains no information.",
    )


def raises_error(module: nn.Module, x: Tensor) -> bool:
    """Return whether a module raises an error on this batch."""
    try:
        module(x)
    except ValueError:
        return True
    return False


def dependence_on_the_batch(lab: Lab) -> None:
    """The same sample passes through each norm alone and together with others.

    In training, batch norm uses the statistics of the current batch, and torch raises an error if there is only one
    number per feature. At inference, torch uses running averages from training. A sample may then be alone, and its
    output does not depend on other samples. So batch norm does not fail at inference, as is often said. It needs
    training with larger batches, to compute the averages.

    In a sequence, the positions can replace the batch. Then one sequence is enough, but each position depends on all
    others through the mean, including later ones: a model that predicts the next token would see it.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    sample, others = torch.randn(1, WIDTH, generator=generator), 2 + 4 * torch.randn(31, WIDTH, generator=generator)
    text = torch.randn(1, WIDTH, 16, generator=generator)  # one sequence of 16 positions, in the layout of batch norm
    other_end = torch.cat((text[..., :-1], 5 + text[..., -1:]), dim=-1)
    layer, batch = nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH)
    for _ in range(100):  # fills the running averages
        batch(2 + 4 * torch.randn(32, WIDTH, generator=generator))
    rows = {}
    for name, module in (("layer norm", layer), ("batch norm", batch)):
        for mode in ("training", "inference"):
            module.train(mode == "training")
            alone = None if raises_error(module, sample) else module(sample)
            together, with_one = module(torch.cat((sample, others)))[:1], module(torch.cat((sample, others[:1])))[:1]
            change = float((together - with_one).detach().abs().max())
            first, changed = (
                (module(x.mT).mT if isinstance(module, nn.LayerNorm) else module(x))[..., 0] for x in (text, other_end)
            )
            leak = float((first - changed).detach().abs().max())
            shown = "error" if alone is None else float((alone - together).detach().abs().max())
            rows[name, mode] = shown, change, leak
    lab.table(
        "Change of one sample with other samples in the batch",
        ("norm", "mode", "alone / with 31 others", "with 1 other / with 31", "position 0 when position 15 changes"),
        [(*key, *found) for key, found in rows.items()],
        note="Largest difference of any output. The last column: one sequence, with its positions as the batch.",
    )
    lab.decide(
        "29b",
        Verdict.HOLDS_WHEN,
        "In training, one number per feature raises an error, and by the formula all outputs would be 0. The output "
        f"for a sample with 1 other sample or with 31 differs by {rows['batch norm', 'training'][1]:.1f}. At "
        "inference, running averages replace the batch statistics, and other samples have no effect.",
        Measurement(name="error in training", value=float(rows["batch norm", "training"][0] == "error"), low=1, high=1),
        Measurement(name="training: change with other samples", value=rows["batch norm", "training"][1], low=0.3),
        Measurement(
            name="inference: change with other samples", value=float(rows["batch norm", "inference"][0]), high=1e-5
        ),
        condition="the statistics are those of the batch, as in training; not at inference, with running averages",
    )


@torch.no_grad()
def mean_squared_error(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the mean squared error of a network in evaluation mode."""
    return float((network.eval()(x) - y).pow(2).mean())


def train_network(norm: str, batch: int, seed: int, samples: int) -> tuple[float, float]:
    """Return the error of a small network before and after training on these samples, one batch at a time."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(8, WIDTH),
        nn.LayerNorm(WIDTH) if norm == "layer norm" else nn.BatchNorm1d(WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 1),
    )
    x = torch.randn(samples, 8)
    y = (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3]
    before = mean_squared_error(network, x[:NUM_TEST], y[:NUM_TEST])
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    network.train()
    for some_x, some_y in zip(x[NUM_TEST:].split(batch), y[NUM_TEST:].split(batch), strict=True):
        optimizer.zero_grad()
        (network(some_x) - some_y).pow(2).mean().backward()
        optimizer.step()
    return before, mean_squared_error(network, x[:NUM_TEST], y[:NUM_TEST])


def training_with_small_batches(lab: Lab) -> None:
    """A small network learns a function of eight numbers with batches of 1, 2, 4 and 16, from the same number of
    samples.

    With layer norm, training and evaluation are the same, for any batch size. With batch norm, training on a batch of
    one is impossible. Batches of two work, but the network learns with the mean and variance of two samples, which
    differ from those in evaluation.
    """
    samples = NUM_TEST + lab.choose(small=1_024, full=16_384)
    rows = []
    for batch in (1, 2, 4, 16):
        lab.step(f"training with batches of {batch}")
        before, after = train_network("layer norm", batch, lab.seed, samples)
        rows.append(
            (batch, before, after, "error" if batch == 1 else train_network("batch norm", batch, lab.seed, samples)[1])
        )
    lab.table(
        "Mean squared error on held-out samples",
        ("batch", "before", "layer norm", "batch norm"),
        rows,
    )
    generator = torch.Generator().manual_seed(lab.seed)
    layer, x = nn.LayerNorm(WIDTH), 5 + 3 * torch.randn(64, WIDTH, generator=generator)
    together, alone = layer.train()(x), torch.cat([layer.eval()(row) for row in x.split(1)])
    difference = float((together - alone).detach().abs().max())
    left = rows[0][2] / rows[0][1]
    lab.decide(
        "29a",
        Verdict.HOLDS,
        f"64 tokens in one batch in training and one by one at inference differ by at most {difference:.1g}, and "
        f"training with a batch size of 1 reduces the error to {left:.0%}.",
        Measurement(name="batch in training compared with single at inference", value=difference, high=1e-5),
        Measurement(name="remaining error with a batch size of 1", value=left, high=0.4),
    )


PARTS = (one_formula_two_dimensions, dependence_on_the_batch, training_with_small_batches)
