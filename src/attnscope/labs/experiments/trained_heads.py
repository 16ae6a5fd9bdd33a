"""What do the heads of a trained model do?

A head is free to look anywhere; nobody tells it where. After training, some heads of a language model look at places
that have a name: the token before, an earlier copy of the same token, the subject of a verb.

SmolLM2 has 30 layers of 9 heads. Each of the 270 is scored on a text, on random tokens that come twice, and on
sentences made for the purpose, and so are the heads of the same model with random weights. To look is not yet to
matter: what heads are for shows when they are switched off, beside as many others of the same layers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from attnscope.figures import grouped_bars, head_grid, lines
from attnscope.heads import (
    HeadTable,
    Sentence,
    Word,
    assign_labels,
    compare_with_random_heads,
    read_repeated_tokens,
    relation_table,
    repeated_token_ids,
    score_heads,
    score_relations,
)
from attnscope.labs import Lab, Measurement, Verdict, reference_text
from attnscope.models import Decoder
from attnscope.recording import Trace, read

KINDS = {
    "previous": "looks at the token before",
    "sink": "looks at the first token, whatever it is",
    "duplicate_probe": "looks at an earlier copy of the same token",
    "induction_probe": "looks behind an earlier copy: at what came next then",
}
HALF = 128  # random tokens of the probe before they come again


@lru_cache(maxsize=1)  # of one run: the weights are half a gigabyte
def model_of(lab: Lab) -> tuple[Decoder, Any]:
    """SmolLM2 and its tokenizer, loaded once a run."""
    model, tokenizer = lab.trained_model()
    assert isinstance(model, Decoder)
    return model, tokenizer


def text_ids(lab: Lab, count: int) -> Tensor:
    """Some tokens of the reference, from a place that the seed decides."""
    text = reference_text()
    start = int(torch.randint(len(text) - 20 * count, (), generator=torch.Generator().manual_seed(lab.seed)))
    return torch.tensor(model_of(lab)[1].encode(text[start : start + 20 * count])[:count])


def untrained(model: Decoder, seed: int) -> Decoder:
    """The same model before it has learned anything."""
    torch.manual_seed(seed)
    return Decoder(model.config).eval()


@lru_cache(maxsize=2)
def scores(lab: Lab, trained: bool) -> tuple[HeadTable, Trace]:
    """All heads, scored on a text and on random tokens that come twice; and the trace of the latter."""
    model, tokenizer = model_of(lab)
    model = model if trained else untrained(model, lab.seed)
    text = read(model, text_ids(lab, lab.choose(small=256, full=1_024)), tokenizer, progress=False)
    probe = read_repeated_tokens(model, tokenizer, length=HALF, seed=lab.seed, progress=False)
    on_random = score_heads(probe, progress=False)
    table = score_heads(text, probe=probe, progress=False)
    more = HeadTable(on_random.layers, on_random.heads, {"previous_random": on_random["previous"]})
    return table.join(more), probe


def named(table: HeadTable) -> str:
    """Heads as "18.6", layer and head, with commas between them."""
    return ", ".join(table.head_names)


def kinds_of_heads(lab: Lab) -> None:
    """First the scores: for each kind the three strongest heads, the strongest with how much of its weight goes there.

    On random tokens nothing can be predicted, so that meaning and grammar play no part; and when the tokens come again,
    nothing but looking back helps. The last column is the strongest of the 270 heads of the model with random weights:
    among so many, some are high by chance, and that is how high.
    """
    lab.step("scoring all heads, trained and untrained")
    (table, probe), (before, _) = scores(lab, True), scores(lab, False)
    rows = []
    for kind, meaning in KINDS.items():
        best = table.top(kind, 3)
        rows.append((meaning, named(best), float(best[kind][0]), float(before[kind].max())))
    lab.table(
        "Kinds of heads in SmolLM2",
        ("what it does", "strongest: layer.head", "weight there", "strongest without training"),
        rows,
    )
    best = [table.top(kind, 1) for kind in KINDS]
    pictures = [probe[one.layers[0]].batch(0).head(one.heads[0]) for one in best]
    names = [f"{kind.removesuffix('_probe')} {named(one)}" for kind, one in zip(KINDS, best, strict=True)]
    title = "Random tokens that come twice: four heads, four habits"
    drawing = head_grid(pictures, columns=4, labels=names, scale="log", title=title)
    lab.figure("kinds", drawing, "The strongest head of each kind on 128 random tokens and the same 128 once more.")


def loss_without(lab: Lab, chosen: HeadTable) -> tuple[float, float, float, float]:
    """The loss of the second half of the probe, its rise without the chosen heads, and without others: mean, most."""
    model, tokenizer = model_of(lab)
    ids = repeated_token_ids(model.config.vocab_size, HALF, seed=lab.seed, tokenizer=tokenizer)
    table, draws = scores(lab, True)[0], lab.choose(small=8, full=20)
    found = compare_with_random_heads(model, ids, chosen, table, num_draws=draws, seed=lab.seed, progress=False)
    others = found.random_changes[:, HALF:].mean(
        1
    )  # from the first token that can be known: the second of the second half
    return float(found.loss[HALF:].mean()), float(found.change[HALF:].mean()), float(others.mean()), float(others.max())


def whether_they_matter(lab: Lab) -> None:
    """The second time, SmolLM2 predicts random tokens about as well as plain text. Which heads make it so?

    All heads that give half of their weight to the token before are switched off together, and in another run all that
    look behind earlier copies (0.3 of their weight or more). Beside each stand as many other heads of the same layers,
    drawn several times. Heads that look behind copies are expected to matter. That those which look at the token before
    do is less plain: it is how a key gets to know what stood before it, which is what the others look for.
    """
    table, rows, rises = assign_labels(scores(lab, True)[0]), [], {}
    for label in ("previous", "induction"):
        lab.step(f"switching off heads: {label}")
        chosen = table.with_label(label)
        loss, rise, others, most = loss_without(lab, chosen)
        rises[label] = {"without them": rise, "without as many others": others}
        rows.append((label, named(chosen), loss, rise, others, most))
    lab.table(
        "Loss of random tokens the second time, in nats a token",
        ("heads", "layer.head", "loss with all", "rise without them", "without others, mean", "without others, most"),
        rows,
    )
    drawing = grouped_bars(rises, ylabel="rise of the loss (nats)", title="A few heads carry the copying")
    lab.figure("without", drawing, "What the loss of repeated tokens rises by when heads are switched off.")
    (*_, position, position_others, position_most), (*_, copy, _, copy_others) = rows
    (table, _), (before, _) = scores(lab, True), scores(lab, False)
    previous, anyway = table.top("previous", 1), float(before["previous"].max())
    on_random = float(previous["previous_random"][0])
    lab.decide(
        "27a",
        Verdict.HOLDS,
        f"Head {named(previous)} gives {float(previous['previous'][0]):.2f} of its weight to the token before, also "
        f"among random tokens ({on_random:.2f}), so it goes by position. Without such heads repeated tokens cost "
        f"{position:.1f} nats more, without as many others {position_others:.1f} on the average and "
        f"{position_most:.1f} at most.",
        Measurement(name="weight on the token before", value=float(previous["previous"][0]), low=0.6),
        Measurement(name="the same among random tokens", value=on_random, low=0.6),
        Measurement(name="strongest without training", value=anyway, high=0.2),
        Measurement(name="rise without them less that without others", value=position - position_others, low=1.0),
    )
    copying, duplicate = table.top("induction_probe", 1), table.top("duplicate_probe", 1)
    lab.decide(
        "27d",
        Verdict.HOLDS,
        f"Head {named(duplicate)} gives {float(duplicate['duplicate_probe'][0]):.2f} of its weight to the earlier copy "
        f"itself; head {named(copying)} gives {float(copying['induction_probe'][0]):.2f} to the token behind it, which "
        f"is what copies: without such heads repeated tokens cost {copy:.1f} nats more, without others at most "
        f"{copy_others:.1f}.",
        Measurement(name="weight on the copy", value=float(duplicate["duplicate_probe"][0]), low=0.4),
        Measurement(name="weight behind the copy", value=float(copying["induction_probe"][0]), low=0.7),
        Measurement(name="rise without them less that without others", value=copy - copy_others, low=3.0),
    )


@lru_cache(maxsize=2)
def relations(lab: Lab, trained: bool) -> HeadTable:
    """Which heads look from a verb to its subject, and from a pronoun to its person."""
    model, tokenizer = model_of(lab)
    model = model if trained else untrained(model, lab.seed)
    return relation_table(score_relations(model, tokenizer, progress=False))


def sentence(text: str, looking: str, target: str, distractor: str, group: int) -> Sentence:
    """A sentence with three of its words marked, each of which stands between spaces, and once."""
    starts = {word: text.index(f" {word} ") + 1 for word in (looking, target, distractor)}
    marks = {word: Word(start, start + len(word)) for word, start in starts.items()}
    return Sentence(text, marks[looking], marks[target], marks[distractor], group)


LINKS = ("of", "from", "with", "by", "in", "under", "behind", "beside")
KNOWN_AS = ("old", "small", "long", "wide", "far", "red", "quiet", "warm")
FILLERS = ("man", "town", "name", "river", "north", "wall", "garden", "road")
SUBJECTS = (
    *(("key", "is", "are"), ("lamp", "was", "were"), ("boat", "has", "have")),
    *(("bag", "needs", "need"), ("song", "seems", "seem"), ("horse", "looks", "look")),
)
"""A noun, and a verb for one and for several. One group has one of the noun and several of the next, the next group
several of it and one of the next but one, and so on."""


def sentences_over(count: int) -> list[Sentence]:
    """Subject and verb with so many fillers between them; another noun of the kind stands nearer, or farther."""
    fillers = [f"{LINKS[at % 8]} the {KNOWN_AS[(at + at // 8) % 8]} {FILLERS[at * 3 % 8]}" for at in range(count)]
    between, found = " ".join(fillers), []
    for group, (noun, *verbs) in enumerate(SUBJECTS):
        many = group % 2
        subject, verb = noun + "s" * many, verbs[many]
        other = SUBJECTS[(group + 1) % len(SUBJECTS)][0] + "s" * (1 - many)
        for text in (
            f"I think the {subject} {between} near the {other} {verb} new.",
            f"I like the {other} because the {subject} {between} {verb} new.",
        ):
            found.append(sentence(text, verb, subject, other, group))
    return found


def from_verb_to_subject(lab: Lab) -> None:
    """A verb and its subject belong together, and another noun may stand between them.

    The score is the weight on the subject less that on the other noun. In the sentences that it comes from, the two
    trade places, so that looking at a distance or at the nearest noun gains nothing. Then the distance grows: one
    filler after the other ("of the old man"), each with a noun of its own, comes behind the subject.
    """
    lab.step("verbs and their subjects")
    table, before = relations(lab, True), relations(lab, False)
    best = table.top("agreement", 3)
    model, tokenizer = model_of(lab)
    counts = lab.choose(small=(1, 4, 16, 64), full=(1, 2, 4, 8, 16, 32, 64, 128))
    found = score_relations(
        model, tokenizer, sentences={f"{count}": sentences_over(count) for count in counts}, progress=False
    )
    curves = {
        named(best.rows([at])): [float(found[f"{count}"][layer].preference[head]) for count in counts]
        for at, (layer, head) in enumerate(zip(best.layers, best.heads, strict=True))
    }
    lab.table(
        "Weight on the subject less that on the other noun",
        ("layer.head", "short sentences", *(f"fillers between: {count}" for count in counts)),
        [(name, float(best["agreement"][at]), *curve) for at, (name, curve) in enumerate(curves.items())],
        note=f"The strongest of the heads without training, in short sentences: {float(before['agreement'].max()):.3f}",
    )
    drawing = lines(
        counts,
        curves,
        xlabel="fillers between subject and verb, four words each",
        ylabel="weight on subject less on other noun",
        title="The look from verb to subject fades with distance",
        log_x=True,
    )
    lab.figure("subjects", drawing, "The three strongest heads from a verb to its subject, over growing distance.")
    strongest, error = float(best["agreement"][0]), float(best["agreement_error"][0])
    near, far = (max(curve[at] for curve in curves.values()) for at in (0, -1))
    lab.decide(
        "27b",
        Verdict.HOLDS_WHEN,
        f"In short sentences head {named(best.rows([0]))} gives the subject {strongest:.2f} more weight than another "
        f"noun ({strongest / error:.0f} standard errors). The best of three such heads has {near:.2f} over one filler, "
        f"and {far:.2f} over {counts[-1]}.",
        Measurement(name="preference for the subject", value=strongest, low=0.4),
        Measurement(name="in standard errors", value=strongest / error, low=5),
        Measurement(name="strongest without training", value=float(before["agreement"].max()), high=0.05),
        Measurement(name="over the longest distance, of that over the shortest", value=far / near, high=0.5),
        condition="subject and verb are dozens of words apart at most, not hundreds",
    )


TWINS = (
    "The trophy did not fit into the suitcase because it was too {}.",
    ("big", "small"),  # the trophy is too big, the suitcase too small
)


def sentences_with_it() -> list[Sentence]:
    """One thing and several: "it" can stand for the one only, "they" for the others."""
    found = []
    for group, (one, *_) in enumerate(SUBJECTS):
        many = SUBJECTS[(group + 1) % len(SUBJECTS)][0] + "s"
        for first, second in ((one, many), (many, one)):
            start = f"Today the {first} stood near the {second} because"
            found.append(sentence(f"{start} it was old.", "it", one, many, group))
            found.append(sentence(f"{start} they were old.", "they", many, one, group))
    return found


def from_pronoun_to_person(lab: Lab) -> None:
    """A pronoun stands for somebody who was named before, and somebody else was named, too.

    In the sentences for "she" and "he" a woman and a man are named, in either order; in those for "it" and "they" one
    thing and several. Then a pair of twins, in which only a later word tells what is meant: the trophy is too big, the
    suitcase is too small. A model that reads from left to right has not seen that word when it reads "it", so its
    weights there are the same in both, and no head of it can be right in both.

    A head that goes by gender, or by number, would do as well in the first two: that it finds who is meant does not say
    how.
    """
    lab.step("pronouns")
    table, before = relations(lab, True), relations(lab, False)
    model, tokenizer = model_of(lab)
    things = relation_table(score_relations(model, tokenizer, sentences={"it": sentences_with_it()}, progress=False))
    frame, ends = TWINS
    trace = read(model, torch.tensor([tokenizer.encode(frame.format(end)) for end in ends]), tokenizer, progress=False)
    at = tokenizer.encode(frame).index(tokenizer.encode(" it")[0])
    weights = [trace[name][..., at : at + 1, :] for name in trace]  # (twins, heads, 1, keys)
    differ = max(float((one - other).abs().max()) for one, other in weights)
    best, best_things = table.top("coreference", 3), things.top("it", 3)
    rows = [("she, he", named(best), float(best["coreference"][0]), float(best["coreference_error"][0]))]
    rows.append(("it, they", named(best_things), float(best_things["it"][0]), float(best_things["it_error"][0])))
    lab.table(
        "Weight on who is meant less that on who is not",
        ("pronoun", "strongest: layer.head", "preference of the first", "standard error"),
        rows,
        note=f"The strongest without training, she and he: {float(before['coreference'].max()):.3f}. "
        f"Largest difference of any weight of 'it' between the twins: {differ:.1g}.",
    )
    strongest, error = rows[0][2], rows[0][3]
    lab.decide(
        "27c",
        Verdict.HOLDS_WHEN,
        f"From she and he, head {named(best.rows([0]))} gives {strongest:.2f} more weight to the person who is meant "
        f"than to the other ({strongest / error:.0f} standard errors). Where only a later word tells what is meant, "
        "the weights of the pronoun cannot tell, since they are the same either way.",
        Measurement(name="preference for the person who is meant", value=strongest, low=0.15),
        Measurement(name="in standard errors", value=strongest / error, low=5),
        Measurement(name="strongest without training", value=float(before["coreference"].max()), high=0.05),
        Measurement(name="twins: difference of the weights of the pronoun", value=differ, high=1e-4),
        condition="the pronoun and what stands before it tell who is meant",
    )


PARTS = (kinds_of_heads, whether_they_matter, from_verb_to_subject, from_pronoun_to_person)
