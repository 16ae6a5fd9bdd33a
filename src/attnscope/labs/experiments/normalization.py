"""Which norms work on a batch of one?

A norm moves and scales numbers so that they have mean 0 and variance 1. Layer norm takes mean and variance over the
features of one token. Batch norm takes them over the batch, feature by feature: what becomes of one sample then depends
on which others it happens to stand with.

A model that writes text reads one text, and often one token, at a time. So it matters whether a norm needs company.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnscope.labs import Lab, Measurement, Verdict

WIDTH = 32
TESTS = 512  # samples that are not learned from
EPSILON = 1e-5  # added to the variance: the default of both norms in torch


def normalized(x: Tensor, dim: int) -> Tensor:
    """Mean 0 and variance 1 along a dimension: along the last it is layer norm, along the first batch norm."""
    return (x - x.mean(dim, keepdim=True)) / (x.var(dim, keepdim=True, correction=0) + EPSILON).sqrt()


def one_formula_two_directions(lab: Lab) -> None:
    """Both norms are one formula; what differs is the direction in which mean and variance are taken.

    With eight samples both do what torch does. With a single one, layer norm has 32 numbers to look at as before. Batch
    norm has one number a feature: it is its own mean, so the difference is 0 whatever the number was.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    eight, one = (5 + 3 * torch.randn(rows, WIDTH, generator=generator) for rows in (8, 1))
    layer, batch = nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH)
    rows = []
    for name, dim, module in (("layer norm", -1, layer), ("batch norm", 0, batch)):
        error = float((normalized(eight, dim) - module(eight)).detach().abs().max())
        rows.append((name, error, float(normalized(eight, dim).std()), float(normalized(one, dim).abs().max())))
    lab.table(
        "The formula, by hand",
        ("norm", "difference from torch, 8 samples", "spread of the output, 8 samples", "largest output, 1 sample"),
        rows,
        note="An output of 0 for every input has lost the input.",
    )


def refuses(module: nn.Module, x: Tensor) -> bool:
    """Whether a module raises an error about this batch."""
    try:
        module(x)
    except ValueError:
        return True
    return False


def in_other_company(lab: Lab) -> None:
    """The same sample is put through each norm alone and together with others.

    In training, batch norm takes the statistics of the batch at hand, and torch refuses a batch that has one number a
    feature. For inference, torch keeps running averages of what training has seen and uses these instead: then a
    sample may come alone, and gets the same output in every company. So batch norm does not fail at inference, which is
    where it is often said to fail. What it does need is a training with larger batches, from which the averages come.

    Of a text, the positions can stand in for the batch. Then one text is enough, but each position sees all others
    through the mean, also the later ones: a model that is to predict them would be told.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    sample, others = torch.randn(1, WIDTH, generator=generator), 2 + 4 * torch.randn(31, WIDTH, generator=generator)
    text = torch.randn(1, WIDTH, 16, generator=generator)  # one text of 16 positions, as batch norm takes it
    other_end = torch.cat((text[..., :-1], 5 + text[..., -1:]), dim=-1)
    layer, batch = nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH)
    for _ in range(100):  # fills the running averages
        batch(2 + 4 * torch.randn(32, WIDTH, generator=generator))
    rows = {}
    for name, module in (("layer norm", layer), ("batch norm", batch)):
        for mode in ("training", "inference"):
            module.train(mode == "training")
            alone = None if refuses(module, sample) else module(sample)
            together, with_one = module(torch.cat((sample, others)))[:1], module(torch.cat((sample, others[:1])))[:1]
            change = float((together - with_one).detach().abs().max())
            first, changed = (
                (module(x.mT).mT if isinstance(module, nn.LayerNorm) else module(x))[..., 0] for x in (text, other_end)
            )
            leak = float((first - changed).detach().abs().max())
            shown = "refused" if alone is None else float((alone - together).detach().abs().max())
            rows[name, mode] = shown, change, leak
    lab.table(
        "One sample in different company",
        ("norm", "mode", "alone against with 31", "with 1 against with 31", "position 0 when position 15 changes"),
        [(*key, *found) for key, found in rows.items()],
        note="Largest difference of any output. The last column: one text, its positions as the batch.",
    )
    lab.decide(
        "29b",
        Verdict.HOLDS_WHEN,
        f"In training, a batch of one number a feature is refused, and by the formula all outputs would be 0; the same "
        f"sample with one neighbour or with 31 differs by {rows['batch norm', 'training'][1]:.1f}. At inference, "
        "running averages take the place of the batch, and a sample alone gives what it gives in company.",
        Measurement(
            name="refused in training", value=float(rows["batch norm", "training"][0] == "refused"), low=1, high=1
        ),
        Measurement(name="training: what company changes", value=rows["batch norm", "training"][1], low=0.3),
        Measurement(
            name="inference: alone against in company", value=float(rows["batch norm", "inference"][0]), high=1e-5
        ),
        condition="statistics come from that batch, as in training; not at inference, where they are running averages",
    )


@torch.no_grad()
def error(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """The mean squared error of a network in use."""
    return float((network.eval()(x) - y).pow(2).mean())


def learned(norm: str, batch: int, seed: int, samples: int) -> tuple[float, float]:
    """The error of a small network before and after it has learned from so many samples, a batch at a time."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(8, WIDTH),
        nn.LayerNorm(WIDTH) if norm == "layer norm" else nn.BatchNorm1d(WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 1),
    )
    x = torch.randn(samples, 8)
    y = (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3]
    before = error(network, x[:TESTS], y[:TESTS])
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    network.train()
    for some_x, some_y in zip(x[TESTS:].split(batch), y[TESTS:].split(batch), strict=True):
        optimizer.zero_grad()
        (network(some_x) - some_y).pow(2).mean().backward()
        optimizer.step()
    return before, error(network, x[:TESTS], y[:TESTS])


def learning_one_sample_at_a_time(lab: Lab) -> None:
    """A small network learns a function of eight numbers, with batches of 1, 2, 4 and 16, from equally many samples.

    With layer norm it makes no difference to the network whether it is being trained or used, nor how many samples
    stand beside one. With batch norm a batch of one cannot be learned from at all. Batches of two can, but what the
    network learns to work with, mean and variance of two samples, is not what it gets when it is used.
    """
    samples = TESTS + lab.choose(small=1_024, full=16_384)
    rows = []
    for batch in (1, 2, 4, 16):
        lab.step(f"learning with batches of {batch}")
        before, after = learned("layer norm", batch, lab.seed, samples)
        rows.append(
            (batch, before, after, "refused" if batch == 1 else learned("batch norm", batch, lab.seed, samples)[1])
        )
    lab.table(
        "Mean squared error on samples that were not learned from",
        ("batch", "before", "layer norm", "batch norm"),
        rows,
    )
    generator = torch.Generator().manual_seed(lab.seed)
    layer, x = nn.LayerNorm(WIDTH), 5 + 3 * torch.randn(64, WIDTH, generator=generator)
    together, alone = layer.train()(x), torch.cat([layer.eval()(row) for row in x.split(1)])
    apart = float((together - alone).detach().abs().max())
    left = rows[0][2] / rows[0][1]
    lab.decide(
        "29a",
        Verdict.HOLDS,
        f"64 tokens in one batch in training and one by one at inference differ by {apart:.1g} at most, and a "
        f"network that learns one sample at a time gets its error down to {left:.0%} of what it began with.",
        Measurement(name="in a batch, training, against alone, inference", value=apart, high=1e-5),
        Measurement(name="error left after learning one by one", value=left, high=0.4),
    )


PARTS = (one_formula_two_directions, in_other_company, learning_one_sample_at_a_time)
