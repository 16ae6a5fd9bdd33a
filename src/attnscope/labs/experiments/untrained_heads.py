"""Patterns in untrained heads

This lab shows you why apparent patterns of randomly initialised heads mean nothing, and how to test a pattern
against chance.

Take random word vectors and a randomly initialised layer, let it read "the cat sat on mat", and print what the last
word attends to. Each head prefers another word, and it is tempting to call one a subject head and another a verb head.
But some word always comes first. The test is whether the preference is the same with other words.

The last part tests a number that is said to show that attention works, and is the same without attention.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnscope import Causal, attend
from attnscope.figures import grouped_bars
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.models import MultiHeadAttention

WORDS = ("the", "cat", "sat", "on", "mat")
WIDTH, HEADS, SENTENCES, WORDS_PER_ROLE = 64, 4, 64, 4


def random_layers(seed: int, num_layers: int) -> Iterator[MultiHeadAttention]:
    """Yield randomly initialised layers of hidden size 64 with four heads."""
    torch.manual_seed(seed)
    for _ in range(num_layers):
        yield MultiHeadAttention(hidden_size=WIDTH, num_heads=HEADS)


def one_sentence_with_four_initialisations(lab: Lab) -> None:
    """The printed example with four initialisations. Each time the heads prefer something, and each time something
    else. No preference is strong: uniform weights over five words are 0.20.

    The layer has no positions, so a head knows nothing about a word but its random vector. It cannot distinguish a
    subject from a verb.
    """
    words = torch.randn(1, len(WORDS), WIDTH, generator=torch.Generator().manual_seed(lab.seed))
    rows = []
    for start, layer in enumerate(random_layers(lab.seed, 4), 1):
        with torch.no_grad():
            _, matrix = layer(words, mask=Causal(), return_matrix=True)
        last = matrix.batch(0).to_dense()[:, -1]
        rows.append((start, *(f"{WORDS[int(row.argmax())]} {float(row.max()):.2f}" for row in last)))
    lab.table(
        "The word that 'mat' attends to most",
        ("initialisation", *(f"head {head}" for head in range(1, HEADS + 1))),
        rows,
    )


def preferred_words(layer: MultiHeadAttention, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the word with the largest weight for the last query, (sentences, heads), and that weight."""
    _, matrix = layer(words, mask=Causal(), return_matrix=True)
    weight, place = matrix.to_dense()[..., -1, :].max(dim=-1)
    return place, weight


@torch.no_grad()
def shuffle_parameters(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Shuffle the numbers of each parameter tensor."""
    for parameter in layer.parameters():
        parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].view_as(parameter))
    return layer


def consistency_across_sentences(lab: Lab) -> None:
    """A subject head would attend to the subject in every sentence. So the lab builds many sentences with the same
    structure: article, subject, verb, preposition, object, each with its own random vectors. One layer reads them all.
    How often does a head prefer the same role in two sentences? By chance, in one of five cases.

    These vectors have nothing in common, so chance is what to expect, by construction: the first row shows that the
    count is right. In the second row each role has only four words. Words recur, and a head that prefers the vector of
    a word prefers its role again. This is about single words, not about roles.

    Then the layer is replaced and the words are kept; and the numbers of each matrix are shuffled, which destroys any
    learned structure. If four heads choose at random among five words, at least three words are chosen in 77% of all
    cases: that heads differ says nothing.

    As a positive control, a vector for its role is added to each word, three times as long as the word. Then an
    untrained head does prefer one role in every sentence; but which one depends on its random initialisation.
    """
    num_layers = lab.choose(small=200, full=2_000)
    generator = torch.Generator().manual_seed(lab.seed)
    words = torch.randn(SENTENCES, len(WORDS), WIDTH, generator=generator)
    marked = words + 3 * torch.randn(len(WORDS), WIDTH, generator=generator)
    vocabulary = torch.randn(WORDS_PER_ROLE, len(WORDS), WIDTH, generator=generator)
    picks = torch.randint(WORDS_PER_ROLE, (SENTENCES, len(WORDS)), generator=generator)
    recurring = vocabulary[picks, torch.arange(len(WORDS))]
    chosen, with_marks, with_few_words, strongest, shuffled = [], [], [], [], []
    with torch.no_grad():
        for layer in random_layers(lab.seed, num_layers):
            place, weight = preferred_words(layer, words)
            chosen.append(place)
            with_marks.append(preferred_words(layer, marked)[0])
            with_few_words.append(preferred_words(layer, recurring)[0])
            strongest.append(weight.mean())
            shuffled.append(preferred_words(shuffle_parameters(layer), words)[1].mean())
    places, marks = torch.stack(chosen), torch.stack(with_marks)  # (num_layers, sentences, heads)
    other_words, control, few_words = (
        float((found[:, 1:] == found[:, :-1]).float().mean()) for found in (places, marks, torch.stack(with_few_words))
    )
    other_weights, by_lot = (float((found[1:] == found[:-1]).float().mean()) for found in (places, marks))
    differing = float((torch.stack([(places == role).any(dim=-1) for role in range(5)]).sum(dim=0) >= 3).float().mean())
    sharpness = float(torch.stack(strongest).mean()), float(torch.stack(shuffled).mean())
    rows = [
        ("same role preferred with other words", other_words, control, 0.2),
        ("same role preferred with four words per role", few_words, "-", 0.2),
        ("same role preferred with other parameters", other_weights, by_lot, 0.2),
        ("at least three words preferred by four heads", differing, "-", 1 - (5 * 1 + 10 * 14) / 5**4),
        ("largest weight; by chance: shuffled parameters", sharpness[0], "-", sharpness[1]),
    ]
    lab.table(
        f"{num_layers} untrained layers, {SENTENCES} sentences",
        ("statistic", "measured", "with role vectors", "by chance"),
        rows,
    )
    lab.decide(
        "26a",
        Verdict.DOES_NOT_HOLD,
        f"A head prefers the same role in two sentences in {100 * other_words:.0f}% of all cases; chance is 20%. Its "
        f"largest weight is {sharpness[0]:.3f}, and {sharpness[1]:.3f} with shuffled parameters, so there is no "
        f"structure to destroy.",
        Measurement(name="same role preferred with other words", value=other_words, low=0.17, high=0.23),
        Measurement(name="the same with role vectors", value=control, low=0.4),
        Measurement(name="same role preferred with other parameters", value=other_weights, low=0.17, high=0.23),
        Measurement(
            name="largest weight / with shuffled parameters", value=sharpness[0] / sharpness[1], low=0.97, high=1.03
        ),
    )


def outputs_by_weights(layer: MultiHeadAttention, words: Tensor) -> dict[str, Tensor]:
    """Return the output of a layer with its own weights, with other weights, and without attention."""
    query, key, value = layer.query_key_value(words).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    noise = torch.randn(2, *query.shape)
    mixed = {
        "attention": attend(query, key, value, mask=Causal()),
        "uniform weights": attend(torch.zeros_like(query), key, value, mask=Causal()),
        "random weights": attend(noise[0], noise[1], value, mask=Causal()),
        "no attention": value,
    }
    written = {name: layer.output(found.transpose(1, 2).flatten(2)) for name, found in mixed.items()}
    contents = words.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    plain = attend(query, key, contents, mask=Causal())
    return written | {"attention, no projections": plain.transpose(1, 2).flatten(2)}


def cosine_of_input_and_output(lab: Lab) -> None:
    """A text compares the output of a layer with its input by their cosine. It is close to 0, which is said to confirm
    that attention does substantial work. So the lab removes that work: it makes the weights uniform or random, or lets
    each word attend only to itself.

    Values and outputs pass through two random matrices. A random matrix maps a vector of 64 numbers to a direction
    whose cosine is 0.10 in absolute value on average, as between any two random vectors: √(2 / 64π). Without the two
    matrices and with attention, input and output are similar.
    """
    num_layers = lab.choose(small=100, full=1_000)
    words = torch.randn(SENTENCES, len(WORDS), WIDTH, generator=torch.Generator().manual_seed(lab.seed))
    cosines: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for layer in random_layers(lab.seed, num_layers):
            for name, output in outputs_by_weights(layer, words).items():
                found = torch.cosine_similarity(words, output, dim=-1)
                cosines.setdefault(name, []).append(found.abs().mean())
    means = {name: float(torch.stack(found).mean()) for name, found in cosines.items()}
    lab.table("Cosine of input and output", ("layer", "mean absolute value"), list(means.items()))
    shown = {name: {"cosine": value} for name, value in means.items()}
    title = "The cosine is as low without attention"
    bars = grouped_bars(shown, ylabel="|cosine| of input and output", title=title)
    lab.figure("cosine", bars, "Absolute cosine, averaged over words, sentences and randomly initialised layers.")
    own, without = means["attention"], means["no attention"]
    lab.decide(
        "26b",
        Verdict.NOT_SHOWN,
        f"The absolute cosine is {own:.2f} with attention and {without:.2f} if each word attends only to itself. With "
        f"attention and without the two random projections it is {means['attention, no projections']:.2f}. It does not "
        f"measure attention.",
        Measurement(name="absolute cosine with attention", value=own, low=0.07, high=0.13),
        Measurement(name="no attention / attention", value=without / own, low=0.85, high=1.15),
        Measurement(name="uniform weights / attention", value=means["uniform weights"] / own, low=0.85, high=1.15),
        Measurement(name="random weights / attention", value=means["random weights"] / own, low=0.85, high=1.15),
        Measurement(name="attention without the projections", value=means["attention, no projections"], low=0.4),
    )


PARTS = (one_sentence_with_four_initialisations, consistency_across_sentences, cosine_of_input_and_output)
