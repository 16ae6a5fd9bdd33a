"""Does attention know the order of its tokens, and how is it told?

The score of a query and a key is a product of two vectors. Where the two tokens stand in the text does not enter. So
attention by itself reads a bag of words, and order has to be told to it: by something added to the tokens, by turning
queries and keys, or by a mask. Here each of these is shuffled, shifted and measured.

Numbers are float64 where equality is claimed, so that what is left is rounding and nothing else.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from attnscope import AttentionMatrix, Causal, Full, attend
from attnscope.attention import Mask
from attnscope.attention.positions import sinusoidal
from attnscope.attention.rotary import Rotary, rotate
from attnscope.figures import lines
from attnscope.labs import Lab, Measurement, Verdict
from attnscope.models import Block, FeedForward, MultiHeadAttention

EXACT = 1e-10
"""Differences below this are rounding."""
LARGE = 0.01
"""Differences above this, as a part of the whole, are no rounding."""
HEAD = 64
"""Coordinates of a head."""
ROTARY = Rotary(dim=HEAD, layout="half")


def apart(first: Tensor, second: Tensor) -> float:
    """How far two tensors are apart, as a part of the length of the first."""
    return float((first - second).norm() / first.norm())


@torch.no_grad()
def shuffling_the_tokens(lab: Lab) -> None:
    """Shuffle the tokens, let attention read them, and compare.

    A function is **invariant** if shuffling what goes in changes nothing of what comes out, and **equivariant** if
    what comes out is shuffled in the same way. The words are used for each other, and mean different things: an
    equivariant layer gives every token its own answer and the answer stays with the token; an invariant one gives one
    answer for all. What is invariant here is the mean over all tokens, as in a bag of words.

    Two things end this. Positions that are added to the tokens do, which is what they are for. A causal mask does too:
    the tokens that a query sees are those before it, and that depends on the order.
    """
    torch.manual_seed(lab.seed)
    attention = MultiHeadAttention(hidden_size=32, num_heads=4).double()
    x, shuffle = torch.randn(1, 10, 32, dtype=torch.float64), torch.randperm(10)
    while bool((shuffle == torch.arange(10)).any()):  # every token moves
        shuffle = torch.randperm(10)
    waves = sinusoidal(10, 32, dtype=torch.float64)
    cases = {
        "as it is": (attention(x), attention(x[:, shuffle])),
        "with positions added": (attention(x + waves), attention(x[:, shuffle] + waves)),
        "with a causal mask": (attention(x, mask=Causal()), attention(x[:, shuffle], mask=Causal())),
    }
    rows = [
        (name, apart(before[:, shuffle], after), apart(before, after), apart(before.mean(1), after.mean(1)))
        for name, (before, after) in cases.items()
    ]
    columns = ("attention", "equivariant: shuffled alike", "invariant: the same", "the mean of all rows")
    lab.table("What shuffling the input changes, as a part of the output", columns, rows)
    (_, alike, same, _), (_, with_positions, *_), (_, with_mask, *_) = rows
    lab.decide(
        "15a",
        Verdict.HOLDS,
        f"Shuffled tokens give the same rows, shuffled alike, to {alike:.0e} of their length. Positions break that "
        f"({with_positions:.2f}), and so does a causal mask ({with_mask:.2f}).",
        Measurement(name="difference to the shuffled output", value=alike, high=EXACT),
        Measurement(name="the same with positions added", value=with_positions, low=LARGE),
    )
    lab.decide(
        "37",
        Verdict.DOES_NOT_HOLD,
        f"It is equivariant: the output moves with the tokens, and differs from the one before by {same:.2f} of its "
        "length. Only what is taken over all tokens alike, as their mean, is invariant.",
        Measurement(name="difference to the output before shuffling", value=same, low=LARGE),
        Measurement(name="difference of the means over all tokens", value=rows[0][3], high=EXACT),
    )


SENTENCES = ("the cat sat on the mat", "the mat sat on the cat", "mat the on sat cat the")


def rows_in_order(output: Tensor) -> Tensor:
    """The rows (position, width) sorted by their first number: the same for all orders of the same rows."""
    return output[output[:, 0].argsort()]


@torch.no_grad()
def anagrams(lab: Lab) -> None:
    """Three sentences of the same six words, of which one is a scene, one an accident, and one no sentence at all.

    Each is read by a layer of attention, and the rows that come out are sorted, so that only the order in which they
    came is lost. What is left is the same three times. Also both "the" have one and the same row: no position, no
    difference.
    """
    torch.manual_seed(lab.seed)
    attention = MultiHeadAttention(hidden_size=16, num_heads=2).double()
    words = sorted(set(" ".join(SENTENCES).split()))
    embedding, waves = torch.randn(len(words), 16, dtype=torch.float64), sinusoidal(6, 16, dtype=torch.float64)
    tokens = [embedding[[words.index(word) for word in sentence.split()]] for sentence in SENTENCES]
    bare = [attention(x[None])[0] for x in tokens]
    placed = [attention((x + waves)[None])[0] for x in tokens]
    rows = [
        (sentence, apart(rows_in_order(bare[0]), rows_in_order(a)), apart(rows_in_order(placed[0]), rows_in_order(b)))
        for sentence, a, b in zip(SENTENCES, bare, placed, strict=True)
    ]
    columns = ("sentence", "without positions", "with positions")
    lab.table("How far the sorted rows are from those of the first sentence", columns, rows)
    lab.decide(
        "15b",
        Verdict.HOLDS,
        f"All three sentences give the same rows, to {max(row[1] for row in rows):.0e} of their length; once positions "
        f"are added, the sets differ by at least {min(row[2] for row in rows[1:]):.2f} of it.",
        Measurement(name="difference of the sorted rows", value=max(row[1] for row in rows), high=EXACT),
        Measurement(name="the same with positions", value=min(row[2] for row in rows[1:]), low=LARGE),
        Measurement(name="difference of the two rows of 'the'", value=apart(bare[0][0], bare[0][4]), high=EXACT),
    )


class Reader(nn.Module):
    """Three blocks without positions that say yes or no about a row of words, by the mean of all tokens."""

    def __init__(self, words: int, width: int = 32):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            Block(
                attention=MultiHeadAttention(hidden_size=width, num_heads=2),
                feed_forward=FeedForward(hidden_size=width, intermediate_size=2 * width),
                norm=lambda: nn.LayerNorm(width),
            )
            for _ in range(3)
        )
        self.answer = nn.Linear(width, 1)

    def forward(self, rows: Tensor, mask: Mask) -> Tensor:
        """Positive for yes, negative for no: (batch,)."""
        x = self.embedding(rows)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.answer(x.mean(1))[:, 0]


def depth_and_training(lab: Lab) -> None:
    """Who bites whom? A deeper model without positions is trained to tell whether word 0 comes before word 1.

    Rows are six different words in random order. Each row is judged together with itself turned round, for which the
    right answer is the opposite. If every token sees all others, both are the same bag of words and get the same
    answer, after three blocks and any training: one of two is wrong, always.

    With a causal mask, and nothing else changed, the model learns it. Attention that only looks back is told the order
    by what it does not see, which is how language models without any positions can work.
    """
    steps, words = lab.choose(small=250, full=2500), 6
    rows = []
    for name, mask in {"sees all others": Full(), "sees those before it": Causal()}.items():
        lab.step(f"training a model whose every token {name}")
        torch.manual_seed(lab.seed)
        model = Reader(words)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(steps):
            batch = torch.rand(64, words).argsort(1)
            comes_first = (batch == 0).int().argmax(1) < (batch == 1).int().argmax(1)
            loss = binary_cross_entropy_with_logits(model(batch, mask), comes_first.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        some = torch.rand(1000, words).argsort(1)
        comes_first = (some == 0).int().argmax(1) < (some == 1).int().argmax(1)
        with torch.no_grad():
            there, back = model.double()(some, mask), model(some.flip(1), mask)
        right = torch.cat(((there > 0) == comes_first, (back > 0) != comes_first)).double().mean()
        rows.append((name, float(right), float((there - back).abs().max())))
    columns = ("every token", "share of right answers", "largest difference of a row and its reverse")
    lab.table("Telling anagrams apart without positions, after training", columns, rows)
    (_, blind, difference), (_, looking_back, _) = rows
    lab.decide(
        "36",
        Verdict.HOLDS_WHEN,
        f"After training, three blocks without positions are right in {blind:.1%} of the cases, as a coin is, and "
        f"answer a row and its reverse alike to {difference:.0e}. With a causal mask they are right in "
        f"{looking_back:.1%}.",
        Measurement(name="right answers if every token sees all others", value=blind, low=0.495, high=0.505),
        Measurement(name="difference of the answers to a row and its reverse", value=difference, high=EXACT),
        Measurement(name="right answers with a causal mask", value=looking_back, low=0.9),
        condition="every token sees all others; a causal mask is enough to tell them apart",
    )


def waves_that_turn(lab: Lab) -> None:
    """The sinusoidal table of the first transformer has a sine and a cosine for each of its frequencies.

    Going on by k positions turns each such pair by the angle k times its frequency. That is one fixed matrix for each
    k, made of small rotations, and it takes the row of any position to the row k further on. It is built here from the
    frequencies and tried at 10,000 positions.

    What follows is less than is often said: that a layer *could* compute a shift by a linear map, not that its scores
    see distances alone. The next part measures that.
    """
    width, positions = 128, torch.arange(10_000)
    angles = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    table, rows = sinusoidal(positions, width, dtype=torch.float64), []
    for shift in (1, 7, 100, 5_000):
        cos, sin = (shift * angles).cos(), (shift * angles).sin()
        turn = torch.block_diag(*torch.stack((cos, sin, -sin, cos), 1).view(-1, 2, 2))
        wanted = sinusoidal(positions + shift, width, dtype=torch.float64)
        rows.append((shift, float((table @ turn.T - wanted).abs().max())))
    lab.table("One matrix for each shift, tried at 10,000 positions", ("shift", "largest error"), rows)
    largest = max(error for _, error in rows)
    lab.decide(
        "17",
        Verdict.HOLDS,
        f"One rotation for each pair of waves takes every position to the one k further on, to {largest:.0e}.",
        Measurement(name="largest error at any position", value=largest, high=1e-9),
    )


def added_scores(query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
    """Scores of queries and keys to which sinusoidal positions were added."""
    waves = sinusoidal(positions, HEAD, dtype=query.dtype)
    return (query + waves) @ (key + waves).T


def turned_scores(query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
    """Scores of queries and keys that were turned by their positions, in their dtype, and multiplied in float64."""
    query, key = (rotate(x, ROTARY, positions=positions).double() for x in (query, key))
    return query @ key.T


def moving_the_whole_text(lab: Lab) -> None:
    """Rotary positions turn query and key instead of adding something to them.

    The product of two turned vectors depends on the angle between them, and moving both tokens by the same number of
    positions turns both by the same angle. So the scores stay as they are wherever the text begins. With sinusoidal
    positions added, they do not: products of a word with a position, and of a position with another, come in.

    This is exact as mathematics. Once turned vectors are stored with few digits, it is as exact as those: the last
    column is bfloat16, in which many models run.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    query, key = torch.randn(2, 20, HEAD, generator=generator, dtype=torch.float64)
    here, rows = torch.arange(20), []
    for shift in (1, 100, 10_000, 100_000):
        added = apart(added_scores(query, key, here), added_scores(query, key, here + shift))
        turned = [
            apart(turned_scores(query.to(t), key.to(t), here), turned_scores(query.to(t), key.to(t), here + shift))
            for t in (torch.float64, torch.float32, torch.bfloat16)
        ]
        rows.append((shift, added, *turned))
    columns = ("text moved by", "sinusoidal, added", "rotary, float64", "rotary, float32", "rotary, bfloat16")
    lab.table("How much scores change when the whole text moves, as a part of them", columns, rows)
    added, turned = min(row[1] for row in rows[1:]), max(row[2] for row in rows)
    lab.decide(
        "18a",
        Verdict.HOLDS,
        f"Moving a text by up to 100,000 positions changes rotary scores by {turned:.0e} of their size, and those of "
        f"added sinusoidal positions by {added:.2f} and more.",
        Measurement(name="change of rotary scores", value=turned, high=EXACT),
        Measurement(name="change with sinusoidal positions added, by 100 positions or more", value=added, low=0.05),
    )


def scores_over_distance(query: Tensor, key: Tensor, distances: int) -> Tensor:
    """Scaled scores (draws, distance) of queries that stand 0, 1, 2, ... positions after their key."""
    few_at_once = zip(query.split(50), key.split(50), strict=True)
    turned = ((rotate(some[:, None].expand(-1, distances, -1), ROTARY), keys) for some, keys in few_at_once)
    return torch.cat([(queries @ keys[:, :, None])[..., 0] for queries, keys in turned]) / HEAD**0.5


def decay_with_distance(lab: Lab) -> None:
    """Do rotary scores get smaller with distance? It depends on the query and the key.

    If they are **alike**, their score is largest side by side, where nothing is turned, and pairs of coordinates fall
    out of step as they move apart: on the average over some distances, the score falls. It does not fall from step to
    step: half of the steps go up.

    If they are **unrelated**, nothing falls. Turning keeps lengths, so scores are as large at a distance of 2,000 as
    at 0.

    And a query that is the key **turned by 50 positions** scores highest 50 positions on. Turning is linear, so a
    layer can learn such a query: a head that looks a fixed distance back can be made like this.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    draws, distances = lab.choose(small=300, full=3000), 2048
    key, other = torch.randn(2, draws, HEAD, generator=generator, dtype=torch.float64)
    back = rotate(key[:, None], ROTARY, offset=-50)[:, 0]
    alike = scores_over_distance(key, key, distances).mean(0)
    unrelated = scores_over_distance(other, key, distances).pow(2).mean(0).sqrt()
    made = scores_over_distance(back, key, distances).mean(0)
    edges = (0, 16, 64, 256, 1024, 2048)
    spans = [slice(first, last) for first, last in pairwise(edges)]
    rows = [
        (f"{span.start:,} to {span.stop - 1:,}", *(float(curve[span].mean()) for curve in (alike, unrelated, made)))
        for span in spans
    ]
    columns = ("distance", "alike: mean score", "unrelated: size of a score", "made to look 50 back: mean score")
    lab.table("Scores over distance", columns, rows)
    curves = {"query and key alike": alike, "made to look 50 back": made, "unrelated: size": unrelated}
    shown = {name: curve[:300].tolist() for name, curve in curves.items()}
    title = "Rotary scores fall with distance if query and key are alike, and not by themselves"
    lab.figure(
        "decay",
        lines(range(300), shown, xlabel="positions between query and key", ylabel="scaled score", title=title),
        "Scores of random vectors under rotary positions; for unrelated ones, the root of the mean square.",
    )
    means = [float(alike[span].mean()) for span in spans]
    rises = max(after - before for before, after in pairwise(means))
    kept = float(unrelated[1024:].mean() / unrelated[:16].mean())
    upward, peak = float((alike.diff() > 0).double().mean()), float(made[50] / made[0])
    lab.decide(
        "18b",
        Verdict.HOLDS_WHEN,
        f"For vectors that are alike, the mean score beyond 1,024 positions is {means[-1] / float(alike[0]):.0%} of "
        f"that side by side, though {upward:.0%} of single steps go up. Unrelated ones keep {kept:.0%} of their size, "
        f"and a query made for it scores {peak:.1f} times as high 50 positions back as side by side.",
        Measurement(name="alike: far score as a part of the near one", value=means[-1] / float(alike[0]), high=0.3),
        Measurement(name="alike: largest rise from one span to the next", value=rises, high=0.0),
        Measurement(name="alike: share of single steps that go up", value=upward, low=0.3, high=0.6),
        Measurement(name="unrelated: far size as a part of the near one", value=kept, low=0.8, high=1.2),
        Measurement(name="made: score at 50 as a part of that at 0", value=peak, low=1.5),
        condition="queries and keys are alike, and on the average over many distances",
    )


def before_or_after_the_softmax(lab: Lab) -> None:
    """Rotary positions act on queries and keys, so before the softmax: they decide who looks at whom.

    Here both are computed: turning queries and keys before, as rotary positions do, and turning the output of each
    head after. Turned before, the weights change, and moving the whole text changes nothing. Turned after, the weights
    are those of a bag of words, and the output depends on where the text begins.

    Nor does turning commute with the merging of heads: W_O mixes coordinates of all heads, so turning before it and
    turning after it are two things. That heads can be merged at all needs no such law: each head turns its own queries
    and keys, and W_O treats every position alike. (The text that says so also says that the rotation acts on queries
    and keys, and there it is right.)
    """
    generator = torch.Generator().manual_seed(lab.seed)
    query, key, value = torch.randn(3, 1, 4, 12, HEAD, generator=generator, dtype=torch.float64)
    merge = torch.randn(4 * HEAD, 4 * HEAD, generator=generator, dtype=torch.float64) / (4 * HEAD) ** 0.5

    def merged(heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2) @ merge

    def before(begin: int) -> Tensor:
        return merged(attend(rotate(query, ROTARY, offset=begin), rotate(key, ROTARY, offset=begin), value))

    def after(begin: int) -> Tensor:
        return merged(rotate(attend(query, key, value), ROTARY, offset=begin))

    plain = AttentionMatrix(query, key).to_dense()
    turned = AttentionMatrix(rotate(query, ROTARY), rotate(key, ROTARY)).to_dense()
    moved_weight = float((plain - turned).abs().sum(-1).mean() / 2)
    whole = merged(attend(query, key, value)).unflatten(2, (4, HEAD)).transpose(1, 2)
    merged_first = rotate(whole, ROTARY).transpose(1, 2).flatten(2)
    rows = [
        ("before the softmax", moved_weight, apart(before(0), before(100))),
        ("after the softmax", 0.0, apart(after(0), after(100))),
    ]
    columns = ("turned", "share of weight that goes to other tokens", "change of the output if the text moves by 100")
    lab.table("Rotary positions before and after the softmax", columns, rows)
    order = apart(after(0), merged_first)
    lab.decide(
        "32",
        Verdict.DOES_NOT_HOLD,
        f"Turning comes before the softmax and moves {moved_weight:.0%} of the weight. After it, the output would "
        f"depend on where the text begins (by {rows[1][2]:.2f} of its length), and turning before or after the merge "
        f"would differ by {order:.2f}.",
        Measurement(name="share of weight that rotary positions move", value=moved_weight, low=LARGE),
        Measurement(name="turned before: change if the text moves", value=rows[0][2], high=EXACT),
        Measurement(name="turned after: change if the text moves", value=rows[1][2], low=LARGE),
        Measurement(name="turned before the merge against after it", value=order, low=LARGE),
    )


PARTS = (
    shuffling_the_tokens,
    anagrams,
    depth_and_training,
    waves_that_turn,
    moving_the_whole_text,
    decay_with_distance,
    before_or_after_the_softmax,
)
