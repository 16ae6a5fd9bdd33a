"""Template sentences with two related words: a verb and its subject, a pronoun and the person it refers to.

In: nothing. Out: short English sentences, each with three marked words: the query, its target, and a distractor of the
same kind. In each group, target and distractor swap places and words at the same distances. A head that attends to a
fixed distance, to an end of the sentence, to the nearest noun, to a certain word, to plurals or to women therefore
scores +x in one half of a group and -x in the other. Distances in tokens are equal if "near" and "because" are one
token each, as in common vocabularies.
Does not know: models, tokens. Memory: a few kilobytes.
"""

from __future__ import annotations

from itertools import product
from string import Formatter
from typing import NamedTuple


class Word(NamedTuple):
    """The place of a word in a text: `text[start:end]`."""

    start: int
    end: int


class Sentence(NamedTuple):
    """A sentence for `score_relations`."""

    text: str  #: the sentence
    query: Word  #: the word that attends, such as a verb
    target: Word  #: the word it should attend to, such as its subject
    distractor: Word  #: another word of the same kind
    group: int  #: the number of the balanced group it belongs to


# "I think the key near the doors ..." and "I like the doors because the key ...": the start of each, what is between
# the nouns, with equal numbers of words, and the nouns. Groups share no frames and no nouns: the effect of one comma or
# preposition would be the same in all groups, and look like a result with a small standard error.
NOUN_GROUPS = (
    ("I think", "near", "I like", "because", "key", "door"),
    ("Right now", "behind", "We left", "when", "lamp", "book"),
    ("They say", "under", "You see", "since", "car", "tree"),
    ("We know", "by", "They built", "where", "boat", "house"),
    ("Last year", "with", "He took", "while", "bag", "ring"),
    ("You know", "above", "She painted", "though", "picture", "chair"),
    ("At night", "below", "They closed", "if", "shop", "window"),
    ("She said", "beside", "I watched", "until", "horse", "dog"),
    ("Of course", "without", "We wanted", "but", "room", "bed"),
    ("He thinks", "inside", "She opened", "so", "letter", "bottle"),
    ("In fact", "against", "I moved", "and", "desk", "wall"),
    ("I believe", "for", "He wrote", "as", "song", "poem"),
    ("I guess", "who saw", "I met", "just because", "boy", "teacher"),
    ("These days", "that met", "We like", "even though", "girl", "farmer"),
    ("They know", "who called", "You saw", "and then", "doctor", "student"),
    ("He said", "who helped", "She called", "so that", "driver", "friend"),
    ("We hope", "that found", "I know", "now that", "brother", "guest"),
    ("Back then", "who knew", "They paid", "only because", "king", "soldier"),
    ("You say", "that left", "We asked", "even when", "worker", "player"),
    ("She thinks", "who heard", "He heard", "but then", "singer", "writer"),
    ("In time", "that followed", "I followed", "as if", "cat", "bird"),
    ("I knew", "who taught", "You teach", "even if", "sister", "neighbor"),
    ("By now", "who paid", "They want", "and now", "artist", "lawyer"),
    ("It seems", "that wanted", "She visited", "just when", "actor", "nurse"),
)
# Singular, plural, and the end of the sentence; groups use them in turn.
VERBS = (
    ("is", "are", "here again"),
    ("was", "were", "very old"),
    ("has", "have", "changed"),
    ("looks", "look", "nice"),
    ("needs", "need", "help"),
)
NUMBERS = ((0, 1), (0, 0), (1, 0), (1, 1))

# Only the pronoun decides who is meant. No name comes first, because many heads attend to the first token.
PRONOUN_FRAMES = (
    ("Yesterday {first} met {second} in the garden because {pronoun} wanted to talk.", ("she", "he")),
    ("Last week {first} wrote to {second} because {pronoun} needed help.", ("she", "he")),
    ("In the evening {first} called {second} before {pronoun} went home.", ("she", "he")),
    ("Today {first} saw {second} at the station while {pronoun} was waiting.", ("she", "he")),
    ("At school {first} sat with {second} until {pronoun} had to leave.", ("she", "he")),
    ("This morning {first} thanked {second} because {pronoun} mother was ill.", ("her", "his")),
    ("On Monday {first} drove {second} to the sea in {pronoun} new car.", ("her", "his")),
    ("After lunch {first} told {second} a story about {pronoun} old school.", ("her", "his")),
)
# Each name is in one group only, like the nouns.
WOMEN = (
    *("Anna", "Mary", "Sarah", "Emma", "Alice", "Laura", "Jane", "Lucy", "Kate", "Helen", "Julia", "Maria"),
    *("Lisa", "Rachel", "Susan", "Rose", "Emily", "Linda", "Karen", "Nancy", "Diana", "Clara", "Ruth", "Martha"),
)
MEN = (
    *("Peter", "John", "David", "Tom", "Paul", "James", "Mark", "George", "Henry", "Jack", "Robert", "Simon"),
    *("Daniel", "Adam", "Martin", "Frank", "William", "Eric", "Kevin", "Brian", "Richard", "Charles"),
    *("Michael", "Thomas"),
)


def agreement() -> list[Sentence]:
    """Return 96 sentences in 24 groups of four: either noun is the subject, before or after the other noun.

    In half of the groups both nouns have the same number. A head that only matches the number of the verb finds the
    target in the other half, and scores at most 0.5.

    >>> [sentence.text for sentence in agreement()[:2]]
    ['I think the key near the doors is here again.', 'I like the doors because the key is here again.']
    """
    sentences = []
    for group, (before, link, behind, conjunction, *both) in enumerate(NOUN_GROUPS):
        singular, plural, end = VERBS[group % len(VERBS)]
        nouns = [noun + "s" * many for noun, many in zip(both, NUMBERS[group % len(NUMBERS)], strict=True)]
        frames = (
            f"{before} the {{subject}} {link} the {{other}}",
            f"{behind} the {{other}} {conjunction} the {{subject}}",
        )
        for (subject, other), frame in product((nouns, nouns[::-1]), frames):
            words = {"subject": subject, "other": other, "verb": plural if subject.endswith("s") else singular}
            sentences.append(_sentence(f"{frame} {{verb}} {end}.", words, ("verb", "subject", "other"), group))
    return sentences


def coreference() -> list[Sentence]:
    """Return 96 sentences in 24 groups of four: either person is named first, and either is the referent.

    >>> [sentence.text for sentence in coreference()[:2]]
    ['Yesterday Anna met Peter in the garden because she wanted to talk.',
     'Yesterday Anna met Peter in the garden because he wanted to talk.']
    """
    sentences = []
    for group, (woman, man) in enumerate(zip(WOMEN, MEN, strict=True)):
        frame, pronouns = PRONOUN_FRAMES[group % len(PRONOUN_FRAMES)]
        for woman_first, is_man in product((True, False), (0, 1)):
            first, second = (woman, man) if woman_first else (man, woman)
            words = {"first": first, "second": second, "pronoun": pronouns[is_man]}
            target, distractor = ("first", "second") if woman_first != bool(is_man) else ("second", "first")
            sentences.append(_sentence(frame, words, ("pronoun", target, distractor), group))
    return sentences


def _sentence(frame: str, words: dict[str, str], roles: tuple[str, str, str], group: int) -> Sentence:
    """Fill the words into a frame; `roles` are the fields of the query, the target and the distractor."""
    text, spans = "", {}
    for literal, field, _, _ in Formatter().parse(frame):
        text += literal
        if field:
            spans[field] = Word(len(text), len(text) + len(words[field]))
            text += words[field]
    query, target, distractor = (spans[role] for role in roles)
    return Sentence(text, query, target, distractor, group)
