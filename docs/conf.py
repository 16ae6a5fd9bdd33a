"""The docs as a site: `scripts/docs` builds it, and takes every warning for an error."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

from attnscope.version import __version__

project = "AttnScope"
author = "The AttnScope authors"
copyright = "2026, The AttnScope authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]

# Docstrings are in Google style, with `names` in them as in Markdown.
default_role = "code"
add_module_names = False
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
pygments_dark_style = "github-dark"  # the theme's own underlines names as if they were links
html_title = "AttnScope"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0a5c8f", "color-brand-content": "#0a5c8f"},
    "dark_css_variables": {"color-brand-primary": "#6cb8e6", "color-brand-content": "#6cb8e6"},
}


def setup(app: Sphinx) -> None:
    """Told by Sphinx to get ready."""
    app.connect("source-read", offer_outer_pages)
    app.connect("autodoc-process-docstring", leave_out_numbers)
    app.add_html_math_renderer("mathml", (write_formula, None), (write_displayed_formula, None))


def offer_outer_pages(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Pages of the repository that are no pages of the site, such as results of measurements, are files to download."""
    source[0] = re.sub(r"\]\((\.\./(?:\.\./)*(?:(?:benchmarks|web)/[^)]*|[A-Z_]+)\.md)\)", r"](path:\1)", source[0])


def leave_out_numbers(_app: Sphinx, _what: str, _name: str, _thing: Any, _options: Any, lines: list[str]) -> None:
    """What Python says of a named tuple's fields is which number they have."""
    lines[:] = [line for line in lines if not line.startswith("Alias for field number")]


def write_formula(translator: Any, node: nodes.math) -> None:
    """A formula in a line, as MathML, which browsers draw themselves."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def write_displayed_formula(translator: Any, node: nodes.math_block) -> None:
    """A formula of its own."""
    translator.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode
