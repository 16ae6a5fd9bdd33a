"""Exposure bias

This lab shows you how to measure whether errors compound when a language model generates text (exposure bias,
[Ranzato et al., 2016](https://arxiv.org/abs/1511.06732)).

In training, the context of every token is text written by people. During generation, it is the output of the model. If
that output is slightly unusual, the model continues from a context unlike its training data, and may drift further.

A model that matched the distribution of its training text would generate such text. Its uncertainty about the next
token would then be the same in generated and in written text, at every distance from the prompt. This test needs no
human judgement.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict, reference_text
from attnscope.models import Decoder, Sampling, generate_tokens

PROMPT = 64  # tokens
NGRAM = 4  # tokens
METHODS = {"text": None, "temperature 1": 1.0, "temperature 0.5": 0.5}
"""Continuations of the prompt: the original text, or generated at a temperature."""


def distance_bins(length: int) -> list[range]:
    """Return ranges of distances from the prompt: 0 to 7, 8 to 15, 16 to 31 and so on.

    >>> distance_bins(32)
    [range(0, 8), range(8, 16), range(16, 32)]
    """
    edges = [0, 8]
    while edges[-1] < length:
        edges.append(2 * edges[-1])
    return [range(start, stop) for start, stop in pairwise(edges)]


def passages(tokenizer: Any, rows: int, length: int, seed: int) -> Tensor:
    """Return the beginnings of random paragraphs of the reference text, (rows, length) tokens."""
    text, generator = reference_text(), torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - 12 * length, (rows,), generator=generator).tolist()
    starts = [text.index("\n\n", start) + 2 for start in starts]
    return torch.tensor([tokenizer.encode(text[start : start + 10 * length])[:length] for start in starts])


@torch.no_grad()
def next_token_entropy(model: Decoder, ids: Tensor) -> Tensor:
    """Return the entropy of the next-token distribution at each position after the prompt, in nats."""
    found = []
    for row in ids:
        chances = model.logits(model.features(row[None])[0, PROMPT - 1 : -1]).log_softmax(-1)
        found.append(-(chances.exp() * chances).sum(-1))
    return torch.stack(found)


def repeated_ngrams(ids: Tensor) -> Tensor:
    """Return 1 for each token after the prompt that completes an n-gram that occurs earlier in its row, else 0."""
    found = []
    for row in ids.tolist():
        seen, repeated = set(), []
        for end in range(NGRAM, len(row) + 1):
            ngram = tuple(row[end - NGRAM : end])
            repeated.append(float(ngram in seen))
            seen.add(ngram)
        found.append(repeated[PROMPT - NGRAM + 1 :])
    return torch.tensor(found)


def mean_by_distance(values: Tensor) -> list[float]:
    """Return the mean of (rows, distances) in each bin."""
    return [float(values[:, list(bucket)].mean()) for bucket in distance_bins(values.shape[1])]


@lru_cache(maxsize=1)
def continuations(lab: Lab) -> dict[str, tuple[Tensor, Tensor, str]]:
    """Return for each method: entropy and repetition, (rows, distances) each, and the first continuation."""
    rows, length = lab.choose(small=(8, 128), full=(48, 512))
    model, tokenizer = lab.trained_model()
    assert isinstance(model, Decoder)
    text, found = passages(tokenizer, rows, PROMPT + length, lab.seed), {}
    for name, temperature in METHODS.items():
        lab.step(f"{name}: {rows} passages of {length} tokens")
        ids = text
        if temperature is not None:
            sampling = Sampling(temperature=temperature, seed=lab.seed)
            steps = generate_tokens(model, text[:, :PROMPT].tolist(), max_new_tokens=length, sampling=sampling)
            ids = torch.cat((text[:, :PROMPT], torch.tensor(list(steps)).T), dim=1)
        found[name] = next_token_entropy(model, ids), repeated_ngrams(ids), tokenizer.decode(ids[0, PROMPT:].tolist())
    return found


def entropy_of_the_next_token(lab: Lab) -> None:
    """SmolLM2 continues passages of the Python language reference. It samples at temperature 1, from its own
    distribution, and at temperature 0.5, which prefers likely tokens.

    The lab then measures the entropy of the next-token distribution at each position, in the original passage and in
    both continuations. All three share the prompt, so they are equal at distance 0. Without exposure bias, the curve at
    temperature 1 would stay close to that of the text.
    """
    found = continuations(lab)
    length = found["text"][0].shape[1]
    lab.table(
        "The first continuation",
        ("method", "continuation"),
        [(name, " ".join(text.split())[:300]) for name, (_, _, text) in found.items()],
    )
    curves = {name: mean_by_distance(entropies) for name, (entropies, _, _) in found.items()}
    rows = [
        (f"{bucket.start} to {bucket.stop - 1}", *(curve[at] for curve in curves.values()))
        for at, bucket in enumerate(distance_bins(length))
    ]
    lab.table("Entropy of the next token, in nats", ("tokens after the prompt", *curves), rows)
    drawing = lines(
        [float(bucket.stop) for bucket in distance_bins(length)],
        curves,
        xlabel="tokens after the prompt, up to",
        ylabel="entropy of the next token (nats)",
        title="In its own output, the entropy drifts away from that in text",
        log_x=True,
    )
    lab.figure("entropy", drawing, "Entropy of the next token in the original text and in generated text.")


def repetition(lab: Lab) -> None:
    """At a low temperature, entropy falls, and there seems to be no problem. But the output repeats itself: likely
    words make the same words more likely, and the model ends in loops. The table counts 4-grams that occur earlier in
    the same passage.

    So errors do compound, in two ways. At temperature 1, unusual words lead to more unusual words; at a low
    temperature, repetition leads to repetition. Both grow with the distance from the prompt. How fast they grow depends
    on the model and the sampling; this is a small model.
    """
    found = continuations(lab)
    curves = {name: mean_by_distance(repeated) for name, (_, repeated, _) in found.items()}
    rows = [
        (f"{bucket.start} to {bucket.stop - 1}", *(curve[at] for curve in curves.values()))
        for at, bucket in enumerate(distance_bins(found["text"][0].shape[1]))
    ]
    lab.table("Share of repeated 4-grams", ("tokens after the prompt", *curves), rows)
    entropies = {name: mean_by_distance(entropies) for name, (entropies, _, _) in found.items()}
    near, far = (entropies["temperature 1"][at] - entropies["text"][at] for at in (0, -1))
    looping = curves["temperature 0.5"][-1] - curves["text"][-1]
    lab.decide(
        "28",
        Verdict.HOLDS,
        f"The entropy at temperature 1, minus that in text, goes from {near:+.2f} nats in the first 8 tokens to "
        f"{far:+.2f} in the last ones. At temperature 0.5, SmolLM2 repeats itself instead: there, "
        f"{curves['temperature 0.5'][-1]:.0%} of its 4-grams are repeated, compared with "
        f"{curves['text'][-1]:.0%} in the text.",
        Measurement(name="entropy at temperature 1 minus text, far from the prompt", value=far, low=0.3),
        Measurement(name="increase of this since the first 8 tokens", value=far - near, low=0.2),
        Measurement(name="repetition at temperature 0.5 minus text, far from the prompt", value=looping, low=0.2),
    )


PARTS = (entropy_of_the_next_token, repetition)
