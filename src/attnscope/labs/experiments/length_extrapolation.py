"""Length extrapolation with rotary embeddings

This lab shows you how to measure whether a model with rotary position embeddings ([Su et al.,
2021](https://arxiv.org/abs/2104.09864)) can read sequences longer than its training length, how this compares with
other positional encodings, and which remedies need no training.

Rotary embeddings rotate queries and keys by an angle that grows with the token position. The angle is defined for every
position, so the model accepts a sequence of any length. A model with a learned table of positions cannot, unless the
table has rows that were never trained. That the model accepts a sequence does not mean that it uses it well.

Small models are trained on short sequences and read longer ones. Then SmolLM2 reads beyond the 8,192 tokens of its
training. The measure is the loss of the next token. The same tokens are read twice, with all previous tokens and with
fewer, so that hard and easy passages do not affect the comparison. A model that can use a longer context has a lower
loss with it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import isnan
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attnscope import Full, Window
from attnscope.attention import Mask
from attnscope.attention.rotary import Rotary
from attnscope.attention.rotary_scaling import LinearScaling, NTKScaling, Scaling, YarnScaling
from attnscope.errors import SettingError
from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict, reference_text
from attnscope.labs.next_token import train_decoder
from attnscope.models import Decoder, DecoderConfig

TRAINED, READ = 64, 256
"""Sequence length of the small model: in training, and in evaluation."""
BUCKET = 1024
"""Tokens of SmolLM2 whose losses are averaged."""
HELD_BACK = 5_000
"""Characters that are held out from training."""
EVERYTHING = Full()
ROTARY = Rotary(dim=16, layout="half")


@cache
def character_ids() -> Tensor:
    """Return the text as character codes below 128."""
    return torch.tensor(list(reference_text().encode("ascii", "replace")))


@cache
def train_on_short_sequences(
    seed: int, steps: int, encoding: Rotary | Literal["learned", "sinusoidal", "none"] = ROTARY
) -> Decoder:
    """Train two layers on sequences of 64 characters; a learned table has 256 rows, of which 192 are never trained."""
    torch.manual_seed(seed)
    config = DecoderConfig(
        vocab_size=128,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        intermediate_size=256,
        max_position_embeddings=READ,
        position_encoding=encoding,
        norm="rms",
    )
    model, text = Decoder(config), character_ids()[:-HELD_BACK]
    span = torch.arange(TRAINED + 1)
    return train_decoder(model, lambda: text[torch.randint(len(text) - TRAINED, (32, 1)) + span], steps)


def with_scaling(model: Decoder, scaling: Scaling | None) -> Decoder:
    """Set the rotary scaling of a model and return it; None restores the original embeddings."""
    assert isinstance(model.config.position_encoding, Rotary)
    model.config = replace(model.config, position_encoding=replace(model.config.position_encoding, scaling=scaling))
    return model


@torch.no_grad()
def loss_by_position(model: Decoder, mask: Mask = EVERYTHING) -> Tensor:
    """Return the mean loss at every position of held-out sequences of 256 characters.

    Sequences start every 16 characters, so that each bin of 16 positions covers the same text.
    """
    text = character_ids()[-HELD_BACK:]
    rows = text[torch.arange(0, HELD_BACK - READ - 1, 16)[:, None] + torch.arange(READ + 1)]
    return cross_entropy(model(rows[:, :-1], mask=mask).transpose(1, 2), rows[:, 1:], reduction="none").mean(0)


def num_steps(lab: Lab) -> int:
    """Return the training steps of the small models."""
    return lab.choose(small=800, full=2500)


def small_model_beyond_its_training_length(lab: Lab) -> None:
    """Two layers are trained on sequences of 64 characters, and then read sequences of 256.

    The first curve is the model as trained. Up to 64 characters, its loss falls with more context. Beyond, it meets
    distances that it has never seen, and its loss rises, although the useful context is still available.

    The other curves are the same parameters with a remedy that needs no training. **Sliding-window attention** limits
    every query to the last 64 characters: the sequence is long, the distances are not. **NTK scaling** and **YaRN**
    ([Peng et al., 2023](https://arxiv.org/abs/2309.00071)) slow down the slowly rotating pairs of coordinates, so that
    four times the distance gives angles known from training. The fast pairs, which distinguish neighbours, keep their
    speed. **Linear scaling** ([Chen et al., 2023](https://arxiv.org/abs/2306.15595)) slows down all pairs and blurs
    neighbouring positions; it needs further training.
    """
    lab.step("training on 64 characters")
    model = train_on_short_sequences(lab.seed, num_steps(lab))
    factor = READ / TRAINED
    curves = {
        "as trained": loss_by_position(with_scaling(model, None)),
        "linear scaling": loss_by_position(with_scaling(model, LinearScaling(factor=factor))),
        "YaRN": loss_by_position(with_scaling(model, YarnScaling(factor=factor, original_length=TRAINED))),
        "NTK scaling": loss_by_position(with_scaling(model, NTKScaling(factor=factor))),
        "window of 64": loss_by_position(with_scaling(model, None), Window(TRAINED)),
    }
    buckets = {name: losses.view(-1, 16).mean(1).tolist() for name, losses in curves.items()}
    columns = ("method", "positions 17 to 64", "positions 193 to 256")
    rows = [(name, float(losses[16:64].mean()), float(losses[192:].mean())) for name, losses in curves.items()]
    lab.table("Loss of a model trained on 64 characters, in nats per character", columns, rows)
    title = "Trained on 64 characters: the loss rises beyond, except with a window"
    drawing = lines(
        [16 * bucket + 8 for bucket in range(READ // 16)], buckets, xlabel="position", ylabel="loss (nats)", title=title
    )
    lab.figure("small_model", drawing, "Loss at each position of sequences four times as long as in training.")


PLACES = {"17 to 64": (16, 64), "65 to 80": (64, 80), "81 to 128": (80, 128), "193 to 256": (192, 256)}


def comparison_with_other_positional_encodings(lab: Lab) -> None:
    """The same model is trained with four positional encodings: rotary, sinusoidal ([Vaswani et al.,
    2017](https://arxiv.org/abs/1706.03762)), a learned table, and none, where only the causal mask distinguishes
    positions. The learned table has rows beyond position 64 with their initial values. Every bin of 16 positions covers
    the same text, so differences between columns are due to the position alone.

    Just beyond the training length, rotary embeddings lose next to nothing and the two tables lose a lot. This is what
    *more gracefully* can mean. At four times the length the advantage is gone. Without any positional encoding the loss
    hardly changes, but it starts higher.
    """
    encodings = {"rotary": ROTARY, "sinusoidal": "sinusoidal", "learned": "learned", "none": "none"}
    rows, rises = [], {}
    curves = {}
    for name, encoding in encodings.items():
        lab.step(f"training with positional encoding: {name}")
        losses = loss_by_position(train_on_short_sequences(lab.seed, num_steps(lab), encoding))
        means = [float(losses[start:stop].mean()) for start, stop in PLACES.values()]
        rises[name] = [mean - means[0] for mean in means[1:]]
        rows.append((name, *means))
        curves[name] = losses.view(-1, 16).mean(1).tolist()
    columns = ("positional encoding", *(f"positions {place}" for place in PLACES))
    lab.table("Loss of models trained on 64 characters, in nats per character", columns, rows)
    drawing = lines(
        [16 * bucket + 8 for bucket in range(READ // 16)],
        curves,
        xlabel="position",
        ylabel="loss (nats)",
        title="Just beyond 64 characters, sinusoidal and learned positions fail",
    )
    lab.figure("encodings", drawing, "Loss at each position, for four positional encodings.")
    (near, twice, far), tables = rises["rotary"], [rises["sinusoidal"], rises["learned"]]
    lab.decide(
        "18d",
        Verdict.HOLDS_WHEN,
        f"In the 16 positions after the training length the loss rises by {near:.2f} nats with rotary embeddings, "
        f"{tables[0][0]:.2f} with sinusoidal and {tables[1][0]:.2f} with learned positions; up to twice the length by "
        f"{twice:.2f}, {tables[0][1]:.2f} and {tables[1][1]:.2f}; at four times the length by {far:.2f}, "
        f"{tables[0][2]:.2f} and {tables[1][2]:.2f}.",
        Measurement(name="rise just beyond the length, rotary", value=near, high=0.1),
        Measurement(name="the same, the smaller of the two tables", value=min(tables[0][0], tables[1][0]), low=0.4),
        Measurement(
            name="up to twice the length, smaller table minus rotary",
            value=min(tables[0][1], tables[1][1]) - twice,
            low=0.3,
        ),
        Measurement(name="at four times the length, rotary", value=far, low=1.0),
        condition="the sequence is at most about twice as long as in training; at four times the length it is as bad",
    )


@torch.no_grad()
def token_losses(model: Decoder, tokens: Tensor, mask: Mask = EVERYTHING) -> Tensor:
    """Return the loss of every token but the first, in one forward pass."""
    features = model.features(tokens[None, :-1], mask=mask)[0]
    chunks = zip(features.split(512), tokens[1:].split(512), strict=True)  # all logits at once would take gigabytes
    return torch.cat([cross_entropy(model.logits(chunk), target, reduction="none") for chunk, target in chunks])


def smollm2_losses(lab: Lab) -> tuple[int, dict[str, Tensor]]:
    """Return the training length of SmolLM2, and its losses on a text of 1.5 times that length, by context."""
    model, tokenizer = lab.trained_model()
    if not isinstance(model, Decoder) or not isinstance(model.config.position_encoding, Rotary):
        raise SettingError(
            "length_extrapolation: expected a model with rotary embeddings, such as one of the Llama family"
        )
    trained = model.config.max_position_embeddings
    start, whole, again = 20_000 + 15_000 * (lab.seed % 5), trained * 3 // 2, trained - BUCKET
    tokens = torch.tensor(tokenizer.encode(reference_text()))[start : start + whole + 1]
    if len(tokens) <= whole or whole % BUCKET:
        raise SettingError(f"length_extrapolation: the text is too short for a model trained on {trained:,} tokens")
    lab.step(f"reading {whole:,} tokens")
    losses = {"full context": token_losses(model, tokens)}
    lab.step(f"restarting with the last {whole - again:,} tokens")
    restarted = token_losses(model, tokens[again:])
    losses["restarted"] = torch.cat((torch.full((trained,), torch.nan), restarted[BUCKET:]))
    if lab.size == "full":
        lab.step("reading with YaRN")
        yarn = YarnScaling(factor=2.0, original_length=trained)
        losses["full context, YaRN"] = token_losses(with_scaling(model, yarn), tokens)
        lab.step("reading with a sliding window")
        losses[f"window of {trained:,}"] = token_losses(with_scaling(model, None), tokens, Window(trained))
    return trained, losses


def smollm2_beyond_its_training_length(lab: Lab) -> None:
    """SmolLM2 was trained on sequences of up to 8,192 tokens. It reads 12,288 tokens in one forward pass.

    Then it starts again 1,024 tokens before position 8,192 and reads the rest. Now all distances are within the
    training length, and every counted token has at least 1,024 tokens of context. If the longer context were useful or
    at least harmless, the first loss would not be higher.

    For about a thousand tokens it is harmless: nothing breaks at 8,192. Then the curves separate, and in the end the
    model does far better without the beginning of the text. At full size, the lab also measures YaRN and a sliding
    window.
    """
    trained, losses_by_context = smollm2_losses(lab)
    buckets = {name: losses.view(-1, BUCKET).mean(1).tolist() for name, losses in losses_by_context.items()}
    places = range(0, trained * 3 // 2, BUCKET)
    rows = [
        (f"{place:,} to {place + BUCKET - 1:,}", *("" if isnan(loss) else loss for loss in losses))
        for place, *losses in zip(places, *buckets.values(), strict=True)
    ]
    lab.table(f"Loss of a model trained on {trained:,} tokens, in nats per token", ("position", *buckets), rows)
    title = f"Trained on {trained:,} tokens: beyond, a longer context increases the loss"
    centres = [place + BUCKET / 2 for place in places]
    drawing = lines(centres, buckets, xlabel="position", ylabel="loss (nats per token)", title=title)
    lab.figure("smollm2", drawing, f"Each point is the mean loss of {BUCKET:,} tokens of the same text.")

    small = loss_by_position(with_scaling(train_on_short_sequences(lab.seed, num_steps(lab)), None))
    rises = [float(small[start:stop].mean() - small[16:TRAINED].mean()) for start, stop in ((64, 80), (192, READ))]
    costs = [long - short for long, short in zip(buckets["full context"], buckets["restarted"], strict=True)]
    just_beyond, next_bin, farthest = costs[trained // BUCKET], costs[trained // BUCKET + 1], costs[-1]
    lab.decide(
        "18c",
        Verdict.HOLDS_WHEN,
        f"Compared with a restart, the full context costs SmolLM2 {just_beyond:.3f} and {next_bin:.3f} nats per token "
        f"in the first two thousand tokens beyond its training length, and {farthest:.2f} at 1.5 times it. The "
        f"loss of the small model rises by {rises[0]:.2f} nats just beyond its length and by {rises[1]:.2f} at four "
        "times its length. Rotary embeddings accept any length; to work well far beyond the training length, they need "
        "a window or scaling.",
        Measurement(name="cost for SmolLM2 just beyond its length, nats per token", value=just_beyond, high=0.1),
        Measurement(name="cost in the next thousand tokens", value=next_bin, high=0.2),
        Measurement(name="cost at 1.5 times the length", value=farthest, low=0.4),
        Measurement(name="rise for the small model just beyond its length", value=rises[0], high=0.1),
        Measurement(name="rise at four times its length", value=rises[1], low=0.3),
        condition="the sequence is at most about a quarter longer than in training",
    )


PARTS = (
    small_model_beyond_its_training_length,
    comparison_with_other_positional_encodings,
    smollm2_beyond_its_training_length,
)
