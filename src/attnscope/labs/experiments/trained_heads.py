"""Heads of a trained model

This lab shows you how to find previous-token, induction, subject-verb and coreference heads in a trained model, and
how to test whether they matter by ablating them.

SmolLM2 has 30 layers of 9 heads. Each of the 270 heads is scored on a text, on the repeated-token probe, and on
built-in sentences. The heads of a randomly initialised copy are scored too, as a baseline. A high score does not show
that a head matters. For that, the lab ablates heads with a label and compares the loss with ablating as many other
heads of the same layers. Induction heads are described by [Olsson et al., 2022](https://arxiv.org/abs/2209.11895).
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
    "previous": "attends to the previous token",
    "sink": "attends to the first token",
    "duplicate_probe": "attends to an earlier copy of the token",
    "induction_probe": "attends to the token after an earlier copy",
}
HALF = 128  # tokens in each half of the probe


@lru_cache(maxsize=1)  # the parameters of a run take half a gigabyte
def load_model(lab: Lab) -> tuple[Decoder, Any]:
    """Load SmolLM2 and its tokenizer, once per run."""
    model, tokenizer = lab.trained_model()
    assert isinstance(model, Decoder)
    return model, tokenizer


def text_ids(lab: Lab, count: int) -> Tensor:
    """Return some tokens of the reference text, from a position that depends on the seed."""
    text = reference_text()
    start = int(torch.randint(len(text) - 20 * count, (), generator=torch.Generator().manual_seed(lab.seed)))
    return torch.tensor(load_model(lab)[1].encode(text[start : start + 20 * count])[:count])


def random_baseline(model: Decoder, seed: int) -> Decoder:
    """Return a randomly initialised copy of a model."""
    torch.manual_seed(seed)
    return Decoder(model.config).eval()


@lru_cache(maxsize=2)
def score_all_heads(lab: Lab, trained: bool) -> tuple[HeadTable, Trace]:
    """Score all heads on a text and on the repeated-token probe; return the scores and the trace of the probe."""
    model, tokenizer = load_model(lab)
    model = model if trained else random_baseline(model, lab.seed)
    text = read(model, text_ids(lab, lab.choose(small=256, full=1_024)), tokenizer, progress=False)
    probe = read_repeated_tokens(model, tokenizer, length=HALF, seed=lab.seed, progress=False)
    on_random = score_heads(probe, progress=False)
    table = score_heads(text, probe=probe, progress=False)
    more = HeadTable(on_random.layers, on_random.heads, {"previous_random": on_random["previous"]})
    return table.join(more), probe


def head_names(table: HeadTable) -> str:
    """Return heads as "18.6", layer and head, separated by commas."""
    return ", ".join(table.head_names)


def head_scores(lab: Lab) -> None:
    """For each score, the table lists the three strongest heads, and the score of the strongest.

    The repeated-token probe consists of 128 random tokens, twice. Random tokens cannot be predicted from meaning or
    grammar, so in the second half only attention to the first half helps. The last column is the strongest of the 270
    heads of the randomly initialised copy: how high a score can be by chance among so many.
    """
    lab.step("scoring all heads, trained and random")
    (table, probe), (before, _) = score_all_heads(lab, True), score_all_heads(lab, False)
    rows = []
    for kind, meaning in KINDS.items():
        best = table.top(kind, 3)
        rows.append((meaning, head_names(best), float(best[kind][0]), float(before[kind].max())))
    lab.table(
        "Head scores in SmolLM2",
        ("behaviour", "strongest: layer.head", "score", "strongest at random initialisation"),
        rows,
    )
    best = [table.top(kind, 1) for kind in KINDS]
    pictures = [probe[one.layers[0]].batch(0).head(one.heads[0]) for one in best]
    names = [f"{kind.removesuffix('_probe')} {head_names(one)}" for kind, one in zip(KINDS, best, strict=True)]
    title = "Four heads on the repeated-token probe"
    drawing = head_grid(pictures, columns=4, labels=names, scale="log", title=title)
    lab.figure(
        "kinds", drawing, "The attention pattern of the strongest head of each score on the repeated-token probe."
    )


def ablation_losses(lab: Lab, chosen: HeadTable) -> tuple[float, float, float, float]:
    """Return the loss on the second half of the probe, its change by ablating the heads, and by ablating others: mean,
    maximum.
    """
    model, tokenizer = load_model(lab)
    ids = repeated_token_ids(model.config.vocab_size, HALF, seed=lab.seed, tokenizer=tokenizer)
    table, draws = score_all_heads(lab, True)[0], lab.choose(small=8, full=20)
    found = compare_with_random_heads(model, ids, chosen, table, num_draws=draws, seed=lab.seed, progress=False)
    others = found.random_changes[:, HALF:].mean(1)  # from the first predictable token: the second of the second half
    return float(found.loss[HALF:].mean()), float(found.change[HALF:].mean()), float(others.mean()), float(others.max())


def ablation_of_heads(lab: Lab) -> None:
    """In the second half of the probe, SmolLM2 predicts random tokens about as well as plain text. Which heads are
    responsible?

    All previous-token heads (at least half of their weight on the previous token) are ablated together, and in another
    run all induction heads (at least 0.3 on the token after an earlier copy). Each is compared with several random
    draws of as many other heads of the same layers. Induction heads copy, so they should matter. Previous-token heads
    should matter too: they write into each key which token precedes it, and induction heads look for that.
    """
    table, rows, rises = assign_labels(score_all_heads(lab, True)[0]), [], {}
    for label in ("previous", "induction"):
        lab.step(f"ablating heads: {label}")
        chosen = table.with_label(label)
        loss, rise, others, most = ablation_losses(lab, chosen)
        rises[label] = {"ablated": rise, "as many others ablated": others}
        rows.append((label, head_names(chosen), loss, rise, others, most))
    lab.table(
        "Loss on the second half of the probe, in nats per token",
        (
            "label",
            "layer.head",
            "loss with all",
            "change if ablated",
            "change of others, mean",
            "change of others, maximum",
        ),
        rows,
    )
    drawing = grouped_bars(rises, ylabel="change of the loss (nats)", title="A few heads are responsible for copying")
    lab.figure("without", drawing, "Change of the loss on repeated tokens when heads are ablated.")
    (*_, position, position_others, position_most), (*_, copy, _, copy_others) = rows
    (table, _), (before, _) = score_all_heads(lab, True), score_all_heads(lab, False)
    previous, anyway = table.top("previous", 1), float(before["previous"].max())
    on_random = float(previous["previous_random"][0])
    lab.decide(
        "27a",
        Verdict.HOLDS,
        f"Head {head_names(previous)} gives {float(previous['previous'][0]):.2f} of its weight to the previous token, "
        f"also in random tokens ({on_random:.2f}), so it depends on the position. Ablating such heads raises the loss "
        f"on repeated tokens by {position:.1f} nats; ablating as many others raises it by {position_others:.1f} on "
        f"average and by {position_most:.1f} at most.",
        Measurement(name="weight on the previous token", value=float(previous["previous"][0]), low=0.6),
        Measurement(name="the same in random tokens", value=on_random, low=0.6),
        Measurement(name="strongest at random initialisation", value=anyway, high=0.2),
        Measurement(name="change if ablated, minus that of others", value=position - position_others, low=1.0),
    )
    copying, duplicate = table.top("induction_probe", 1), table.top("duplicate_probe", 1)
    lab.decide(
        "27d",
        Verdict.HOLDS,
        f"Head {head_names(duplicate)} gives {float(duplicate['duplicate_probe'][0]):.2f} of its weight to the earlier "
        f"copy; head {head_names(copying)} gives {float(copying['induction_probe'][0]):.2f} to the token after it, "
        f"which is what copying needs: ablating such heads raises the loss on repeated tokens by {copy:.1f} nats, "
        f"ablating others by at most {copy_others:.1f}.",
        Measurement(name="weight on the copy", value=float(duplicate["duplicate_probe"][0]), low=0.4),
        Measurement(name="weight on the token after the copy", value=float(copying["induction_probe"][0]), low=0.7),
        Measurement(name="change if ablated, minus that of others", value=copy - copy_others, low=3.0),
    )


@lru_cache(maxsize=2)
def relation_scores(lab: Lab, trained: bool) -> HeadTable:
    """Score all heads on subject-verb agreement and coreference."""
    model, tokenizer = load_model(lab)
    model = model if trained else random_baseline(model, lab.seed)
    return relation_table(score_relations(model, tokenizer, progress=False))


def mark_sentence(text: str, looking: str, target: str, distractor: str, group: int) -> Sentence:
    """Return a sentence with three words marked; each occurs once, between spaces."""
    starts = {word: text.index(f" {word} ") + 1 for word in (looking, target, distractor)}
    marks = {word: Word(start, start + len(word)) for word, start in starts.items()}
    return Sentence(text, marks[looking], marks[target], marks[distractor], group)


HELD_OUT_NOUNS = (
    ("Perhaps", "beyond", "He sold", "once", "bridge", "tower"),
    ("Somehow", "around", "They moved", "although", "clock", "mirror"),
    ("By chance", "opposite", "We drew", "before", "ship", "island"),
    ("Of late", "outside", "You lost", "unless", "coat", "ticket"),
    ("As always", "who thanked", "She knows", "only when", "pilot", "judge"),
    ("He feels", "that fed", "They heard", "long after", "monkey", "rabbit"),
    ("Nowadays", "who warned", "We joined", "not because", "uncle", "baker"),
    ("People think", "who hired", "I trust", "ever since", "painter", "waiter"),
)
HELD_OUT_VERBS = (
    ("seems", "seem", "ready"),
    ("remains", "remain", "outside"),
    ("does", "do", "well"),
    ("comes", "come", "later"),
)
HELD_OUT_PEOPLE = (
    ("Two days ago {} visited {} at work because {} had a question.", ("Grace", "Oliver"), ("she", "he")),
    ("During the trip {} waited for {} after {} lost a shoe.", ("Sophie", "Louis"), ("she", "he")),
    ("At the market {} paid {} when {} asked for it.", ("Amy", "Steven"), ("she", "he")),
    ("One winter {} taught {} to ski near {} old house.", ("Olivia", "Victor"), ("her", "his")),
    ("Before noon {} showed {} the plan for {} garden.", ("Irene", "Arthur"), ("her", "his")),
    ("By the lake {} left {} alone since {} was tired.", ("Eva", "Philip"), ("she", "he")),
)
"""Sentences with nouns, names and frames that the built-in ones do not contain, balanced in the same way."""


def held_out_sentences() -> dict[str, list[Sentence]]:
    """Return 32 sentences for agreement and 24 for coreference, in groups of four."""
    agreement, coreference = [], []
    for group, (before, link, behind, conjunction, *both) in enumerate(HELD_OUT_NOUNS):
        *verbs, end = HELD_OUT_VERBS[group % len(HELD_OUT_VERBS)]
        nouns = [(noun + "s" * many, many) for noun, many in zip(both, divmod(group % 4, 2), strict=True)]
        for (subject, many), (other, _) in (nouns, nouns[::-1]):
            for text in (
                f"{before} the {subject} {link} the {other} {verbs[many]} {end}.",
                f"{behind} the {other} {conjunction} the {subject} {verbs[many]} {end}.",
            ):
                agreement.append(mark_sentence(text, verbs[many], subject, other, group))
    for group, (frame, people, pronouns) in enumerate(HELD_OUT_PEOPLE):
        for first, second in (people, people[::-1]):
            for person, other, pronoun in ((*people, pronouns[0]), (*people[::-1], pronouns[1])):
                text = frame.format(first, second, pronoun)
                coreference.append(mark_sentence(text, pronoun, person, other, group))
    return {"agreement": agreement, "coreference": coreference}


@lru_cache(maxsize=1)
def held_out_scores(lab: Lab) -> HeadTable:
    """Score all heads on the held-out sentences."""
    return relation_table(score_relations(*load_model(lab), sentences=held_out_sentences(), progress=False))


def held_out_score(lab: Lab, best: HeadTable, relation: str) -> tuple[float, float, int]:
    """Return the preference of the first head of a table in held-out sentences, its standard error, and its rank."""
    table = held_out_scores(lab)
    at = [*zip(table.layers, table.heads, strict=True)].index((best.layers[0], best.heads[0]))
    score = float(table[relation][at])
    return score, float(table[f"{relation}_error"][at]), 1 + int((table[relation] > score).sum())


LINKS = ("of", "from", "with", "by", "in", "under", "behind", "beside")
KNOWN_AS = ("old", "small", "long", "wide", "far", "red", "quiet", "warm")
FILLERS = ("man", "town", "name", "river", "north", "wall", "garden", "road")
SUBJECTS = (
    *(("key", "is", "are"), ("lamp", "was", "were"), ("boat", "has", "have")),
    *(("bag", "needs", "need"), ("song", "seems", "seem"), ("horse", "looks", "look")),
)
"""A noun, and its verb in singular and plural. Groups alternate between singular and plural subjects; the other noun
has the other number."""


def sentences_with_fillers(count: int) -> list[Sentence]:
    """Return sentences with this many fillers between subject and verb, and another noun nearer or farther."""
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
            found.append(mark_sentence(text, verb, subject, other, group))
    return found


def subject_verb_heads(lab: Lab) -> None:
    """A subject-verb head attends from a verb to its subject, even if another noun is in between.

    The score is the weight on the subject minus that on the other noun. In the built-in sentences, the two swap
    positions, so attending to a fixed distance or to the nearest noun gains nothing. The best of 270 heads is chosen on
    these sentences, so its score there is too high on average. It is therefore scored again on held-out sentences, with
    other nouns, verbs and frames. Then the distance grows: fillers such as "of the old man", each with its own noun,
    are inserted after the subject.
    """
    lab.step("subject-verb agreement")
    table, before = relation_scores(lab, True), relation_scores(lab, False)
    best = table.top("agreement", 3)
    model, tokenizer = load_model(lab)
    counts = lab.choose(small=(1, 4, 16, 64), full=(1, 2, 4, 8, 16, 32, 64, 128))
    found = score_relations(
        model, tokenizer, sentences={f"{count}": sentences_with_fillers(count) for count in counts}, progress=False
    )
    curves = {
        head_names(best.rows([at])): [float(found[f"{count}"][layer].preference[head]) for count in counts]
        for at, (layer, head) in enumerate(zip(best.layers, best.heads, strict=True))
    }
    lab.table(
        "Weight on the subject minus that on the other noun",
        ("layer.head", "short sentences", *(f"fillers: {count}" for count in counts)),
        [(name, float(best["agreement"][at]), *curve) for at, (name, curve) in enumerate(curves.items())],
        note=f"The strongest head at random initialisation, in short sentences: {float(before['agreement'].max()):.3f}",
    )
    drawing = lines(
        counts,
        curves,
        xlabel="fillers between subject and verb, four words each",
        ylabel="weight on subject minus other noun",
        title="Attention from verb to subject fades with distance",
        log_x=True,
    )
    lab.figure("subjects", drawing, "The three strongest subject-verb heads at growing distance.")
    strongest, error = float(best["agreement"][0]), float(best["agreement_error"][0])
    near, far = (max(curve[at] for curve in curves.values()) for at in (0, -1))
    held_out, held_out_error, rank = held_out_score(lab, best, "agreement")
    lab.decide(
        "27b",
        Verdict.HOLDS_WHEN,
        f"In short sentences head {head_names(best.rows([0]))} gives the subject {strongest:.2f} more weight than "
        f"another noun ({strongest / error:.0f} standard errors). In held-out sentences it is {held_out:.2f} ± "
        f"{held_out_error:.2f}, which is rank {rank} of {len(table.layers)}. The best of three such heads has "
        f"{near:.2f} with one filler, and {far:.2f} with {counts[-1]}.",
        Measurement(name="preference for the subject", value=strongest, low=0.4),
        Measurement(name="in standard errors", value=strongest / error, low=5),
        Measurement(name="strongest at random initialisation", value=float(before["agreement"].max()), high=0.05),
        Measurement(name="preference in held-out sentences", value=held_out, low=0.4),
        Measurement(name="held out, in standard errors", value=held_out / held_out_error, low=5),
        Measurement(name="rank in held-out sentences", value=rank, high=3),
        Measurement(name="longest distance / shortest distance", value=far / near, high=0.5),
        condition="subject and verb are at most dozens of words apart, not hundreds",
    )


WINOGRAD = (
    "The trophy did not fit into the suitcase because it was too {}.",
    ("big", "small"),  # the trophy is too big, the suitcase too small
)


def sentences_with_it() -> list[Sentence]:
    """Return sentences with one thing and several things, so that "it" or "they" can refer to only one of them."""
    found = []
    for group, (one, *_) in enumerate(SUBJECTS):
        many = SUBJECTS[(group + 1) % len(SUBJECTS)][0] + "s"
        for first, second in ((one, many), (many, one)):
            start = f"Today the {first} stood near the {second} because"
            found.append(mark_sentence(f"{start} it was old.", "it", one, many, group))
            found.append(mark_sentence(f"{start} they were old.", "they", many, one, group))
    return found


def coreference_heads(lab: Lab) -> None:
    """A coreference head attends from a pronoun to the noun that it refers to, and not to another candidate.

    The sentences for "she" and "he" name a woman and a man, in either order; those for "it" and "they" name one thing
    and several. The lab also reads a Winograd pair ([Levesque et al.,
    2012](https://cdn.aaai.org/ocs/4492/4492-21843-1-PB.pdf)), in which only a later word decides: the trophy is too
    big, the suitcase is too small. A causal model has not seen that word when it reads "it". So the weights of "it" are
    the same in both sentences, and no head can be right in both.

    The head for "she" and "he" is chosen among 270 on the built-in sentences, and scored again on held-out sentences
    with other names and frames.

    A head that uses gender or number would also score high on the first two kinds. The score shows that a head finds
    the referent, not how.
    """
    lab.step("pronouns")
    table, before = relation_scores(lab, True), relation_scores(lab, False)
    model, tokenizer = load_model(lab)
    things = relation_table(score_relations(model, tokenizer, sentences={"it": sentences_with_it()}, progress=False))
    frame, ends = WINOGRAD
    trace = read(model, torch.tensor([tokenizer.encode(frame.format(end)) for end in ends]), tokenizer, progress=False)
    at = tokenizer.encode(frame).index(tokenizer.encode(" it")[0])
    weights = [trace[name][..., at : at + 1, :] for name in trace]  # (sentences, heads, 1, keys)
    differ = max(float((one - other).abs().max()) for one, other in weights)
    best, best_things = table.top("coreference", 3), things.top("it", 3)
    rows = [("she, he", head_names(best), float(best["coreference"][0]), float(best["coreference_error"][0]))]
    rows.append(("it, they", head_names(best_things), float(best_things["it"][0]), float(best_things["it_error"][0])))
    lab.table(
        "Weight on the referent minus that on the other noun",
        ("pronoun", "strongest: layer.head", "preference of the first", "standard error"),
        rows,
        note=f"The strongest head at random initialisation, she and he: {float(before['coreference'].max()):.3f}. "
        f"Largest difference of any weight of 'it' in the Winograd pair: {differ:.1g}.",
    )
    strongest, error = rows[0][2], rows[0][3]
    held_out, held_out_error, rank = held_out_score(lab, best, "coreference")
    lab.decide(
        "27c",
        Verdict.HOLDS_WHEN,
        f"From she and he, head {head_names(best.rows([0]))} gives {strongest:.2f} more weight to the referent "
        f"than to the other ({strongest / error:.0f} standard errors). In held-out sentences it is {held_out:.2f} ± "
        f"{held_out_error:.2f}, which is rank {rank} of {len(table.layers)}. Where only a later word decides, the "
        "weights of the pronoun are the same in both cases.",
        Measurement(name="preference for the referent", value=strongest, low=0.15),
        Measurement(name="in standard errors", value=strongest / error, low=5),
        Measurement(name="strongest at random initialisation", value=float(before["coreference"].max()), high=0.05),
        Measurement(name="preference in held-out sentences", value=held_out, low=0.15),
        Measurement(name="held out, in standard errors", value=held_out / held_out_error, low=4),
        Measurement(name="rank in held-out sentences", value=rank, high=3),
        Measurement(name="Winograd pair: difference of the weights of the pronoun", value=differ, high=1e-4),
        condition="the pronoun and the text before it determine the referent",
    )


PARTS = (head_scores, ablation_of_heads, subject_verb_heads, coreference_heads)
