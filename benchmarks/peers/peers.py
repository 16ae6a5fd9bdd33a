"""Who is measured: the libraries, their ways to the weights, and their pages."""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """A library, and what pip is asked for; nothing, where our own environment has it."""

    name: str
    requirements: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """The name under which versions are found."""
        return self.requirements[0] if self.requirements else self.name


class Way(NamedTuple):
    """A way to get at the weights of a pass."""

    peer: Peer
    title: str
    script: str
    """Its function in inside/cost.py."""


class Page(NamedTuple):
    """A page of those weights."""

    peer: Peer
    title: str
    script: str
    """Its function in inside/page.py."""
    shown: str
    """An expression that is true in a browser when there is something to see."""


TRANSFORMERS, ATTNSCOPE = Peer("transformers"), Peer("attnscope")
LENS, NNSIGHT = Peer("TransformerLens", ("transformer-lens",)), Peer("nnsight", ("nnsight",))
BERTVIZ, CIRCUITSVIS = Peer("BertViz", ("bertviz",)), Peer("CircuitsVis", ("circuitsvis",))
PEERS = (TRANSFORMERS, LENS, NNSIGHT, BERTVIZ, CIRCUITSVIS, ATTNSCOPE)

PLAIN = Way(TRANSFORMERS, "plain pass, sdpa", "plain")
RECORD = Way(ATTNSCOPE, "attnscope, record", "attnscope_matrix")
WAYS = (
    PLAIN,
    Way(TRANSFORMERS, "transformers, eager, nothing kept", "eager"),
    Way(TRANSFORMERS, "transformers, output_attentions", "output_attentions"),
    Way(LENS, "TransformerLens, everything", "lens_everything"),
    Way(LENS, "TransformerLens, patterns", "lens_patterns"),
    Way(NNSIGHT, "nnsight, weights saved", "nnsight_saved"),
    RECORD,
    Way(ATTNSCOPE, "attnscope, statistics", "attnscope_statistics"),
)

LINES = "document.querySelector('#vis svg line') !== null"
PAINTED = "window.paintings > 0"
READY = "document.documentElement.dataset.state === 'ready'"
PAGES = (
    Page(BERTVIZ, "BertViz head_view", "bertviz_head_view", LINES),
    Page(BERTVIZ, "BertViz model_view", "bertviz_model_view", LINES),
    Page(CIRCUITSVIS, "CircuitsVis attention_patterns", "circuitsvis_patterns", PAINTED),
    Page(CIRCUITSVIS, "CircuitsVis attention_heads", "circuitsvis_heads", PAINTED),
    Page(ATTNSCOPE, "attnscope, saved page", "attnscope_page", READY),
)
