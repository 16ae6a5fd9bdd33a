"""Can a model with rotary positions read texts that are longer than those it was trained on?

Rotary positions turn queries and keys by an angle that grows with the position. There is a turn for every position,
however far, so a model with them takes a text of any length, where one that has learned a table of positions has to
refuse. That it takes the text does not say that it understands it.

A small model is trained on short rows and reads longer ones; then SmolLM2, a real one, reads past the 8,192 tokens of
its training. What is measured is the loss: how surprised the model is by the next token. The same tokens are read
twice, once with all that came before, once with less, so that hard and easy passages do not decide. Whoever can use a
longer text is less surprised with it than without.
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
"""Characters in a row of the small model: in training, and in reading."""
BUCKET = 1024
"""Tokens of SmolLM2 whose losses are taken together."""
HELD_BACK = 5_000
"""Characters of the text that are not learned from."""
EVERYTHING = Full()


@cache
def characters() -> Tensor:
    """The text as numbers below 128."""
    return torch.tensor(list(reference_text().encode("ascii", "replace")))


@cache
def trained_on_short_rows(seed: int, steps: int) -> Decoder:
    """Two layers with rotary positions that have never seen more than 64 characters at once."""
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
    model, text = Decoder(config), characters()[:-HELD_BACK]
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


def slowed(model: Decoder, scaling: Scaling | None) -> Decoder:
    """The model, with its rotary positions turning more slowly from now on; None for as they were trained."""
    assert isinstance(model.config.position_encoding, Rotary)
    model.config = replace(model.config, position_encoding=replace(model.config.position_encoding, scaling=scaling))
    return model


@torch.no_grad()
def losses_of_long_rows(model: Decoder, mask: Mask = EVERYTHING) -> Tensor:
    """The mean loss at every place of rows of 256 characters that were not learned from.

    Rows begin every 16 characters, so that each stretch of 16 places reads the same text.
    """
    text = characters()[-HELD_BACK:]
    rows = text[torch.arange(0, HELD_BACK - READ - 1, 16)[:, None] + torch.arange(READ + 1)]
    return cross_entropy(model(rows[:, :-1], mask=mask).transpose(1, 2), rows[:, 1:], reduction="none").mean(0)


def a_small_model_reads_longer_rows(lab: Lab) -> None:
    """Two layers learn characters from rows of 64, and then read rows of 256.

    The first curve is the model as it was trained. Up to 64 characters it gains from what came before. Past them it
    meets distances it has never seen, and gets worse and worse, though all it needs is still in front of it.

    The other curves are the same weights with a remedy that needs no training. A **window** keeps every query to the
    64 characters before it: the text is long, the distances are not. **NTK scaling** and **YaRN** slow down the pairs
    of coordinates that turn slowly, so that four times the distance gives angles known from the training, and leave
    the fast ones, which tell neighbours apart. Slowing all of them (**linear scaling**) blurs the neighbours: it wants
    some more training first.
    """
    model = trained_on_short_rows(lab.seed, lab.choose(small=250, full=2500))
    factor = READ / TRAINED
    curves = {
        "as trained": losses_of_long_rows(slowed(model, None)),
        "linear scaling": losses_of_long_rows(slowed(model, LinearScaling(factor=factor))),
        "YaRN": losses_of_long_rows(slowed(model, YarnScaling(factor=factor, original_length=TRAINED))),
        "NTK scaling": losses_of_long_rows(slowed(model, NTKScaling(factor=factor))),
        "window of 64": losses_of_long_rows(slowed(model, None), Window(TRAINED)),
    }
    buckets = {name: losses.view(-1, 16).mean(1).tolist() for name, losses in curves.items()}
    columns = ("read", "character 17 to 64", "character 193 to 256")
    rows = [(name, float(losses[16:64].mean()), float(losses[192:].mean())) for name, losses in curves.items()]
    lab.table("Loss of a model trained on 64 characters, in nats a character", columns, rows)
    title = "Trained on 64 characters: past them the loss rises, and a window stops that"
    drawing = lines(
        [16 * bucket + 8 for bucket in range(READ // 16)], buckets, xlabel="place", ylabel="loss, nats", title=title
    )
    lab.figure("small_model", drawing, "Loss at each place of rows four times as long as those of the training.")


@torch.no_grad()
def token_losses(model: Decoder, tokens: Tensor, mask: Mask = EVERYTHING) -> Tensor:
    """The loss of every token but the first, read in one pass."""
    features = model.features(tokens[None, :-1], mask=mask)[0]
    chunks = zip(features.split(512), tokens[1:].split(512), strict=True)  # all logits at once would take gigabytes
    return torch.cat([cross_entropy(model.logits(chunk), wanted, reduction="none") for chunk, wanted in chunks])


def readings(lab: Lab) -> tuple[int, dict[str, Tensor]]:
    """The length SmolLM2 was trained on, and the losses of one text that is half as long again, by how it was read."""
    model, tokenizer = lab.trained_model()
    if not isinstance(model, Decoder) or not isinstance(model.config.position_encoding, Rotary):
        raise SettingError("past_the_length: the model has no rotary positions; give one of the Llama family")
    trained = model.config.max_position_embeddings
    start, whole, again = 20_000 + 15_000 * (lab.seed % 5), trained * 3 // 2, trained - BUCKET
    tokens = torch.tensor(tokenizer.encode(reference_text()))[start : start + whole + 1]
    if len(tokens) <= whole or whole % BUCKET:
        raise SettingError(f"past_the_length: the text is too short for a model trained on {trained:,} tokens")
    lab.step(f"reading {whole:,} tokens at once")
    read = {"all that came before": token_losses(model, tokens)}
    lab.step(f"reading the last {whole - again:,} of them again")
    afresh = token_losses(model, tokens[again:])
    read["begun again"] = torch.cat((torch.full((trained,), torch.nan), afresh[BUCKET:]))
    if lab.size == "full":
        lab.step("reading all of them with YaRN")
        yarn = YarnScaling(factor=2.0, original_length=trained)
        read["all, with YaRN"] = token_losses(slowed(model, yarn), tokens)
        lab.step("reading all of them through a window")
        read[f"a window of {trained:,}"] = token_losses(slowed(model, None), tokens, Window(trained))
    return trained, read


def smollm2_reads_past_its_length(lab: Lab) -> None:
    """SmolLM2 was trained on texts of up to 8,192 tokens. It reads half as much again in one go.

    Then it begins again at 1,024 tokens before number 8,192, and reads the rest once more: all distances are now
    within the training, and each token that counts has at least 1,024 tokens before it. Were the longer text of use,
    or at least harmless, the first loss would not be the higher one.

    For a while it is harmless: nothing breaks at 8,192. Then the two part, and in the end the model would be far better
    off had it forgotten how the text began. At full size, two remedies without training are tried too.

    That rotary positions extend *more gracefully* is said in comparison with others, and so much is true that a learned
    table ends where the training did. How others fare that have no end is not measured here.
    """
    trained, read = readings(lab)
    buckets = {name: losses.view(-1, BUCKET).mean(1).tolist() for name, losses in read.items()}
    places = range(0, trained * 3 // 2, BUCKET)
    rows = [
        (f"{place:,} to {place + BUCKET - 1:,}", *("" if isnan(loss) else loss for loss in losses))
        for place, *losses in zip(places, *buckets.values(), strict=True)
    ]
    lab.table(f"Loss of a model trained on {trained:,} tokens, in nats a token", ("position", *buckets), rows)
    title = f"Trained on {trained:,} tokens: soon after them, what was read before does harm"
    centres = [place + BUCKET / 2 for place in places]
    drawing = lines(centres, buckets, xlabel="position in the text", ylabel="loss, nats a token", title=title)
    lab.figure("smollm2", drawing, f"Each point is the mean loss of {BUCKET:,} tokens of the same text.")

    small = trained_on_short_rows(lab.seed, lab.choose(small=250, full=2500))
    far, near = (float(losses_of_long_rows(small, mask)[192:].mean()) for mask in (EVERYTHING, Window(TRAINED)))
    costs = [long - short for long, short in zip(buckets["all that came before"], buckets["begun again"], strict=True)]
    just_past, farthest = costs[trained // BUCKET], costs[-1]
    lab.decide(
        "18c",
        Verdict.DOES_NOT_HOLD,
        f"To have read all of the text instead of its last part costs SmolLM2 {just_past:.3f} nats a token just past "
        f"its trained length, and {farthest:.2f} at one and a half times; a small model at four times its length, "
        f"{far - near:.2f} nats a character. Rotary positions take any length; to read well past the trained one takes "
        "a window or slow turns.",
        Measurement(name="what the longer text costs SmolLM2, nats a token", value=farthest, low=0.4),
        Measurement(name="what it costs the small model, nats a character", value=far - near, low=0.1),
    )


PARTS = (a_small_model_reads_longer_rows, smollm2_reads_past_its_length)
