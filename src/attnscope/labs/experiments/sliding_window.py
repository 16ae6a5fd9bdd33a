"""How much is saved if a token looks at few others, and what is lost?

Attention compares each token with every other one. Most long-context models let some layers or all of them compare only
chosen pairs: neighbours, every eighth token, tokens of the same document, a few tokens that everybody sees.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from attnscope import AttentionMatrix, Causal, Documents, Prefix, Window, attend
from attnscope.attention import Mask, explain
from attnscope.figures import head_grid
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.models import Decoder, DecoderConfig


def patterns(length: int, window: int) -> dict[str, Mask]:
    """Who sees whom, in six ways; all look back only."""
    positions = torch.arange(length)
    return {
        "all before": Causal(),
        "window": Window(window),
        "window + first": Window(window) | (Causal() & Prefix(window // 8)),
        "documents": Causal() & Documents(positions // (2 * window)),
        "every eighth": Window(8 * window) & Documents(positions % 8),
        "eighths sorted": Window(window) & Documents(positions // (length // 8)),
    }


def pairs(mask: Mask, length: int) -> tuple[int, int]:
    """How many pairs a mask allows, and how many `attend` scores to answer it."""
    nothing = torch.zeros(1, length, 1)
    allowed = AttentionMatrix(nothing, nothing, mask=mask).visible_cells(1, 1)
    return int(allowed.sum()), explain(nothing, nothing, nothing, mask=mask).cells


def counting_pairs(lab: Lab) -> None:
    """The pairs that a pattern allows are counted, and beside them those that are really scored: the plan that `attend`
    makes says how many. The picture shows the patterns for 64 tokens: a row sees the columns that are not hatched.

    With a window, pairs grow like the length and not like its square, so their share falls with each doubling. But a
    pattern saves only what an engine can leave out, and that is rectangles. Every eighth token allows few pairs, and in
    a long text all pairs there are get scored, as long as the allowed ones stand apart. Once tokens 0, 8, 16 ... are
    sorted before 1, 9, 17 ..., the same pairs lie side by side, and few others are scored.
    """
    window = 256
    lengths = lab.choose(small=(256, 2048, 4096), full=(256, 2048, 4096, 8192))
    rows, found = [], {}
    for length in lengths:
        for name, mask in patterns(length, window).items():
            allowed, scored = found[length, name] = pairs(mask, length)
            everything = found[length, "all before"][0]
            rows.append((length, name, allowed, scored, allowed / everything, scored / everything))
    lab.table(
        f"Pairs in a window of {window}, and in other patterns",
        ("tokens", "pattern", "allowed", "scored", "share allowed", "share scored"),
        rows,
        note="Shares are of the pairs that a token makes with itself and all before it.",
    )
    nothing = torch.zeros(1, 64, 1)
    shown = patterns(64, 8)
    lab.figure(
        "patterns",
        head_grid(
            [AttentionMatrix(nothing, nothing, mask=mask) for mask in shown.values()],
            columns=3,
            labels=list(shown),
            title="All but the first are few pairs; scattered ones save no work",
        ),
        "Which key (column) each query (row) sees, of 64 tokens; hatched is not seen. All scores are equal: a row is "
        "brighter the fewer keys it sees.",
    )
    last, before = 4096, 2048
    share = found[last, "window"][1] / found[last, "all before"][1]
    growth = found[last, "window"][1] / found[before, "window"][1]
    single = found[last, "every eighth"][1] / found[last, "every eighth"][0]
    tidy = found[last, "eighths sorted"][1] / found[last, "every eighth"][0]
    short = found[window, "window"][1] / found[window, "all before"][1]
    lab.decide(
        "25a",
        Verdict.HOLDS_WHEN,
        f"A window of {window} scores {share:.0%} of the pairs of {last:,} tokens, {growth:.2f} times as many as for "
        f"half of them. At {window} tokens it saves nothing. With every eighth token, {single:.0f} times the allowed "
        f"pairs are scored, until the tokens are sorted: then {tidy:.2f} times.",
        Measurement(name="share scored at 4,096 tokens", value=share, low=0.12, high=0.2),
        Measurement(name="scored, twice the tokens", value=growth, low=1.9, high=2.2),
        Measurement(name="share scored at 256 tokens", value=short, low=1, high=1),
        Measurement(name="scored / allowed, every eighth", value=single, low=4),
        Measurement(name="scored / allowed, every eighth, sorted", value=tidy, low=1, high=1.5),
        condition="the text is many windows long and the allowed pairs lie side by side",
    )


def reach(windows: tuple[int | None, ...], length: int) -> int:
    """How many tokens back the last one can still feel, through layers of attention with these windows."""
    generator = torch.Generator().manual_seed(0)
    x = start = torch.randn(1, length, 4, generator=generator).requires_grad_()
    for window in windows:
        x = attend(x, x, x, mask=Causal() if window is None else Window(window))
    (slope,) = torch.autograd.grad(x[0, -1].sum(), start)
    return length - 1 - int(slope[0].abs().sum(-1).nonzero().min())


def learn_to_copy(windows: tuple[int | None, ...], *, back: int, length: int, steps: int, seed: int) -> float:
    """The accuracy of a small model that was trained to name the token so many positions back, out of eight tokens."""
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


def copying_from_afar(lab: Lab) -> None:
    """Small models are trained to name the token that stood twelve positions back. Tokens are random, out of eight, so
    that a guess is right once in eight. One layer with a window that does not reach back that far cannot know. But
    windows add up over layers, since what a token has read can be read from it: with windows of w, L layers reach
    L (w - 1) tokens back, and not one further. The table gives that reach, measured by which inputs have a gradient.

    Within the reach a window loses nothing in principle, but the token has to be handed on, which takes one more layer
    and is harder to learn. Beyond it nothing helps, except a layer that sees everything.
    """
    back, length = 12, 32
    models: dict[str, tuple[int | None, ...]] = {
        "1 layer, all": (None,),
        "1 layer, window 16": (16,),
        "1 layer, window 8": (8,),
        "2 layers, window 8": (8, 8),
        "2 layers, window 6": (6, 6),
        "2 layers, window 6 and all": (6, None),
    }
    rows, accuracy = [], {}
    for name, windows in models.items():
        lab.step(f"learning to copy: {name}")
        accuracy[name] = learn_to_copy(
            windows, back=back, length=length, steps=lab.choose(small=300, full=1500), seed=lab.seed
        )
        rows.append((name, reach(windows, length), accuracy[name]))
    lab.table(
        f"Naming the token {back} positions back",
        ("model", "reach", "accuracy"),
        rows,
        note=f"In rows of {length} tokens; a guess is right in 0.125 of all cases.",
    )
    lab.decide(
        "25b",
        Verdict.HOLDS_WHEN,
        f"Twelve tokens back, a window of 16 is right in {accuracy['1 layer, window 16']:.0%} of all cases, one of 8 "
        f"in {accuracy['1 layer, window 8']:.0%}, which is guessing. Two layers with windows of 8 reach 14 back: "
        f"{accuracy['2 layers, window 8']:.0%}; with windows of 6 they reach 10 back: "
        f"{accuracy['2 layers, window 6']:.0%}.",
        Measurement(name="reach of two windows of 8", value=rows[3][1], low=14, high=14),
        Measurement(name="accuracy, window 16", value=accuracy["1 layer, window 16"], low=0.9),
        Measurement(name="accuracy, window 8", value=accuracy["1 layer, window 8"], high=0.2),
        Measurement(name="accuracy, two windows of 8", value=accuracy["2 layers, window 8"], low=0.5),
        Measurement(name="accuracy, two windows of 6", value=accuracy["2 layers, window 6"], high=0.2),
        Measurement(name="accuracy, window 6 and all", value=accuracy["2 layers, window 6 and all"], low=0.8),
        condition="what is needed lies within layers x (window - 1) tokens, or some layer sees everything",
    )


PARTS = (counting_pairs, copying_from_afar)
