"""The libraries, their methods to get the attention weights, and their pages."""

from __future__ import annotations

from typing import NamedTuple


class Library(NamedTuple):
    """A library, and its pip requirements; empty if it is in the current environment."""

    name: str
    requirements: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """The name of its distribution."""
        return self.requirements[0] if self.requirements else self.name


class Method(NamedTuple):
    """A method to get the attention weights of a forward pass."""

    library: Library
    title: str
    script: str
    """Its function in scripts/cost.py."""


class Page(NamedTuple):
    """An HTML page of those weights."""

    library: Library
    title: str
    script: str
    """Its function in scripts/page.py."""
    shown: str
    """A JavaScript expression that is true once the page shows something."""


TRANSFORMERS, ATTNSCOPE = Library("transformers"), Library("attnscope")
LENS, NNSIGHT = Library("TransformerLens", ("transformer-lens",)), Library("nnsight", ("nnsight",))
BERTVIZ, CIRCUITSVIS = Library("BertViz", ("bertviz",)), Library("CircuitsVis", ("circuitsvis",))
LIBRARIES = (TRANSFORMERS, LENS, NNSIGHT, BERTVIZ, CIRCUITSVIS, ATTNSCOPE)

PLAIN = Method(TRANSFORMERS, "plain pass, sdpa", "plain")
RECORD = Method(ATTNSCOPE, "attnscope, record", "attnscope_matrix")
ANALYSES = (
    Method(ATTNSCOPE, "attnscope, record and rank heads", "attnscope_find_heads"),
    Method(ATTNSCOPE, "attnscope, record and largest logits", "attnscope_max_logit"),
    Method(ATTNSCOPE, "attnscope, record and column sums", "attnscope_received"),
)
METHODS = (
    PLAIN,
    Method(TRANSFORMERS, "transformers, eager, nothing kept", "eager"),
    Method(TRANSFORMERS, "transformers, output_attentions", "output_attentions"),
    Method(LENS, "TransformerLens, everything", "lens_everything"),
    Method(LENS, "TransformerLens, patterns", "lens_patterns"),
    Method(NNSIGHT, "nnsight, weights saved", "nnsight_saved"),
    RECORD,
    Method(ATTNSCOPE, "attnscope, statistics", "attnscope_statistics"),
    *ANALYSES,
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
