"""Path length and forgetting

This lab shows you how far a recurrent network, a convolution and attention can carry one token, and how many steps
the token has to pass.

In a recurrent network, a token reaches a later one through all states in between. In a stack of convolutions, it
reaches further with each layer. In attention, every pair of tokens is one step apart ([Vaswani et al.,
2017](https://arxiv.org/abs/1706.03762), table 1). Long paths are hard to train, because the gradient is multiplied by a
Jacobian at each step ([Bengio et al., 1994](https://doi.org/10.1109/72.279181)).

The task is recall: read a sequence of random symbols, then name the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.labs.statistics import Mean, mean_with_error

SYMBOLS, WIDTH = 8, 32
LENGTHS = (4, 20, 100)
OPEN = "LSTM, open forget gates"


class Recurrent(nn.Module):
    """A recurrent layer; the answer is read from its last state.

    Args:
        layer: The kind of layer.
        forget_bias: Added to the forget gate of an LSTM, so that it starts open.
    """

    def __init__(self, layer: type[nn.RNN | nn.LSTM], *, forget_bias: float = 0.0):
        super().__init__()
        self.embedding, self.logits = nn.Embedding(SYMBOLS, WIDTH), nn.Linear(WIDTH, SYMBOLS)
        self.layer = layer(WIDTH, WIDTH, batch_first=True)
        if forget_bias:
            bias = self.layer.get_parameter("bias_hh_l0")
            with torch.no_grad():
                bias[WIDTH : 2 * WIDTH] += forget_bias  # gates: input, forget, cell, output

    def features(self, x: Tensor) -> Tensor:
        """Return the state after the last of the inputs (batch, tokens, WIDTH)."""
        return self.layer(x)[0][:, -1]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.features(self.embedding(tokens)))


class Convolution(nn.Module):
    """Causal convolutions of width 2 with residual connections, dilated by powers of two or not at all."""

    def __init__(self, num_layers: int, *, dilated: bool):
        super().__init__()
        self.embedding, self.logits = nn.Embedding(SYMBOLS, WIDTH), nn.Linear(WIDTH, SYMBOLS)
        self.layers = nn.ModuleList(
            nn.Conv1d(WIDTH, WIDTH, 2, dilation=2**layer if dilated else 1) for layer in range(num_layers)
        )

    def features(self, x: Tensor) -> Tensor:
        """Return the output at the last of the inputs (batch, tokens, WIDTH)."""
        x = x.mT
        for layer in self.layers:
            assert isinstance(layer, nn.Conv1d)
            x = x + F.gelu(layer(F.pad(x, (layer.dilation[0], 0))))
        return x[:, :, -1]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.features(self.embedding(tokens)))


class Attention(nn.Module):
    """One attention head with learned positions; the answer is read at the last token."""

    def __init__(self, length: int):
        super().__init__()
        self.embedding, self.logits = nn.Embedding(SYMBOLS, WIDTH), nn.Linear(WIDTH, SYMBOLS)
        self.positions = nn.Parameter(torch.randn(length, WIDTH))
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def features(self, x: Tensor) -> Tensor:
        """Return the output at the last of the inputs (batch, tokens, WIDTH)."""
        x = x + self.positions
        return x[:, -1] + F.scaled_dot_product_attention(self.query(x[:, -1:]), self.key(x), self.value(x))[:, 0]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.features(self.embedding(tokens)))


Network = Recurrent | Convolution | Attention


def layers_for(length: int) -> int:
    """Return how many dilated convolutions of width 2 span a sequence.

    >>> [layers_for(length) for length in (2, 3, 8, 100)]
    [1, 2, 3, 7]
    """
    return math.ceil(math.log2(length))


NETWORKS: dict[str, Callable[[int], Network]] = {
    "RNN": lambda _: Recurrent(nn.RNN),
    "LSTM": lambda _: Recurrent(nn.LSTM),
    OPEN: lambda _: Recurrent(nn.LSTM, forget_bias=5.0),
    "convolution, dilated": lambda length: Convolution(layers_for(length), dilated=True),
    "convolution, not dilated": lambda length: Convolution(layers_for(length), dilated=False),
    "attention": Attention,
}


def gradient_ratio(network: Network, length: int) -> float:
    """Return the size of the gradient of the output with respect to the first token, relative to the last but one."""
    x = torch.randn(16, length, WIDTH).double().requires_grad_()
    (gradient,) = torch.autograd.grad(deepcopy(network).double().features(x).sum(), x)
    sizes = gradient.square().mean((0, 2)).sqrt()
    return float(sizes[0] / sizes[-2])


@cache
def train_recall(name: str, length: int, steps: int, seed: int) -> tuple[float, float]:
    """Train a network to name the first symbol; return its accuracy, and its gradient ratio before training."""
    torch.manual_seed(seed)
    network = NETWORKS[name](length)
    ratio = gradient_ratio(network, length)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(steps):
        tokens = torch.randint(SYMBOLS, (32, length))
        loss = F.cross_entropy(network(tokens), tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    tokens = torch.randint(SYMBOLS, (2_000, length))
    with torch.no_grad():
        return float((network(tokens).argmax(-1) == tokens[:, 0]).float().mean()), ratio


def reaches_first(network: Network, length: int) -> bool:
    """Whether the output of a network depends on the first of its inputs."""
    x = torch.randn(1, length, WIDTH).double().requires_grad_()
    (gradient,) = torch.autograd.grad(network.double().features(x).sum(), x)
    return bool(gradient[0, 0].abs().max() > 0)


def steps_of_the_path(lab: Lab) -> None:
    """How many steps connect the first token with the last? For convolutions, the lab adds layers until the gradient of
    the last output with respect to the first token is not zero. A recurrent layer applies its update once per token,
    and attention takes one step.

    Convolutions of width k reach (k - 1) tokens further with each layer, so about T / (k - 1) layers are needed. Only
    if each layer is dilated k times as much as the one before, the reach is multiplied by k, and log_k T layers are
    enough ([van den Oord et al., 2016](https://arxiv.org/abs/1609.03499)). The logarithm in the table of the texts is
    about dilated convolutions.
    """
    torch.manual_seed(lab.seed)
    lengths = (8, 16, 32, 64)
    counts: dict[str, list[int]] = {}
    for name, dilated in (("convolution, dilated", True), ("convolution, not dilated", False)):
        make = partial(Convolution, dilated=dilated)
        counts[name] = [next(n for n in range(1, 100) if reaches_first(make(n), length)) for length in lengths]
    direct = all(reaches_first(Attention(length), length) for length in lengths)
    rows = [
        (length, length - 1, undilated, dilated, 1)
        for length, dilated, undilated in zip(lengths, *counts.values(), strict=True)
    ]
    columns = ("tokens", "recurrent", "convolution of width 2", "dilated convolution", "attention")
    lab.table("Steps from the first token to the last", columns, rows, note="Convolutions: layers, by their gradients.")
    dilated, undilated = (found[-1] - found[-2] for found in counts.values())
    lab.decide(
        "41c",
        Verdict.HOLDS_WHEN,
        f"From 32 to 64 tokens, a stack of dilated convolutions needs {dilated} more layer, and one without dilation "
        f"{undilated} more. One attention layer is enough at any length; a recurrent layer takes one step per token.",
        Measurement(name="dilated: layers from 32 to 64 tokens", value=dilated, low=1, high=1),
        Measurement(name="not dilated: layers from 32 to 64 tokens", value=undilated, low=32, high=32),
        Measurement(name="attention: lengths that one layer connects", value=float(direct), low=1, high=1),
        condition="convolutions are dilated; without dilation their path length is O(T / k)",
    )


def recall_over_distance(lab: Lab) -> None:
    """Each network is trained from scratch at each length, with the same number of sequences. Naming a random symbol
    has an accuracy of 1/8. Convolutions have as many layers as a dilated stack needs to span the sequence.

    Before training, the gradient with respect to the first token shows how hard the path is. In the RNN it vanishes: at
    100 tokens, nothing of the error reaches the first token. The gates of the LSTM ([Hochreiter and Schmidhuber,
    1997](https://doi.org/10.1162/neco.1997.9.8.1735)) were designed against this, but their usual initialisation
    forgets half of the state per token; gates that start open do not. In attention, the gradient does not depend on the
    distance.

    A short path is necessary and not sufficient: the dilated convolution reaches the first of 100 tokens through seven
    layers, but does not learn to pass it on in this training.
    """
    count, steps = lab.choose(small=3, full=8), lab.choose(small=250, full=4_000)
    rows, accuracy, ratio = [], dict[tuple[str, int], Mean](), dict[tuple[str, int], float]()
    for name in NETWORKS:
        for length in LENGTHS:
            lab.step(f"{name}, {length} tokens")
            runs = [train_recall(name, length, steps, seed) for seed in lab.seeds(count)]
            accuracy[name, length] = mean_with_error([right for right, _ in runs])
            ratio[name, length] = mean_with_error([gradient for _, gradient in runs]).value
        rows.append((name, *(str(accuracy[name, n]) for n in LENGTHS), *(ratio[name, n] for n in LENGTHS[::2])))
    columns = (
        "network",
        *(f"accuracy, {length} tokens" for length in LENGTHS),
        *(f"gradient of the first token / last but one, {length} tokens" for length in LENGTHS[::2]),
    )
    note = f"Means and standard errors over {count} seeds; gradients before training. {steps} steps of 32 sequences."
    lab.table("Recall of the first symbol", columns, rows, note=note)
    lab.figure(
        "recall",
        lines(
            LENGTHS,
            {name: [accuracy[name, length].value for length in LENGTHS] for name in NETWORKS},
            xlabel="tokens",
            ylabel="accuracy",
            title="An RNN loses the first token, attention does not",
            log_x=True,
            reference_lines={"chance": 1 / SYMBOLS},
        ),
        f"Accuracy at naming the first of 4 to 100 symbols, means over {count} seeds.",
    )
    near, far = (accuracy["RNN", length].value for length in LENGTHS[::2])
    lab.decide(
        "41a",
        Verdict.HOLDS,
        f"An RNN names the first of 4 symbols in {near:.0%} of all cases and the first of 100 in {far:.0%}, where "
        f"chance is 12.5%. An LSTM has {accuracy['LSTM', 100].value:.0%} after the same training. If its forget gates "
        f"start open, it has {accuracy[OPEN, 20].value:.0%} at 20 tokens and {accuracy[OPEN, 100].value:.0%} at 100.",
        Measurement(name="RNN, 4 tokens", value=near, low=0.9),
        Measurement(name="RNN, 100 tokens", value=far, high=0.3),
        Measurement(name="RNN: gradient ratio at 100 tokens", value=ratio["RNN", 100], high=1e-6),
        Measurement(name="LSTM with open forget gates, 20 tokens", value=accuracy[OPEN, 20].value, low=0.5),
    )
    worst = min(accuracy["attention", length].value for length in LENGTHS)
    lab.decide(
        "41b",
        Verdict.HOLDS,
        f"Attention names the first symbol in at least {worst:.2%} of all cases, at every length. Its gradient ratio "
        f"at 100 tokens is {ratio['attention', 100]:.2f}, compared with {ratio['RNN', 100]:.0e} in the RNN.",
        Measurement(name="attention: smallest accuracy", value=worst, low=0.98),
        Measurement(name="attention: gradient ratio at 100 tokens", value=ratio["attention", 100], low=0.3, high=3),
    )


PARTS = (steps_of_the_path, recall_over_distance)
