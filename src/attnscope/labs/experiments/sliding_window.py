"""Sliding-window attention

This lab shows you how much work sliding-window and other sparse attention patterns save, and how far information can
travel through several layers of them ([Beltagy et al., 2020](https://arxiv.org/abs/2004.05150)).

Full attention compares each token with every other one. Most long-context models restrict some or all layers to chosen
pairs: neighbours, every eighth token, tokens of the same document, or a few global tokens.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from attnscope import AttentionMatrix, Causal, Documents, Prefix, Window, attend
from attnscope.attention import Mask, explain
from attnscope.figures import head_grid
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.models import Decoder, DecoderConfig


def sparse_masks(length: int, window: int) -> dict[str, Mask]:
    """Return six causal masks by name."""
    positions = torch.arange(length)
    return {
        "causal": Causal(),
        "window": Window(window),
        "window + global": Window(window) | (Causal() & Prefix(window // 8)),
        "documents": Causal() & Documents(positions // (2 * window)),
        "every eighth": Window(8 * window) & Documents(positions % 8),
        "every eighth, sorted": Window(window) & Documents(positions // (length // 8)),
    }


def count_pairs(mask: Mask, length: int) -> tuple[int, int]:
    """Return how many pairs a mask allows, and how many `attend` computes for it."""
    nothing = torch.zeros(1, length, 1)
    allowed = AttentionMatrix(nothing, nothing, mask=mask).visible_cells(1, 1)
    return int(allowed.sum()), explain(nothing, nothing, nothing, mask=mask).cells


def pairs_per_mask(lab: Lab) -> None:
    """The table counts the pairs that a mask allows, and the pairs that `attend` computes according to its plan. The
    figure shows the masks for 64 tokens: in each row, the allowed keys are not hatched.

    With a window, the number of pairs grows linearly with the sequence length, so its share of all pairs falls with
    each doubling. But a mask saves only what the kernel can skip, and that is rectangles. Every eighth token allows few
    pairs, but they are scattered, and nearly all pairs are computed. Once the tokens are sorted, 0, 8, 16, ... before
    1, 9, 17, ..., the same pairs are contiguous, and few others are computed.
    """
    window = 256
    lengths = lab.choose(small=(256, 2048, 4096), full=(256, 2048, 4096, 8192))
    rows, found = [], {}
    for length in lengths:
        for name, mask in sparse_masks(length, window).items():
            allowed, computed = found[length, name] = count_pairs(mask, length)
            everything = found[length, "causal"][0]
            rows.append((length, name, allowed, computed, allowed / everything, computed / everything))
    lab.table(
        f"Pairs with a window of {window}, and with other masks",
        ("tokens", "mask", "allowed", "computed", "share allowed", "share computed"),
        rows,
        note="Shares are relative to the causal mask.",
    )
    nothing = torch.zeros(1, 64, 1)
    shown = sparse_masks(64, 8)
    lab.figure(
        "patterns",
        head_grid(
            [AttentionMatrix(nothing, nothing, mask=mask) for mask in shown.values()],
            columns=3,
            labels=list(shown),
            title="All but the first allow few pairs; scattered pairs save no work",
        ),
        "The keys (columns) that each query (row) may attend to, for 64 tokens; masked cells are hatched. All scores "
        "are equal, so a row with fewer keys is brighter.",
    )
    last, before = 4096, 2048
    share = found[last, "window"][1] / found[last, "causal"][1]
    growth = found[last, "window"][1] / found[before, "window"][1]
    single = found[last, "every eighth"][1] / found[last, "every eighth"][0]
    tidy = found[last, "every eighth, sorted"][1] / found[last, "every eighth"][0]
    short = found[window, "window"][1] / found[window, "causal"][1]
    lab.decide(
        "25a",
        Verdict.HOLDS_WHEN,
        f"A window of {window} computes {share:.0%} of the pairs of {last:,} tokens, {growth:.2f} times as many as for "
        f"half the tokens. At {window} tokens it saves nothing. With every eighth token, {single:.0f} times the "
        f"allowed pairs are computed; with sorted tokens, {tidy:.2f} times.",
        Measurement(name="share computed at 4,096 tokens", value=share, low=0.12, high=0.2),
        Measurement(name="computed, twice the tokens", value=growth, low=1.9, high=2.2),
        Measurement(name="share computed at 256 tokens", value=short, low=1, high=1),
        Measurement(name="computed / allowed, every eighth", value=single, low=4),
        Measurement(name="computed / allowed, every eighth, sorted", value=tidy, low=1, high=1.5),
        condition="the sequence is many windows long and the allowed pairs are contiguous",
    )


def receptive_field(windows: tuple[int | None, ...], length: int) -> int:
    """Return how many tokens back the last output depends on, through layers with these windows."""
    generator = torch.Generator().manual_seed(0)
    x = start = torch.randn(1, length, 4, generator=generator).requires_grad_()
    for window in windows:
        x = attend(x, x, x, mask=Causal() if window is None else Window(window))
    (gradient,) = torch.autograd.grad(x[0, -1].sum(), start)
    return length - 1 - int(gradient[0].abs().sum(-1).nonzero().min())


def copy_accuracy(windows: tuple[int | None, ...], *, back: int, length: int, steps: int, seed: int) -> float:
    """Train a small model to output the token some positions back, out of eight tokens; return its accuracy."""
    torch.manual_seed(seed)
    config = DecoderConfig(
        vocab_size=8,
        hidden_size=32,
        num_layers=len(windows),
        num_heads=2,
        intermediate_size=64,
        max_position_embeddings=length,
        sliding_windows=windows,
    )
    model = Decoder(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in range(steps):
        tokens = torch.randint(8, (32, length))
        loss = F.cross_entropy(model(tokens)[:, back:].flatten(0, 1), tokens[:, :-back].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        tokens = torch.randint(8, (500, length))
        return float((model(tokens)[:, back:].argmax(-1) == tokens[:, :-back]).float().mean())


def copying_over_a_distance(lab: Lab) -> None:
    """Small models are trained to output the token twelve positions back. Tokens are random, out of eight, so chance is
    1/8. One layer with a shorter window cannot know the token. But windows add up over layers, since a token passes on
    what it has read: with windows of w, L layers reach L (w - 1) tokens back, and not further. The table lists this
    receptive field, measured by which inputs have a gradient.

    Within the receptive field, a window loses nothing in principle, but the information needs one more layer, which is
    harder to learn. Beyond it, only a layer with full attention helps.
    """
    back, length = 12, 32
    models: dict[str, tuple[int | None, ...]] = {
        "1 layer, full": (None,),
        "1 layer, window 16": (16,),
        "1 layer, window 8": (8,),
        "2 layers, window 8": (8, 8),
        "2 layers, window 6": (6, 6),
        "2 layers, window 6 and full": (6, None),
    }
    rows, accuracy = [], {}
    for name, windows in models.items():
        lab.step(f"training to copy: {name}")
        accuracy[name] = copy_accuracy(
            windows, back=back, length=length, steps=lab.choose(small=300, full=1500), seed=lab.seed
        )
        rows.append((name, receptive_field(windows, length), accuracy[name]))
    lab.table(
        f"Copying the token {back} positions back",
        ("model", "receptive field", "accuracy"),
        rows,
        note=f"Sequences of {length} tokens; chance is 0.125.",
    )
    lab.decide(
        "25b",
        Verdict.HOLDS_WHEN,
        f"At a distance of twelve tokens, a window of 16 has an accuracy of {accuracy['1 layer, window 16']:.0%}, one "
        f"of 8 has {accuracy['1 layer, window 8']:.0%}, which is chance. Two layers with windows of 8 reach 14 tokens "
        f"back: {accuracy['2 layers, window 8']:.0%}; with windows of 6 they reach 10: "
        f"{accuracy['2 layers, window 6']:.0%}.",
        Measurement(name="receptive field of two windows of 8", value=rows[3][1], low=14, high=14),
        Measurement(name="accuracy, window 16", value=accuracy["1 layer, window 16"], low=0.9),
        Measurement(name="accuracy, window 8", value=accuracy["1 layer, window 8"], high=0.2),
        Measurement(name="accuracy, two windows of 8", value=accuracy["2 layers, window 8"], low=0.5),
        Measurement(name="accuracy, two windows of 6", value=accuracy["2 layers, window 6"], high=0.2),
        Measurement(name="accuracy, window 6 and full", value=accuracy["2 layers, window 6 and full"], low=0.8),
        condition="the needed token is within layers x (window - 1) tokens, or some layer has full attention",
    )


PARTS = (pairs_per_mask, copying_over_a_distance)
