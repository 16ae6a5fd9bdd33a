"""README and docs use the terms of the field: each pattern here is a word that has a usual name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```(?!python).*?^```[^\n]*$|`[^`\n]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
MODEL_PART = r"(?:heads?|tokens?|quer(?:y|ies)|keys?|layers?|models?)"
TERMS = {
    rf"\b{MODEL_PART} (?:looks? (?:at|back)|sees?\b|hears?\b|listens?\b)": "attends to",
    r"\b(?:is|are) looked at\b|\bwho looks at\b": "attended by",
    rf"\bwhat (?:a|the|each) {MODEL_PART} says?\b": "head output",
    r"\bwhat (?:a|the|each) head adds\b": "contribution to the residual stream",
    r"\bsilenced?\b|\bswitch(?:e[sd])? off (?:a |the |these )?heads?\b": "ablate",
    r"\bwho (?:asks|answers)\b": "query, key, value",
    r"\bgo(?:es)? on with (?:a|the) text\b|\blets? a model go on\b": "generate",
    r"\bgoes on (?:after|from|where)\b": "resume",
    r"\bat the door\b|\blisteners?\b": "hook, intercept",
    r"\b(?:in|by) (?:a|one|two|another) (?:walk|road)s?\b": "pass, backend",
    r"\buntrained twins?\b|\btwins?\b": "randomly initialised copy",
    r"\btokens that come twice\b": "repeated-token probe",
    r"\bheld against\b": "compared with",
    r"\boff by (?!one\b)": "error of",
    r"\bforetell|\bforetold\b": "predicted, estimated",
    r"\bkeepsakes?\b": "static page, bundle",
    r"\bdeeds?\b": "command, action",
    r"\bwishe?s?\b|\binquir(?:y|ies)\b": "request",
    r"\bmended\b|\bhealed\b": "fixed",
    r"\bin (?:the )?place of\b": "instead of",
    r"\bbesides?\b": "compared with, next to, in addition to",
    r"\bwhoever\b": "a tool that, a user who",
    r"(?<!there )\b(?:is|are) no (?!longer\b|more\b|less\b)[a-z]+": "is not",
    r"\b(?:library|page|AttnScope|explorer) (?:wants?|believes?|feels?)\b": "no personification",
}
"""What not to write, and what to write instead."""


def private_words(text: str) -> list[str]:
    """What a page says in words of its own, each with the term of the field. Commands, links and names are left out."""
    prose = " ".join(CODE.sub("", text).split())
    found = (
        (match[0], term) for pattern, term in TERMS.items() for match in re.finditer(pattern, prose, re.IGNORECASE)
    )
    return [f"{words!r}: write {term!r}" for words, term in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_uses_terms_of_the_field(page: Path) -> None:
    assert private_words(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "A head looks\nat the verb.",
        "The weights that a token sees",
        "An untrained twin of the model",
        "It is no label.",
        "2.0x beside the plain pass",
        "The survey goes on after a crash",
        "```python\n# in the place of a mask\n```",
    ],
)
def test_private_words_are_found(text: str) -> None:
    assert len(private_words(text)) == 1


@pytest.mark.parametrize(
    "text",
    ["Look at the diagonal.", "There is no network.", "off by one", "`beside`", "[x](beside.md)", "```text\ntwin\n```"],
)
def test_plain_words_pass(text: str) -> None:
    assert private_words(text) == []
