"""The claims that labs test: statements of five texts about attention, one sentence each, in our words.

Each claim has a number. Letters distinguish several claims of the same statement. Figures are quoted as the text prints
them, whether they are right or wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = "000_3e103ba1788c2bc1.txt"
SECOND = "001_7b1ea8fc5b004f12.txt"
THIRD = "002_0a6ed8ff48a2beae.txt"
FOURTH = "003_a6d98f13c66c7c7f.txt"
FIFTH = "004_a7f6fcfb149881c2.txt"
SOURCES = {
    FIRST: "a course section on queries, keys, values, masks and many heads",
    SECOND: "a lesson from self-attention to GPT",
    THIRD: "a short essay on attention and its cost",
    FOURTH: "a textbook section with attention by hand and exercises",
    FIFTH: "a course chapter on self-attention with experiments and history",
}
"""The five texts: file name and description."""


@dataclass(frozen=True)
class Claim:
    """A claim, and the texts that make it."""

    text: str
    sources: tuple[str, ...]
    section: str = ""
    """Where the texts say so, if it is recorded."""


CLAIMS = {
    "1d": Claim(
        "A program prints, with seed 42 at d_k = 512, a standard deviation of 22.64 and a largest weight of 1.0000.",
        (FOURTH,),
        "2.3.2, code fragment 2.3.1a",
    ),
    "1a": Claim(
        "The standard deviation of q.k grows like sqrt(d_k); divided by sqrt(d_k), it stays near 1.", (FIRST, FOURTH)
    ),
    "1b": Claim(
        "Without the scaling, softmax saturates: at d_k = 512 one key gets practically everything.", (FIRST, FOURTH)
    ),
    "1c": Claim("With the scaling, the largest of ten weights stays under 0.30 for every d_k.", (FOURTH,)),
    "2": Claim("Dividing scores by sqrt(d_k) is a softmax at that temperature.", (FIRST, FOURTH)),
    "3a": Claim("Three tokens by hand: the third row of weights is (0.276, 0.276, 0.448).", (FOURTH,)),
    "3b": Claim("Three tokens by hand: the second row of the output is (1.98, 6.02).", (FOURTH,)),
    "4a": Claim("The same three tokens: the first row of weights is (0.39, 0.22, 0.39), as the prose says.", (FIFTH,)),
    "4b": Claim(
        "The same three tokens: the first row of weights is (0.401, 0.198, 0.401), as the program printed.", (FIFTH,)
    ),
    "5": Claim("In self-attention a token always pays the most attention to itself.", (FOURTH,)),
    "6": Claim("With Q = K = the identity of size 4 the diagonal is 0.355 and the rest 0.215.", (FIFTH,)),
    "7": Claim(
        "Under a causal mask the upper triangle is exactly 0, rows sum to 1 and position 0 attends only to itself.",
        (FIRST, SECOND, FOURTH),
    ),
    "8a": Claim("Filling masked scores with -1e9 is a safe way to mask.", (FIFTH,)),
    "8b": Claim("In fp16, -1e9 does not become an exact 0 after the softmax.", (FOURTH,)),
    "9": Claim(
        "No gradient flows through masked entries: softmax has derivative 0 where its score is -inf.", (SECOND,)
    ),
    "10": Claim("Attention of width 128 with 4 heads has 66,048 parameters.", (FIRST,)),
    "11a": Claim("One attention layer of GPT-2 small has 4 d^2 = 2,359,296 parameters, without biases.", (SECOND,)),
    "11b": Claim("GPT-2 small has 124 million parameters.", (SECOND,)),
    "11c": Claim("Scaled to 96 blocks of width 12,288 it is GPT-3, with 175 billion parameters.", (SECOND,)),
    "12": Claim(
        "Concatenating heads and projecting is the sum over heads of each head through its block of W_O.", (FOURTH,)
    ),
    "13a": Claim("Heads that share their projections compute the same thing: together they are one head.", (FOURTH,)),
    "13b": Claim("Such a model trains to the same loss as a single head that is as wide as all of them.", (FOURTH,)),
    "14a": Claim("The printed experiment: two heads drive the loss of two relations to near zero.", (FIFTH,)),
    "14b": Claim("One head cannot serve two relations at once, two heads can.", (FIFTH,)),
    "15a": Claim("Self-attention without positions is permutation-equivariant.", (FIFTH,)),
    "15b": Claim("Anagrams give the same multiset of output rows.", (FIFTH,)),
    "16a": Claim("A single attention layer without positions cannot learn to reverse a sequence.", (FIFTH,)),
    "16b": Claim("With learned positions it suddenly can.", (FIFTH,)),
    "17": Claim("Sinusoidal PE(pos + k) is a linear function of PE(pos).", (SECOND, THIRD)),
    "18a": Claim("Scores of rotary embeddings depend on the relative position alone.", (SECOND, THIRD)),
    "18b": Claim("Rotary embeddings let attention scores decay with distance.", (THIRD,)),
    "18c": Claim("Rotary embeddings generalise to longer sequences than were trained on.", (SECOND,)),
    "18d": Claim(
        "Rotary embeddings extend more gracefully to longer sequences than sinusoidal or learned positions.", (THIRD,)
    ),
    "19a": Claim("Doubling the length takes about 4 times as long.", (FIRST,)),
    "19b": Claim("The matrix of 128,000 tokens takes about 62 GB per head in fp32.", (FIRST,)),
    "20a": Claim(
        "Stored weights in fp16 for 16 heads and 32 layers: 0.2 GiB at 512 tokens to 16,384 GiB at 131,072.", (FIFTH,)
    ),
    "20b": Claim("The attention matrix of one of these layers takes 0.5 MiB at 512 tokens.", (FIFTH,)),
    "21a": Claim("On a CPU, attention is several times faster than an RNN at hundreds of tokens.", (FIFTH,)),
    "21b": Claim("The factors are 1.7, 4.4, 6.8 and 2.7 at 16, 64, 256 and 1,024 tokens.", (FIFTH,)),
    "22a": Claim("FlashAttention is mathematically identical to attention.", (THIRD, FIFTH)),
    "22b": Claim("It is 2 to 4 times faster; one of the texts says: often, on a GPU.", (THIRD, FIFTH)),
    "23a": Claim("Linear attention costs O(T d^2) instead of O(T^2 d).", (FIFTH,)),
    "23b": Claim("Linear attention is the fast-weight programmer of 1991 with a feature map.", (FIFTH,)),
    "24a": Claim("A row of softmax attention is one update of a modern Hopfield network.", (FIFTH,)),
    "24b": Claim("Its capacity grows exponentially with d, against 0.14 d of the classical network.", (FIFTH,)),
    "24c": Claim("The capacity of a modern Hopfield network is about exp(d/2) patterns.", (FIFTH,), "39.4.3"),
    "25a": Claim("Sparse and windowed attention scores a small part of the pairs.", (FIFTH,)),
    "25b": Claim("Sparse and windowed attention is a way to long contexts.", (FIFTH,)),
    "26a": Claim("Untrained heads already specialise: on the subject, the verb, the preposition.", (FIRST,)),
    "26b": Claim("Low cosine similarity of input and output confirms that attention does substantial work.", (FIRST,)),
    "27a": Claim("Trained models have positional heads, which attend to adjacent tokens.", (SECOND,)),
    "27b": Claim(
        "Trained models have syntactic heads, which connect a verb with its subject over any distance.", (SECOND,)
    ),
    "27c": Claim("Trained models have coreference heads, from a pronoun to what it stands for.", (SECOND,)),
    "27d": Claim("Trained models have copy heads, which attend to earlier copies of a token.", (SECOND,)),
    "28": Claim("Exposure bias: at generation time small errors compound.", (FOURTH,)),
    "29a": Claim("Layer norm works at batch size 1 and at any point in training.", (SECOND,)),
    "29b": Claim("Batch norm fails at batch size 1; an exercise says: at inference.", (SECOND,)),
    "30a": Claim("Most of the parameters of a transformer are in the feed-forward layers.", (SECOND,)),
    "30b": Claim("The feed-forward layers are where most factual knowledge lives.", (SECOND,)),
    "31": Claim("Three tokens by hand, not scaled: the third row of weights is (0.21, 0.21, 0.58).", (FOURTH,)),
    "32": Claim("RoPE is an operation after the softmax that commutes with the merging of heads.", (FOURTH,)),
    "33": Claim("With Q = K = the identity the diagonal gets sharper in a higher dimension.", (FIFTH,)),
    "34": Claim("With Q = K = the identity of size 4 each output row recovers the matching value row.", (FIFTH,)),
    "35": Claim("The same three tokens: the third row of weights is (0.27, 0.27, 0.46), as the prose says.", (FIFTH,)),
    "36": Claim("Without positions no depth, data or compute can tell anagrams apart.", (FIFTH,)),
    "37": Claim("Self-attention is permutation-invariant.", (SECOND,)),
    "38": Claim("q.k of d_k standard normal components has mean 0 and variance d_k.", (SECOND,)),
    "39a": Claim(
        "Without the division by sqrt(d_k), training breaks down; one text says: the model learns nothing.",
        (FIRST, FOURTH),
        "000: 2 and takeaways; 003: 2.3.2",
    ),
    "39b": Claim(
        "Attention without the division gives significantly worse results.",
        (FOURTH,),
        "2.3.2, tip",
    ),
    "39c": Claim(
        "Without the division, a layer of 512 dimensions has dot products in the hundreds.", (FOURTH,), "2.3.2"
    ),
    "40a": Claim(
        "Without residual connections and layer norm, training a stack of many layers is catastrophic.",
        (FIFTH,),
        "39.8",
    ),
    "40b": Claim(
        "Residual connections let gradients flow directly: without them, a deep stack does not train.",
        (SECOND,),
        "The transformer block",
    ),
    "40c": Claim(
        "Without feed-forward networks, stacked attention is essentially a stack of weighted averages.",
        (FIFTH,),
        "39.8",
    ),
    "41a": Claim(
        "In an RNN, information about token 1 often does not survive 99 updates of the state.",
        (SECOND,),
        "introduction",
    ),
    "41b": Claim("With attention, distance does not attenuate the signal.", (SECOND,), "Why RNNs hit a wall"),
    "41c": Claim(
        "Two tokens are O(T) steps apart in an RNN, O(1) in attention and O(log_k T) in convolutions of width k.",
        (FIRST, FIFTH),
        "000: 7; 004: 39.3",
    ),
    "42a": Claim("One fused projection to Q, K and V is equivalent to three separate ones.", (FIRST,), "6"),
    "42b": Claim("The fused projection is more efficient than three separate ones.", (FIRST,), "6"),
    "43": Claim("Eight heads of dimension 8 instead of one of dimension 64 are essentially free.", (FIFTH,), "39.7.1"),
    "44": Claim("The weights of an untrained head are reasonably uniform because of the scaling.", (FIFTH,), "39.5"),
    "45": Claim(
        "Three tokens by hand: the third output is a near-uniform mix of all three values.", (FOURTH,), "2.3.2"
    ),
    "46": Claim(
        "Softmax attention is linear attention with the feature map phi = exp and a normalisation.",
        (FIFTH,),
        "39.4.1",
    ),
    "47": Claim(
        "Twenty years after the fast weights of 1991, their equivalence was proved, in 2021.", (FIFTH,), "39.4"
    ),
    "48": Claim(
        "Heads trained to reverse a sequence differ: one reads forward, another backward, a third looks for the end.",
        (FIFTH,),
        "39.7",
    ),
}
"""All claims by number."""
