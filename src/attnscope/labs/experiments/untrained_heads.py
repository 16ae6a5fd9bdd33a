"""Do heads know anything before they are trained?

Take random word vectors and a layer with random weights, let it read "the cat sat on mat", and print where the last
word looks. Each head prefers another word, and it is tempting to call one the head for subjects and the next one the
head for verbs. But something always comes first. Would it be the same with other words?

The second half is about a number that is said to show that attention works, and is the same without attention.
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
WIDTH, HEADS, SENTENCES = 64, 4, 64


def untrained(seed: int, starts: int) -> Iterator[MultiHeadAttention]:
    """Layers of width 64 with four heads, as they are before training."""
    torch.manual_seed(seed)
    for _ in range(starts):
        yield MultiHeadAttention(hidden_size=WIDTH, num_heads=HEADS)


def one_sentence_and_some_starts(lab: Lab) -> None:
    """The printed example, started four times. Each time, heads prefer something; each time, something else. None of it
    is strong: over five words even weights are 0.20.

    There are no positions in this layer, so a head knows nothing of a word but its random vector. It could not tell a
    subject from a verb if it wanted to.
    """
    words = torch.randn(1, len(WORDS), WIDTH, generator=torch.Generator().manual_seed(lab.seed))
    rows = []
    for start, layer in enumerate(untrained(lab.seed, 4), 1):
        with torch.no_grad():
            _, matrix = layer(words, mask=Causal(), return_matrix=True)
        last = matrix.batch(0).to_dense()[:, -1]
        rows.append((start, *(f"{WORDS[int(row.argmax())]} {float(row.max()):.2f}" for row in last)))
    lab.table("Which word 'mat' looks at most", ("start", *(f"head {head}" for head in range(1, HEADS + 1))), rows)


def favourites(layer: MultiHeadAttention, words: Tensor) -> tuple[Tensor, Tensor]:
    """Where the last word looks most, (sentences, heads), and with how much weight."""
    _, matrix = layer(words, mask=Causal(), return_matrix=True)
    weight, place = matrix.to_dense()[..., -1, :].max(dim=-1)
    return place, weight


@torch.no_grad()
def shuffle(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Throw all numbers of each matrix together and deal them out again."""
    for parameter in layer.parameters():
        parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].view_as(parameter))
    return layer


def whether_heads_keep_to_a_role(lab: Lab) -> None:
    """A head for subjects would look at the subject in every sentence. So many sentences are built in the same way, an
    article, a subject, a verb, a preposition and an object, each with words of its own, which are random vectors as in
    the example. One layer reads them all. How often does a head prefer the same role in two sentences? By chance, in
    one case of five.

    Then the layer is changed and the words are kept; and the numbers in each matrix are shuffled, which leaves nothing
    of a head that was something. And if four heads choose at random among five words, three words or more are chosen
    in 77% of all cases: that heads differ says nothing.

    To see that the measure could see something, a mark of its role is added to each word, three times as strong as the
    word. Then a head does keep to one role, untrained as it is; but which one is drawn by lot with the weights.
    """
    starts = lab.choose(small=200, full=2_000)
    generator = torch.Generator().manual_seed(lab.seed)
    words = torch.randn(SENTENCES, len(WORDS), WIDTH, generator=generator)
    marked = words + 3 * torch.randn(len(WORDS), WIDTH, generator=generator)
    chosen, with_marks, strongest, shuffled = [], [], [], []
    with torch.no_grad():
        for layer in untrained(lab.seed, starts):
            place, weight = favourites(layer, words)
            chosen.append(place)
            with_marks.append(favourites(layer, marked)[0])
            strongest.append(weight.mean())
            shuffled.append(favourites(shuffle(layer), words)[1].mean())
    places, marks = torch.stack(chosen), torch.stack(with_marks)  # (starts, sentences, heads)
    other_words, control = (float((found[:, 1:] == found[:, :-1]).float().mean()) for found in (places, marks))
    other_weights, by_lot = (float((found[1:] == found[:-1]).float().mean()) for found in (places, marks))
    differing = float((torch.stack([(places == role).any(dim=-1) for role in range(5)]).sum(dim=0) >= 3).float().mean())
    sharpness = float(torch.stack(strongest).mean()), float(torch.stack(shuffled).mean())
    rows = [
        ("same role preferred with other words", other_words, control, 0.2),
        ("same role preferred with other weights", other_weights, by_lot, 0.2),
        ("three words or more preferred by four heads", differing, "-", 1 - (5 * 1 + 10 * 14) / 5**4),
        ("largest weight; by chance: numbers shuffled", sharpness[0], "-", sharpness[1]),
    ]
    lab.table(
        f"{starts} untrained layers, {SENTENCES} sentences", ("what", "measured", "roles marked", "by chance"), rows
    )
    lab.decide(
        "26a",
        Verdict.DOES_NOT_HOLD,
        f"A head prefers the same role in two sentences in {100 * other_words:.0f}% of all cases, and chance is 20%. "
        f"Its largest weight is {sharpness[0]:.3f}, and {sharpness[1]:.3f} with its numbers shuffled: there was "
        f"nothing to lose.",
        Measurement(name="same role preferred with other words", value=other_words, low=0.17, high=0.23),
        Measurement(name="the same, had words a mark of their role", value=control, low=0.4),
        Measurement(name="same role preferred with other weights", value=other_weights, low=0.17, high=0.23),
        Measurement(
            name="largest weight / with shuffled numbers", value=sharpness[0] / sharpness[1], low=0.97, high=1.03
        ),
    )


def ways_to_mix(layer: MultiHeadAttention, words: Tensor) -> dict[str, Tensor]:
    """What a layer writes with its own weights, with others, and with none."""
    query, key, value = layer.query_key_value(words).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    noise = torch.randn(2, *query.shape)
    mixed = {
        "attention as it is": attend(query, key, value, mask=Causal()),
        "even weights": attend(torch.zeros_like(query), key, value, mask=Causal()),
        "random weights": attend(noise[0], noise[1], value, mask=Causal()),
        "no attention": value,
    }
    written = {name: layer.output(found.transpose(1, 2).flatten(2)) for name, found in mixed.items()}
    contents = words.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    plain = attend(query, key, contents, mask=Causal())
    return written | {"attention, no matrices": plain.transpose(1, 2).flatten(2)}


def what_the_cosine_measures(lab: Lab) -> None:
    """A layer's output is compared with its input by the cosine of the angle between them. It is near 0, and that is
    said to confirm that attention does substantial work. So take the work away: spread the weights evenly, or
    draw them at random, or let each word read itself alone, so that nothing comes from any other word.

    Values and outputs go through two random matrices, and a random matrix turns a vector of 64 numbers to somewhere
    where the cosine is 0.10 off zero on average, as between any two random vectors: √(2 / 64π). Leave the two matrices
    out and keep the attention, and input and output are alike.
    """
    starts = lab.choose(small=100, full=1_000)
    words = torch.randn(SENTENCES, len(WORDS), WIDTH, generator=torch.Generator().manual_seed(lab.seed))
    cosines: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for layer in untrained(lab.seed, starts):
            for name, output in ways_to_mix(layer, words).items():
                found = torch.cosine_similarity(words, output, dim=-1)
                cosines.setdefault(name, []).append(found.abs().mean())
    means = {name: float(torch.stack(found).mean()) for name, found in cosines.items()}
    lab.table("Cosine of input and output", ("layer", "mean of its size"), list(means.items()))
    shown = {name: {"cosine": value} for name, value in means.items()}
    title = "As low without attention: the cosine measures two matrices"
    bars = grouped_bars(shown, ylabel="|cosine| of input and output", title=title)
    lab.figure("cosine", bars, "Size of the cosine, averaged over words, sentences and untrained layers.")
    own, without = means["attention as it is"], means["no attention"]
    lab.decide(
        "26b",
        Verdict.NOT_SHOWN,
        f"The cosine is {own:.2f} in size with attention and {without:.2f} where each word reads itself alone. With "
        f"attention and without the two random matrices it is {means['attention, no matrices']:.2f}: it tells "
        f"nothing of attention.",
        Measurement(name="size with attention", value=own, low=0.07, high=0.13),
        Measurement(name="no attention / attention", value=without / own, low=0.85, high=1.15),
        Measurement(name="even weights / attention", value=means["even weights"] / own, low=0.85, high=1.15),
        Measurement(name="random weights / attention", value=means["random weights"] / own, low=0.85, high=1.15),
        Measurement(name="attention without the matrices", value=means["attention, no matrices"], low=0.4),
    )


PARTS = (one_sentence_and_some_starts, whether_heads_keep_to_a_role, what_the_cosine_measures)
