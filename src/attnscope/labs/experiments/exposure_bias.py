"""Do small errors compound when a model writes?

In training a model always stands behind a text that people wrote. When it writes, it stands behind its own words. If
these are a little off, it goes on from where no text has been, and may get further off: that is exposure bias.

A model that were right about language would write what could have been a text. Behind its own words it would then be
as certain of the next one as it is behind a text, at every distance from the prompt. That needs no judge.
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

PROMPT = 64  # tokens of text that everything begins with
PIECE = 4  # tokens in a row that count as repeated where they stood before
WRITERS = {"text": None, "freely": 1.0, "carefully": 0.5}
"""Who goes on behind the prompt: the text itself, or the model at this temperature."""


def buckets(length: int) -> list[range]:
    """Distances from the prompt: 0 to 7, 8 to 15, 16 to 31 and so on, each as far as all before it.

    >>> buckets(32)
    [range(0, 8), range(8, 16), range(16, 32)]
    """
    edges = [0, 8]
    while edges[-1] < length:
        edges.append(2 * edges[-1])
    return [range(start, stop) for start, stop in pairwise(edges)]


def passages(tokenizer: Any, rows: int, length: int, seed: int) -> Tensor:
    """Beginnings of paragraphs of the reference, (rows, length) tokens."""
    text, generator = reference_text(), torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - 12 * length, (rows,), generator=generator).tolist()
    starts = [text.index("\n\n", start) + 2 for start in starts]
    return torch.tensor([tokenizer.encode(text[start : start + 10 * length])[:length] for start in starts])


@torch.no_grad()
def doubt(model: Decoder, ids: Tensor) -> Tensor:
    """The entropy of the next token at each place behind the prompt, in nats: the surprise that the model expects."""
    found = []
    for row in ids:
        chances = model.logits(model.features(row[None])[0, PROMPT - 1 : -1]).log_softmax(-1)
        found.append(-(chances.exp() * chances).sum(-1))
    return torch.stack(found)


def repeats(ids: Tensor) -> Tensor:
    """1 for each token behind the prompt that ends a piece which stood earlier in the same row, else 0."""
    found = []
    for row in ids.tolist():
        seen, repeated = set(), []
        for end in range(PIECE, len(row) + 1):
            piece = tuple(row[end - PIECE : end])
            repeated.append(float(piece in seen))
            seen.add(piece)
        found.append(repeated[PROMPT - PIECE + 1 :])
    return torch.tensor(found)


def by_distance(values: Tensor) -> list[float]:
    """The mean in each bucket, of (rows, distances)."""
    return [float(values[:, list(bucket)].mean()) for bucket in buckets(values.shape[1])]


@lru_cache(maxsize=1)
def all_written(lab: Lab) -> dict[str, tuple[Tensor, Tensor, str]]:
    """For each writer: doubt, repeats, both (rows, distances), and how the first passage goes on."""
    rows, length = lab.choose(small=(8, 128), full=(48, 512))
    model, tokenizer = lab.trained_model()
    assert isinstance(model, Decoder)
    text, found = passages(tokenizer, rows, PROMPT + length, lab.seed), {}
    for name, temperature in WRITERS.items():
        lab.step(f"{name}: {rows} passages of {length} tokens")
        ids = text
        if temperature is not None:
            sampling = Sampling(temperature=temperature, seed=lab.seed)
            steps = generate_tokens(model, text[:, :PROMPT].tolist(), max_new_tokens=length, sampling=sampling)
            ids = torch.cat((text[:, :PROMPT], torch.tensor(list(steps)).T), dim=1)
        found[name] = doubt(model, ids), repeats(ids), tokenizer.decode(ids[0, PROMPT:].tolist())
    return found


def how_certain_it_is_behind_its_own_words(lab: Lab) -> None:
    """SmolLM2 goes on with passages of the Python reference. It writes freely, drawing each token with the chance that
    it gives it (temperature 1), or carefully, preferring what is likely (temperature 0.5).

    Then it is asked at each place how much in doubt it is about the next token: along the passage as it was written by
    people, and along its own versions of it. All three begin with the same prompt, so at distance 0 they are the same.
    A model without exposure bias, writing freely, would stay beside the text.
    """
    found = all_written(lab)
    length = found["text"][0].shape[1]
    lab.table(
        "How the first passage goes on",
        ("who", "behind the prompt"),
        [(name, " ".join(words.split())[:300]) for name, (_, _, words) in found.items()],
    )
    curves = {name: by_distance(doubts) for name, (doubts, _, _) in found.items()}
    rows = [
        (f"{bucket.start} to {bucket.stop - 1}", *(curve[at] for curve in curves.values()))
        for at, bucket in enumerate(buckets(length))
    ]
    lab.table("Doubt about the next token, in nats", ("tokens behind the prompt", *curves), rows)
    drawing = lines(
        [float(bucket.stop) for bucket in buckets(length)],
        curves,
        xlabel="tokens behind the prompt, up to",
        ylabel="doubt about the next token (nats)",
        title="Behind its own words the model drifts away from where text keeps it",
        log_x=True,
    )
    lab.figure("doubt", drawing, "Entropy of the next token along text, and along what the model has written itself.")


def how_it_ends(lab: Lab) -> None:
    """Whoever writes carefully seems to be safe from that: doubt goes down. But see what is written: likely words make
    the same words likelier, and the model falls into loops. Counted are pieces of four tokens that stood in the same
    passage before.

    So errors do feed on themselves, in both directions: drawing freely, odd words bring forth odder ones; drawing
    carefully, repetition brings forth repetition. That it is worse with distance is what "compound" says. How fast it
    is worse is a matter of the model and of how it is drawn from; this is a small model.
    """
    found = all_written(lab)
    curves = {name: by_distance(repeated) for name, (_, repeated, _) in found.items()}
    rows = [
        (f"{bucket.start} to {bucket.stop - 1}", *(curve[at] for curve in curves.values()))
        for at, bucket in enumerate(buckets(found["text"][0].shape[1]))
    ]
    lab.table("Share of pieces that stood there before", ("tokens behind the prompt", *curves), rows)
    doubts = {name: by_distance(doubts) for name, (doubts, _, _) in found.items()}
    near, far = (doubts["freely"][at] - doubts["text"][at] for at in (0, -1))
    looping = curves["carefully"][-1] - curves["text"][-1]
    lab.decide(
        "28",
        Verdict.HOLDS,
        f"Doubt behind freely drawn words, less that behind text, goes from {near:+.2f} nats in the first 8 tokens to "
        f"{far:+.2f} in the farthest ones. Drawing carefully, SmolLM2 repeats itself instead: there, "
        f"{curves['carefully'][-1]:.0%} of its pieces of four tokens stood there before, and "
        f"{curves['text'][-1]:.0%} of the text's.",
        Measurement(name="doubt, freely over text, far from the prompt", value=far, low=0.3),
        Measurement(name="the same, more than in the first 8 tokens", value=far - near, low=0.2),
        Measurement(name="repeats, carefully over text, far from the prompt", value=looping, low=0.2),
    )


PARTS = (how_certain_it_is_behind_its_own_words, how_it_ends)
