"""What is in a block, and what holds many of them together?

A transformer is one block many times over. A block has two parts: attention, by which tokens hear of each other, and a
feed-forward network, which works on each token alone. Each part adds what it finds to what was there: that sum is the
residual stream. Beside it stand norms, which keep numbers in range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.figures import grouped_bars, lines
from attnscope.labs import Lab, Measurement, Verdict, reference_text
from attnscope.models import Block, Decoder, FeedForward, MultiHeadAttention
from attnscope.models.published_configs import DECODERS

MODELS = {
    "GPT-2 small": DECODERS["gpt2-small"],
    "SmolLM2-135M": DECODERS["smollm2-135m"],
    "Llama 3.1 8B": DECODERS["llama-3.1-8b"],
    "GPT-3": DECODERS["gpt3-175b"],
}


def where_the_weights_are(lab: Lab) -> None:
    """Four published models are built without their numbers, which takes no memory, and their weights are counted.

    Inside a block of the first design the feed-forward network has 8 d^2 weights and attention 4 d^2: two thirds are a
    matter of counting. What remains are the embeddings, a row for each token of the vocabulary. They are the same
    number for a shallow model as for a deep one, so how much they weigh depends on the size.
    """
    rows, shares = [], {}
    for name, config in MODELS.items():
        with torch.device("meta"):
            model = Decoder(config)
        count = Counter[str]()
        for place, weight in model.named_parameters():
            kind = "feed-forward" if ".feed_forward." in place else "attention" if ".attention." in place else "norms"
            kind = "embeddings" if place.startswith(("embedding", "position_embedding", "head")) else kind
            count[kind] += weight.numel()
        total = sum(count.values())
        inside = count["feed-forward"] / (total - count["embeddings"])
        shares[name] = {"of all weights": count["feed-forward"] / total, "without embeddings": inside}
        rows.append(
            (name, total, *(count[kind] / total for kind in ("embeddings", "attention", "feed-forward")), inside)
        )
    lab.table(
        "Shares of all weights",
        ("model", "weights", "embeddings", "attention", "feed-forward", "feed-forward, embeddings left out"),
        rows,
    )
    title = "The feed-forward share: more than half, but not in GPT-2 small with its embeddings"
    drawing = grouped_bars(shares, ylabel="share in feed-forward layers", title=title, reference_lines={"half": 0.5})
    lab.figure("shares", drawing, "How many of the weights of a model are in its feed-forward layers.")
    small, least = shares["GPT-2 small"], min(share["without embeddings"] for share in shares.values())
    lab.decide(
        "30a",
        Verdict.HOLDS_WHEN,
        f"Embeddings left out, {least:.1%} or more of the weights are in the feed-forward layers of all four models. "
        f"With them it is {small['of all weights']:.0%} in GPT-2 small, which is less than half, and "
        f"{shares['GPT-3']['of all weights']:.0%} in GPT-3.",
        Measurement(name="least share without embeddings", value=least, low=0.65, high=0.7),
        Measurement(name="share of all weights, GPT-2 small", value=small["of all weights"], low=0.45, high=0.46),
        Measurement(name="share of all weights, GPT-3", value=shares["GPT-3"]["of all weights"], low=0.65, high=0.67),
        condition="embeddings are left out, or weigh little beside many blocks: not in GPT-2 small as a whole",
    )


FACTS = (
    ("The capital of France is the city of", " Paris"),
    ("The capital of Italy is the city of", " Rome"),
    ("The capital of Japan is the city of", " Tokyo"),
    ("The capital of Germany is the city of", " Berlin"),
    ("The capital of Spain is the city of", " Madrid"),
    ("The capital of Egypt is the city of", " Cairo"),
    ("The capital of Greece is the city of", " Athens"),
    ("The capital of Russia is the city of", " Moscow"),
    ("The play Hamlet was written by William", " Shakespeare"),
    ("The theory of relativity was published by Albert", " Einstein"),
    ("The largest planet of the solar system is", " Jupiter"),
    ("The currency of Japan is the", " yen"),
    ("The first president of the United States was George", " Washington"),
    ("Water is made of hydrogen and", " oxygen"),
)
EVERY = 3  # layers from one that is switched off to the next


@contextmanager
def without(part: nn.Module) -> Iterator[None]:
    """A part of a block that adds nothing."""
    hook = part.register_forward_hook(lambda *call: torch.zeros_like(call[-1]))  # (module, inputs, output)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def loss_after(model: Decoder, prompts: list[list[int]], answers: list[int]) -> float:
    """How surprised a model is by the token after each prompt, in nats."""
    longest = max(map(len, prompts))
    # What stands to the right changes nothing: every token looks back only.
    padded = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    last = torch.tensor([len(prompt) - 1 for prompt in prompts])
    features = model.features(padded)[torch.arange(len(prompts)), last]
    return float(F.cross_entropy(model.logits(features), torch.tensor(answers)))


@torch.no_grad()
def loss_of_text(model: Decoder, ids: list[int]) -> float:
    """How surprised a model is by a token of a text, in nats."""
    tokens = torch.tensor([ids])
    return float(F.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]))


def whether_knowledge_lives_there(lab: Lab) -> None:
    """That most weights are in the feed-forward layers says nothing about what is stored in them. An experiment could.

    SmolLM2 is asked for 14 facts. Of one layer after the other, the attention or the feed-forward network is switched
    off, and the answers are scored again; beside them an ordinary text, to see how much is lost anyway. If facts lived
    in the feed-forward layers, these should be missed far more than attention. (Layer 0 is left out of the sums:
    without either of its parts the model is broken for everything.)

    This is a blunt tool: that a part is needed does not mean that the fact is kept in it, as a wire is needed for a
    lamp. Finer methods exist, which trace and edit single facts; they are not run here.
    """
    model, tokenizer = lab.trained_model()
    assert isinstance(model, Decoder)
    prompts = [tokenizer.encode(prompt) for prompt, _ in FACTS]
    answers = [tokenizer.encode(answer)[0] for _, answer in FACTS]
    text = reference_text()
    start = int(torch.randint(len(text) // 2, (), generator=torch.Generator().manual_seed(lab.seed)))
    ids = tokenizer.encode(text[start : start + 2_000])[:128]
    before = loss_after(model, prompts, answers), loss_of_text(model, ids)
    rises: dict[str, list[float]] = {"attention": [], "feed_forward": []}
    rows = []
    for layer in range(0, len(model.blocks), lab.choose(small=EVERY, full=1)):
        lab.step(f"without parts of layer {layer}")
        row = []
        for part, found in rises.items():
            with without(getattr(model.blocks[layer], part)):
                fact, ordinary = loss_after(model, prompts, answers) - before[0], loss_of_text(model, ids) - before[1]
            row += [fact, ordinary]
            found.append(fact)
        rows.append((layer, *row))
    lab.table(
        "How much the loss rises, in nats",
        ("layer", "facts, no attention", "text, no attention", "facts, no feed-forward", "text, no feed-forward"),
        rows,
        note=f"With everything in place: {before[0]:.2f} for a fact, {before[1]:.2f} for a token of the text.",
    )
    attention, feed_forward = (sum(rises[part][1:]) for part in ("attention", "feed_forward"))
    few, many = (sum(p.numel() for p in getattr(model.blocks[0], part).parameters()) for part in rises)
    a_weight = (attention / few) / (feed_forward / many)
    lab.decide(
        "30b",
        Verdict.NOT_SHOWN,
        "The text gives no evidence, and a share of weights would be none. Switched off layer by layer, attention is "
        f"missed for facts {attention / feed_forward:.2f} times as much as the feed-forward networks, and "
        f"{a_weight:.1f} times as much a weight: facts need both, and this cannot tell where they are kept.",
        Measurement(
            name="facts: missing attention to missing feed-forward", value=attention / feed_forward, low=0.3, high=2
        ),
        Measurement(name="the same, a weight", value=a_weight, low=1),
    )


DEPTH, WIDTH, HEADS, TOKENS = 24, 64, 4, 32


def new_block(order: str) -> Block:
    """A block with its first, random weights."""
    attention = MultiHeadAttention(hidden_size=WIDTH, num_heads=HEADS)
    feed_forward = FeedForward(hidden_size=WIDTH, intermediate_size=4 * WIDTH)
    norm = partial(nn.LayerNorm, WIDTH)
    return Block(attention=attention, feed_forward=feed_forward, norm=norm, norm_first=order != "post")


def without_residuals(block: Block, x: Tensor) -> Tensor:
    """The same block when neither part is added to what was there, but takes its place."""
    return block.feed_forward(block.feed_forward_norm(block.attention(block.attention_norm(x))))


def likeness(x: Tensor) -> float:
    """The mean cosine of two different tokens: 1 where all have become the same."""
    turned = F.normalize(x.detach()[0], dim=-1)
    return float(((turned @ turned.T).sum() - TOKENS) / (TOKENS * (TOKENS - 1)))


def what_holds_a_stack_together(lab: Lab) -> None:
    """24 blocks with random weights, in three ways: with the norm before each part (GPT, Llama), with the norm after
    each sum (the first Transformer), and without the sum.

    Attention takes means, so without the sum all tokens become alike within two blocks, and the text is lost. The sum
    keeps each token beside the mean.

    On the way back, gradients pass through the same sums, and the two orders of norms differ: with the norm before each
    part the first block is given a somewhat larger gradient than the last one, with the norm after each sum a smaller
    one. Both orders can be trained; which of them needs what care takes longer runs than this one.
    """
    blocks = range(1, DEPTH + 1)
    alike: dict[str, list[float]] = {}
    given: dict[str, list[float]] = {}
    for name, order in (("norm before", "pre"), ("norm after", "post"), ("no sum", "none")):
        torch.manual_seed(lab.seed)
        x, stack = torch.randn(1, TOKENS, WIDTH), [new_block(order) for _ in blocks]
        alike[name] = []
        for block in stack:
            x = without_residuals(block, x) if order == "none" else block(x)
            alike[name].append(likeness(x))
        (F.layer_norm(x, (WIDTH,)) * torch.randn_like(x)).sum().backward()
        gradients = (block.feed_forward.up.weight.grad for block in stack)
        given[name] = [float(gradient.norm()) for gradient in gradients if gradient is not None]
    lab.table(
        f"A stack of {DEPTH} random blocks",
        ("blocks", "tokens alike after 2", f"after {DEPTH}", "gradient of the first, of that of the last"),
        [(name, alike[name][1], alike[name][-1], given[name][0] / given[name][-1]) for name in alike],
        note="Gradients of the first weights of the feed-forward networks, by their lengths.",
    )
    title = "Without the sum all tokens become alike"
    drawing = lines(list(blocks), alike, xlabel="block", ylabel="mean cosine of two tokens", title=title)
    lab.figure("alike", drawing, "How alike tokens are after each of 24 random blocks: 1 is all the same.")


PARTS = (where_the_weights_are, whether_knowledge_lives_there, what_holds_a_stack_together)
