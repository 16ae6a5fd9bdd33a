"""Positional encoding

This lab shows you why attention needs positional information, and compares how sinusoidal embeddings, rotary
embeddings and a causal mask provide it.

The score of a query and a key is a dot product of two vectors; their positions do not enter. So attention alone reads a
bag of words. Order must come from embeddings that are added to the tokens ([Vaswani et al.,
2017](https://arxiv.org/abs/1706.03762)), from rotating queries and keys ([Su et al.,
2021](https://arxiv.org/abs/2104.09864)), or from a mask.

The lab uses float64 to check equality, so that the remaining differences are rounding.
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
"""Relative differences below this are rounding."""
LARGE = 0.01
"""Relative differences above this are not rounding."""
HEAD_DIM = 64
"""The head dimension."""
ROTARY = Rotary(dim=HEAD_DIM, layout="half")


def relative_difference(first: Tensor, second: Tensor) -> float:
    """Return the norm of the difference of two tensors, relative to that of the first."""
    return float((first - second).norm() / first.norm())


@torch.no_grad()
def permutation_equivariance(lab: Lab) -> None:
    """Permute the tokens, apply attention, and compare the outputs.

    A function is **invariant** if permuting its input does not change its output, and **equivariant** if it permutes
    the output in the same way. An equivariant layer gives every token its own output, which stays with the token; an
    invariant one gives a single output. Here the mean over all tokens is invariant, as in a bag of words.

    Two things break the symmetry. Position embeddings do, which is their purpose. A causal mask does too, because the
    allowed keys of a query depend on the order.
    """
    torch.manual_seed(lab.seed)
    attention = MultiHeadAttention(hidden_size=32, num_heads=4).double()
    x, permutation = torch.randn(1, 10, 32, dtype=torch.float64), torch.randperm(10)
    while bool((permutation == torch.arange(10)).any()):  # all tokens move
        permutation = torch.randperm(10)
    embeddings = sinusoidal(10, 32, dtype=torch.float64)
    cases = {
        "no positions": (attention(x), attention(x[:, permutation])),
        "sinusoidal embeddings": (attention(x + embeddings), attention(x[:, permutation] + embeddings)),
        "causal mask": (attention(x, mask=Causal()), attention(x[:, permutation], mask=Causal())),
    }
    rows = [
        (
            name,
            relative_difference(before[:, permutation], after),
            relative_difference(before, after),
            relative_difference(before.mean(1), after.mean(1)),
        )
        for name, (before, after) in cases.items()
    ]
    columns = ("attention", "from the permuted output", "from the same output", "of the mean of all rows")
    lab.table("Relative difference after permuting the input", columns, rows)
    (_, alike, same, _), (_, with_positions, *_), (_, with_mask, *_) = rows
    lab.decide(
        "15a",
        Verdict.HOLDS,
        f"Permuted tokens give the permuted rows, with a relative difference of {alike:.0e}. Positions break this "
        f"({with_positions:.2f}), and so does a causal mask ({with_mask:.2f}).",
        Measurement(name="difference from the permuted output", value=alike, high=EXACT),
        Measurement(name="the same with sinusoidal embeddings", value=with_positions, low=LARGE),
    )
    lab.decide(
        "37",
        Verdict.DOES_NOT_HOLD,
        f"It is equivariant: the output moves with the tokens, and its relative difference from the original one is "
        f"{same:.2f}. Only a symmetric function of all tokens, such as their mean, is invariant.",
        Measurement(name="difference from the original output", value=same, low=LARGE),
        Measurement(name="difference of the means over all tokens", value=rows[0][3], high=EXACT),
    )


SENTENCES = ("the cat sat on the mat", "the mat sat on the cat", "mat the on sat cat the")


def sort_rows(output: Tensor) -> Tensor:
    """Return the rows sorted by their first number, so that permuted rows become equal."""
    return output[output[:, 0].argsort()]


@torch.no_grad()
def anagrams(lab: Lab) -> None:
    """Three sentences of the same six words. An attention layer reads each, and the output rows are sorted, so that
    their order is lost. The sorted rows are the same for all three. Both occurrences of "the" also have the same row,
    because without positions nothing distinguishes them.
    """
    torch.manual_seed(lab.seed)
    attention = MultiHeadAttention(hidden_size=16, num_heads=2).double()
    words = sorted(set(" ".join(SENTENCES).split()))
    embedding, embeddings = torch.randn(len(words), 16, dtype=torch.float64), sinusoidal(6, 16, dtype=torch.float64)
    tokens = [embedding[[words.index(word) for word in sentence.split()]] for sentence in SENTENCES]
    bare = [attention(x[None])[0] for x in tokens]
    placed = [attention((x + embeddings)[None])[0] for x in tokens]
    rows = [
        (
            sentence,
            relative_difference(sort_rows(bare[0]), sort_rows(a)),
            relative_difference(sort_rows(placed[0]), sort_rows(b)),
        )
        for sentence, a, b in zip(SENTENCES, bare, placed, strict=True)
    ]
    columns = ("sentence", "without positions", "with positions")
    lab.table("Relative difference of the sorted rows from those of the first sentence", columns, rows)
    lab.decide(
        "15b",
        Verdict.HOLDS,
        f"All three sentences give the same rows, with a relative difference of {max(row[1] for row in rows):.0e}. "
        f"With positions, the sets differ by at least {min(row[2] for row in rows[1:]):.2f}.",
        Measurement(name="difference of the sorted rows", value=max(row[1] for row in rows), high=EXACT),
        Measurement(name="the same with positions", value=min(row[2] for row in rows[1:]), low=LARGE),
        Measurement(
            name="difference of the two rows of 'the'", value=relative_difference(bare[0][0], bare[0][4]), high=EXACT
        ),
    )


class OrderClassifier(nn.Module):
    """Three blocks without positions that answer yes or no about a sequence of words, from the mean of all tokens."""

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
        self.classifier = nn.Linear(width, 1)

    def forward(self, rows: Tensor, mask: Mask) -> Tensor:
        """Return logits (batch,), positive for yes."""
        x = self.embedding(rows)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.classifier(x.mean(1))[:, 0]


def depth_and_training(lab: Lab) -> None:
    """A deeper model without positions is trained to decide whether word 0 comes before word 1.

    Sequences are six different words in random order. Each is tested together with its reverse, whose correct answer is
    the opposite. With full attention, both are the same bag of words and get the same answer, after three blocks and
    any training: one of the two is always wrong.

    With a causal mask, and no other change, the model learns the task. The mask reveals the order by the keys that it
    hides. This is how language models without position embeddings can work ([Haviv et al.,
    2022](https://arxiv.org/abs/2203.16634)).
    """
    steps, words = lab.choose(small=250, full=2500), 6
    rows = []
    for name, mask in {"full attention": Full(), "causal mask": Causal()}.items():
        lab.step(f"training with {name}")
        torch.manual_seed(lab.seed)
        model = OrderClassifier(words)
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
    columns = ("mask", "accuracy", "largest difference between a sequence and its reverse")
    lab.table("Classifying anagrams without positions, after training", columns, rows)
    (_, full, difference), (_, causal, _) = rows
    lab.decide(
        "36",
        Verdict.HOLDS_WHEN,
        f"After training, three blocks without positions have an accuracy of {full:.1%}, which is chance. Their "
        f"answers to a sequence and its reverse differ by {difference:.0e}. With a causal mask the accuracy is "
        f"{causal:.1%}.",
        Measurement(name="accuracy with full attention", value=full, low=0.495, high=0.505),
        Measurement(name="difference of the answers to a sequence and its reverse", value=difference, high=EXACT),
        Measurement(name="accuracy with a causal mask", value=causal, low=0.9),
        condition="attention is not masked; a causal mask is enough to distinguish them",
    )


def sinusoidal_embeddings(lab: Lab) -> None:
    """The sinusoidal table of the first transformer has a sine and a cosine for each of its frequencies.

    Moving by k positions rotates each such pair by k times its frequency. For each k this is one fixed matrix of small
    rotations, which maps the embedding of any position to that k positions later. The lab builds this matrix and tests
    it at 10,000 positions.

    This shows that a layer *could* compute a shift by a linear map. It does not show that scores depend only on
    distances; the next part measures that.
    """
    width, positions = 128, torch.arange(10_000)
    angles = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    table, rows = sinusoidal(positions, width, dtype=torch.float64), []
    for shift in (1, 7, 100, 5_000):
        cos, sin = (shift * angles).cos(), (shift * angles).sin()
        rotation = torch.block_diag(*torch.stack((cos, sin, -sin, cos), 1).view(-1, 2, 2))
        expected = sinusoidal(positions + shift, width, dtype=torch.float64)
        rows.append((shift, float((table @ rotation.T - expected).abs().max())))
    lab.table("One matrix for each shift, tested at 10,000 positions", ("shift", "largest error"), rows)
    largest = max(error for _, error in rows)
    lab.decide(
        "17",
        Verdict.HOLDS,
        f"One rotation per pair of coordinates maps every position to the one k later, with an error of {largest:.0e}.",
        Measurement(name="largest error at any position", value=largest, high=1e-9),
    )


def scores_with_sinusoidal(query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
    """Return the scores of queries and keys with sinusoidal embeddings added."""
    embeddings = sinusoidal(positions, HEAD_DIM, dtype=query.dtype)
    return (query + embeddings) @ (key + embeddings).T


def scores_with_rotary(query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
    """Return the scores of queries and keys with rotary embeddings; the product is in float64."""
    query, key = (rotate(x, ROTARY, positions=positions).double() for x in (query, key))
    return query @ key.T


def shifting_the_whole_sequence(lab: Lab) -> None:
    """Rotary embeddings rotate query and key instead of adding something to them.

    The dot product of two rotated vectors depends on the angle between them. Shifting both tokens rotates both by the
    same angle, so the scores stay the same wherever the sequence starts. With sinusoidal embeddings they change,
    because products of a word with a position and of two positions enter.

    This is exact in real arithmetic. With rounded vectors it is as exact as the dtype: the last column is bfloat16,
    which many models use.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    query, key = torch.randn(2, 20, HEAD_DIM, generator=generator, dtype=torch.float64)
    here, rows = torch.arange(20), []
    for shift in (1, 100, 10_000, 100_000):
        added = relative_difference(
            scores_with_sinusoidal(query, key, here), scores_with_sinusoidal(query, key, here + shift)
        )
        turned = [
            relative_difference(
                scores_with_rotary(query.to(t), key.to(t), here),
                scores_with_rotary(query.to(t), key.to(t), here + shift),
            )
            for t in (torch.float64, torch.float32, torch.bfloat16)
        ]
        rows.append((shift, added, *turned))
    columns = ("shift", "sinusoidal", "rotary, float64", "rotary, float32", "rotary, bfloat16")
    lab.table("Relative change of the scores when the whole sequence shifts", columns, rows)
    added, turned = min(row[1] for row in rows[1:]), max(row[2] for row in rows)
    lab.decide(
        "18a",
        Verdict.HOLDS,
        f"Shifting a sequence by up to 100,000 positions changes rotary scores by {turned:.0e}, relative to their "
        f"size, and scores with sinusoidal embeddings by at least {added:.2f}.",
        Measurement(name="change of rotary scores", value=turned, high=EXACT),
        Measurement(name="change of scores with sinusoidal embeddings, shift of 100 or more", value=added, low=0.05),
    )


def scores_over_distance(query: Tensor, key: Tensor, distances: int) -> Tensor:
    """Return scaled scores (draws, distances) of queries 0, 1, 2, ... positions after their key."""
    chunks = zip(query.split(50), key.split(50), strict=True)
    turned = ((rotate(some[:, None].expand(-1, distances, -1), ROTARY), keys) for some, keys in chunks)
    return torch.cat([(queries @ keys[:, :, None])[..., 0] for queries, keys in turned]) / HEAD_DIM**0.5


def scores_over_distance_with_rotary(lab: Lab) -> None:
    """Do rotary scores decay with distance? It depends on the query and the key.

    If they are **equal**, their score is largest at distance 0, where nothing is rotated, and pairs of coordinates get
    out of phase as the distance grows. Averaged over some distances, the score falls. It does not fall monotonically:
    half of the single steps go up.

    If they are **independent**, nothing falls. Rotation keeps lengths, so scores are as large at a distance of 2,000 as
    at 0.

    A query that is the key **rotated by 50 positions** scores highest at a distance of 50. Rotation is linear, so a
    layer can learn such a query, and with it a head that attends a fixed distance back.
    """
    generator = torch.Generator().manual_seed(lab.seed)
    draws, distances = lab.choose(small=300, full=3000), 2048
    key, other = torch.randn(2, draws, HEAD_DIM, generator=generator, dtype=torch.float64)
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
    columns = ("distance", "equal: mean score", "independent: root mean square", "rotated by 50: mean score")
    lab.table("Scores over distance", columns, rows)
    curves = {"query equals key": alike, "query rotated by 50": made, "independent: root mean square": unrelated}
    shown = {name: curve[:300].tolist() for name, curve in curves.items()}
    title = "Rotary scores fall with distance only if query and key are similar"
    lab.figure(
        "decay",
        lines(range(300), shown, xlabel="distance of query and key", ylabel="scaled score", title=title),
        "Scores of random vectors with rotary embeddings.",
    )
    means = [float(alike[span].mean()) for span in spans]
    rises = max(after - before for before, after in pairwise(means))
    kept = float(unrelated[1024:].mean() / unrelated[:16].mean())
    upward, peak = float((alike.diff() > 0).double().mean()), float(made[50] / made[0])
    lab.decide(
        "18b",
        Verdict.HOLDS_WHEN,
        f"If query and key are equal, the mean score beyond 1,024 positions is {means[-1] / float(alike[0]):.0%} of "
        f"that at distance 0, though {upward:.0%} of single steps go up. Independent vectors keep {kept:.0%} of their "
        f"size, and a query rotated by 50 positions scores {peak:.1f} times as high at distance 50 as at 0.",
        Measurement(name="equal: far score / near score", value=means[-1] / float(alike[0]), high=0.3),
        Measurement(name="equal: largest rise from one span to the next", value=rises, high=0.0),
        Measurement(name="equal: share of single steps that go up", value=upward, low=0.3, high=0.6),
        Measurement(name="independent: far size / near size", value=kept, low=0.8, high=1.2),
        Measurement(name="rotated by 50: score at 50 / score at 0", value=peak, low=1.5),
        condition="queries and keys are similar, on average over many distances",
    )


def rotation_before_or_after_the_softmax(lab: Lab) -> None:
    """Rotary embeddings act on queries and keys, so before the softmax: they affect which tokens attend to each other.

    The lab computes both: rotating queries and keys before the softmax, as rotary embeddings do, and rotating the
    output of each head after it. Rotated before, the weights change, and shifting the whole sequence changes nothing.
    Rotated after, the weights are those of a bag of words, and the output depends on where the sequence starts.

    Rotation does not commute with merging heads either: W_O mixes coordinates of all heads, so rotating before and
    after it differ. Merging heads needs no such property: each head rotates its own queries and keys, and W_O treats
    all positions alike. (The text with this claim also says that the rotation acts on queries and keys, which is
    right.)
    """
    generator = torch.Generator().manual_seed(lab.seed)
    query, key, value = torch.randn(3, 1, 4, 12, HEAD_DIM, generator=generator, dtype=torch.float64)
    merge = torch.randn(4 * HEAD_DIM, 4 * HEAD_DIM, generator=generator, dtype=torch.float64) / (4 * HEAD_DIM) ** 0.5

    def merged(heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2) @ merge

    def before(begin: int) -> Tensor:
        return merged(attend(rotate(query, ROTARY, offset=begin), rotate(key, ROTARY, offset=begin), value))

    def after(begin: int) -> Tensor:
        return merged(rotate(attend(query, key, value), ROTARY, offset=begin))

    plain = AttentionMatrix(query, key).to_dense()
    turned = AttentionMatrix(rotate(query, ROTARY), rotate(key, ROTARY)).to_dense()
    moved_weight = float((plain - turned).abs().sum(-1).mean() / 2)
    whole = merged(attend(query, key, value)).unflatten(2, (4, HEAD_DIM)).transpose(1, 2)
    merged_first = rotate(whole, ROTARY).transpose(1, 2).flatten(2)
    rows = [
        ("before the softmax", moved_weight, relative_difference(before(0), before(100))),
        ("after the softmax", 0.0, relative_difference(after(0), after(100))),
    ]
    columns = ("rotated", "share of weight that moves", "relative change of the output after a shift by 100")
    lab.table("Rotation before and after the softmax", columns, rows)
    order = relative_difference(after(0), merged_first)
    lab.decide(
        "32",
        Verdict.DOES_NOT_HOLD,
        f"The rotation is before the softmax and moves {moved_weight:.0%} of the weight. After it, the output would "
        f"depend on where the sequence starts (relative change {rows[1][2]:.2f}), and rotating before or after merging "
        f"the heads would differ by {order:.2f}.",
        Measurement(name="share of weight that rotation moves", value=moved_weight, low=LARGE),
        Measurement(name="rotated before: change after a shift", value=rows[0][2], high=EXACT),
        Measurement(name="rotated after: change after a shift", value=rows[1][2], low=LARGE),
        Measurement(name="rotated before merging compared with after", value=order, low=LARGE),
    )


PARTS = (
    permutation_equivariance,
    anagrams,
    depth_and_training,
    sinusoidal_embeddings,
    shifting_the_whole_sequence,
    scores_over_distance_with_rotary,
    rotation_before_or_after_the_softmax,
)
