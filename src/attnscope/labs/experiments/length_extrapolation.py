"""Length extrapolation with rotary embeddings

This lab shows you how to measure whether a model with rotary position embeddings ([Su et al.,
2021](https://arxiv.org/abs/2104.09864)) can read sequences longer than its training length, and which remedies need no
training.

Rotary embeddings rotate queries and keys by an angle that grows with the token position. The angle is defined for every
position, so the model accepts a sequence of any length. A model with a learned table of positions cannot. That the
model accepts a sequence does not mean that it uses it well.

A small model is trained on short sequences and reads longer ones. Then SmolLM2 reads beyond the 8,192 tokens of its
training. The measure is the loss of the next token. The same tokens are read twice, with all previous tokens and with
fewer, so that hard and easy passages do not affect the comparison. A model that can use a longer context has a lower
loss with it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import isnan

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
from attnscope.models import Decoder, DecoderConfig

TRAINED, READ = 64, 256
"""Sequence length of the small model: in training, and in evaluation."""
BUCKET = 1024
"""Tokens of SmolLM2 whose losses are averaged."""
HELD_BACK = 5_000
"""Characters that are held out from training."""
EVERYTHING = Full()


@cache
def character_ids() -> Tensor:
    """Return the text as character codes below 128."""
    return torch.tensor(list(reference_text().encode("ascii", "replace")))


@cache
def train_on_short_sequences(seed: int, steps: int) -> Decoder:
    """Train two layers with rotary embeddings on sequences of 64 characters."""
    torch.manual_seed(seed)
    rotary = Rotary(dim=16, layout="half")
    config = DecoderConfig(
        vocab_size=128,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        intermediate_size=256,
        max_position_embeddings=TRAINED,
        position_encoding=rotary,
        norm="rms",
    )
    model, text = Decoder(config), character_ids()[:-HELD_BACK]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        rows = text[torch.randint(len(text) - TRAINED, (32, 1)) + torch.arange(TRAINED + 1)]
        loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


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
    model = train_on_short_sequences(lab.seed, lab.choose(small=250, full=2500))
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

    One text says that rotary embeddings extend *more gracefully* than others. A learned table indeed ends at the
    training length. Other embeddings without a limit are not measured here.
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

    small = train_on_short_sequences(lab.seed, lab.choose(small=250, full=2500))
    far, near = (float(loss_by_position(small, mask)[192:].mean()) for mask in (EVERYTHING, Window(TRAINED)))
    costs = [long - short for long, short in zip(buckets["full context"], buckets["restarted"], strict=True)]
    just_past, farthest = costs[trained // BUCKET], costs[-1]
    lab.decide(
        "18c",
        Verdict.DOES_NOT_HOLD,
        f"Compared with a restart, the full context costs SmolLM2 {just_past:.3f} nats per token just beyond "
        f"its training length, and {farthest:.2f} at 1.5 times that length. For the small model at four times its "
        f"length it is {far - near:.2f} nats per character. Rotary embeddings accept any length; to work well beyond "
        "the training length, they need a window or scaling.",
        Measurement(name="cost of the full context for SmolLM2, nats per token", value=farthest, low=0.4),
        Measurement(name="cost for the small model, nats per character", value=far - near, low=0.1),
    )


PARTS = (small_model_beyond_its_training_length, smollm2_beyond_its_training_length)
