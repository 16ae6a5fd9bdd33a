"""The transformer block

This lab shows you where the parameters of a transformer are, how to test by ablation which part a task needs, and
what residual connections and norms do in a deep stack.

A transformer is a stack of equal blocks. A block has two parts: attention, which moves information between tokens, and
a feed-forward network, which works on each token separately. Each part adds its output to the residual stream. Norms
keep the activations in range.
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


def distribution_of_the_parameters(lab: Lab) -> None:
    """Four published models are created without data, which takes no memory, and their parameters are counted.

    In a block of the original design, the feed-forward network has 8 d² parameters and attention has 4 d²: two thirds
    follow from counting. The rest are embeddings, one row per token of the vocabulary. They do not depend on the depth,
    so their share depends on the size of the model.
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
        shares[name] = {"of all parameters": count["feed-forward"] / total, "without embeddings": inside}
        rows.append(
            (name, total, *(count[kind] / total for kind in ("embeddings", "attention", "feed-forward")), inside)
        )
    lab.table(
        "Shares of all parameters",
        ("model", "parameters", "embeddings", "attention", "feed-forward", "feed-forward, without embeddings"),
        rows,
    )
    title = "The feed-forward share is above half, except in GPT-2 small with embeddings"
    drawing = grouped_bars(shares, ylabel="share in feed-forward layers", title=title, reference_lines={"half": 0.5})
    lab.figure("shares", drawing, "The share of the parameters that is in feed-forward layers.")
    small, least = shares["GPT-2 small"], min(share["without embeddings"] for share in shares.values())
    lab.decide(
        "30a",
        Verdict.HOLDS_WHEN,
        f"Without embeddings, at least {least:.1%} of the parameters are in the feed-forward layers of all four "
        f"models. With embeddings it is {small['of all parameters']:.0%} in GPT-2 small, which is less than half, and "
        f"{shares['GPT-3']['of all parameters']:.0%} in GPT-3.",
        Measurement(name="smallest share without embeddings", value=least, low=0.65, high=0.7),
        Measurement(name="share of all parameters, GPT-2 small", value=small["of all parameters"], low=0.45, high=0.46),
        Measurement(
            name="share of all parameters, GPT-3", value=shares["GPT-3"]["of all parameters"], low=0.65, high=0.67
        ),
        condition="embeddings are not counted, or are few compared with the blocks: not in GPT-2 small as a whole",
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
EVERY = 3  # ablate every third layer at the small size


@contextmanager
def ablate_part(part: nn.Module) -> Iterator[None]:
    """Replace the output of a part of a block by zeros."""
    hook = part.register_forward_hook(lambda *call: torch.zeros_like(call[-1]))  # (module, inputs, output)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def loss_of_answers(model: Decoder, prompts: list[list[int]], answers: list[int]) -> float:
    """Return the mean loss of the token after each prompt, in nats."""
    longest = max(map(len, prompts))
    # Padding on the right has no effect: the model is causal.
    padded = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    last = torch.tensor([len(prompt) - 1 for prompt in prompts])
    features = model.features(padded)[torch.arange(len(prompts)), last]
    return float(F.cross_entropy(model.logits(features), torch.tensor(answers)))


@torch.no_grad()
def loss_of_text(model: Decoder, ids: list[int]) -> float:
    """Return the mean loss of the tokens of a text, in nats."""
    tokens = torch.tensor([ids])
    return float(F.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]))


def ablation_of_facts(lab: Lab) -> None:
    """That most parameters are in the feed-forward layers says nothing about what they store. An experiment could.

    SmolLM2 completes 14 facts. The lab ablates the attention or the feed-forward network of one layer at a time and
    measures the loss of the answers. An ordinary text shows how much is lost anyway. If facts were stored in the
    feed-forward layers, ablating these should hurt far more than ablating attention. (The sums leave out layer 0:
    without either part, the model fails at everything.)

    Ablation is a coarse method: that a part is needed does not show that the fact is stored in it. Finer methods trace
    and edit single facts ([Geva et al., 2021](https://arxiv.org/abs/2012.14913); [Meng et al.,
    2022](https://arxiv.org/abs/2202.05262)); they are not run here.
    """
    model, tokenizer = lab.trained_model()
    assert isinstance(model, Decoder)
    prompts = [tokenizer.encode(prompt) for prompt, _ in FACTS]
    answers = [tokenizer.encode(answer)[0] for _, answer in FACTS]
    text = reference_text()
    start = int(torch.randint(len(text) // 2, (), generator=torch.Generator().manual_seed(lab.seed)))
    ids = tokenizer.encode(text[start : start + 2_000])[:128]
    before = loss_of_answers(model, prompts, answers), loss_of_text(model, ids)
    rises: dict[str, list[float]] = {"attention": [], "feed_forward": []}
    rows = []
    for layer in range(0, len(model.blocks), lab.choose(small=EVERY, full=1)):
        lab.step(f"ablating layer {layer}")
        row = []
        for part, found in rises.items():
            with ablate_part(getattr(model.blocks[layer], part)):
                fact, ordinary = (
                    loss_of_answers(model, prompts, answers) - before[0],
                    loss_of_text(model, ids) - before[1],
                )
            row += [fact, ordinary]
            found.append(fact)
        rows.append((layer, *row))
    lab.table(
        "Change of the loss, in nats",
        (
            "layer",
            "facts, attention ablated",
            "text, attention ablated",
            "facts, feed-forward ablated",
            "text, feed-forward ablated",
        ),
        rows,
        note=f"Loss without ablation: {before[0]:.2f} for a fact, {before[1]:.2f} for a token of the text.",
    )
    attention, feed_forward = (sum(rises[part][1:]) for part in ("attention", "feed_forward"))
    few, many = (sum(p.numel() for p in getattr(model.blocks[0], part).parameters()) for part in rises)
    per_parameter = (attention / few) / (feed_forward / many)
    lab.decide(
        "30b",
        Verdict.NOT_SHOWN,
        "The text gives no evidence, and a share of parameters is none. Ablated layer by layer, attention raises the "
        f"loss of facts {attention / feed_forward:.2f} times as much as the feed-forward networks, and "
        f"{per_parameter:.1f} times as much per parameter. Facts need both, and ablation does not show where they are "
        "stored.",
        Measurement(name="facts: effect of attention / feed-forward", value=attention / feed_forward, low=0.3, high=2),
        Measurement(name="the same, per parameter", value=per_parameter, low=1),
    )


DEPTH, WIDTH, HEADS, TOKENS = 24, 64, 4, 32


def new_block(order: str) -> Block:
    """Return a randomly initialised block."""
    attention = MultiHeadAttention(hidden_size=WIDTH, num_heads=HEADS)
    feed_forward = FeedForward(hidden_size=WIDTH, intermediate_size=4 * WIDTH)
    norm = partial(nn.LayerNorm, WIDTH)
    return Block(attention=attention, feed_forward=feed_forward, norm=norm, norm_first=order != "post")


def without_residuals(block: Block, x: Tensor) -> Tensor:
    """Apply a block without its residual connections."""
    return block.feed_forward(block.feed_forward_norm(block.attention(block.attention_norm(x))))


def token_similarity(x: Tensor) -> float:
    """Return the mean cosine of two different tokens; it is 1 if all tokens are equal."""
    turned = F.normalize(x.detach()[0], dim=-1)
    return float(((turned @ turned.T).sum() - TOKENS) / (TOKENS * (TOKENS - 1)))


def residual_connections_and_norms(lab: Lab) -> None:
    """24 randomly initialised blocks in three designs: with the norm before each part (pre-norm, as in GPT-2 and
    Llama), with the norm after each addition (post-norm, as in the original transformer), and without residual
    connections.

    Attention averages tokens. Without residual connections, all tokens become equal within two blocks, and the text is
    lost. The residual connection keeps each token.

    In the backward pass, gradients pass through the same additions, and the two designs differ. With pre-norm, the
    gradient of the first block is somewhat larger than that of the last; with post-norm it is smaller ([Xiong et al.,
    2020](https://arxiv.org/abs/2002.04745)). Both can be trained; comparing how well takes longer runs than this one.

    Without residual connections (the norms remain), the gradient of the first block is twice that of the last, so it
    does not vanish. Such a stack does not train ([claim 40b](training_without_parts.md)), but the reason that the claim
    gives, the flow of gradients, is not what is seen here.
    """
    blocks = range(1, DEPTH + 1)
    similarity: dict[str, list[float]] = {}
    gradient_norms: dict[str, list[float]] = {}
    for name, order in (("pre-norm", "pre"), ("post-norm", "post"), ("no residual", "none")):
        torch.manual_seed(lab.seed)
        x, stack = torch.randn(1, TOKENS, WIDTH), [new_block(order) for _ in blocks]
        similarity[name] = []
        for block in stack:
            x = without_residuals(block, x) if order == "none" else block(x)
            similarity[name].append(token_similarity(x))
        (F.layer_norm(x, (WIDTH,)) * torch.randn_like(x)).sum().backward()
        gradients = (block.feed_forward.up.weight.grad for block in stack)
        gradient_norms[name] = [float(gradient.norm()) for gradient in gradients if gradient is not None]
    lab.table(
        f"A stack of {DEPTH} random blocks",
        ("design", "similarity after 2 blocks", f"after {DEPTH}", "gradient of the first / last block"),
        [
            (name, similarity[name][1], similarity[name][-1], gradient_norms[name][0] / gradient_norms[name][-1])
            for name in similarity
        ],
        note="Norms of the gradients of the first feed-forward matrix.",
    )
    title = "Without residual connections, all tokens become equal"
    drawing = lines(list(blocks), similarity, xlabel="block", ylabel="mean cosine of two tokens", title=title)
    lab.figure(
        "similarity", drawing, "Similarity of tokens after each of 24 randomly initialised blocks; 1 means equal."
    )


PARTS = (distribution_of_the_parameters, ablation_of_facts, residual_connections_and_norms)
