"""The docs as a site: `scripts/docs` builds it, and takes every warning for an error."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

from attnscope.version import __version__

project = "AttnScope"
author = "The AttnScope authors"
copyright = "2026, The AttnScope authors"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
if os.environ.get("ATTNSCOPE_DOCS_ONLINE"):  # other builds need no network, and have no links to other projects
    extensions.append("sphinx.ext.intersphinx")
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
}
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
html_js_files = ["copy.js"]
html_math_renderer = "mathml"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0a5c8f", "color-brand-content": "#0a5c8f"},
    "dark_css_variables": {"color-brand-primary": "#6cb8e6", "color-brand-content": "#6cb8e6"},
}

CHARTS = re.compile(r"(?:images/(?:labs|learn|stories|train)/|benchmarks/results/)")
"""Figures on white, which site.css inverts in dark mode."""
COLOUR_MAPS = re.compile(
    r"stories/far_sight/(?:map|place)\.|learn/(?:positions|untrained_heads)\."
    r"|labs/(?:masks/fully_masked_rows|mini_gpt/heads|sequence_reversal/mirror|trained_heads/kinds)\."
    r"|labs/(?:single_vs_two_heads|sliding_window)/patterns\."
)
"""Those of them that would say something else with inverted colours."""

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
NOTEBOOK_LINK = re.compile(r"\[\w+\.ipynb\]\((notebooks/\w+\.ipynb)\)")


def setup(app: Sphinx) -> None:
    """Connect the functions of this file to events of Sphinx."""
    app.connect("source-read", offer_outer_pages)
    app.connect("source-read", offer_colab)
    app.connect("doctree-read", mark_charts)
    app.connect("autodoc-process-docstring", leave_out_numbers)
    app.connect("autodoc-process-signature", show_context_managers)
    app.add_html_math_renderer("mathml", (write_formula, None), (write_displayed_formula, None))


def offer_outer_pages(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Pages of the repository that are no pages of the site, such as results of measurements, are files to download."""
    source[0] = re.sub(r"\]\((\.\./(?:\.\./)*(?:(?:benchmarks|web)/[^)]*|[A-Z_]+)\.md)\)", r"](path:\1)", source[0])


def offer_colab(_app: Sphinx, page: str, source: list[str]) -> None:
    """Notebooks of lessons open in Colab, once the project has an address on GitHub."""
    if page == "learn/index":
        source[0] = with_colab_links(source[0], PYPROJECT["tool"]["attnscope"]["project"]["repository"])


def with_colab_links(text: str, repository: str) -> str:
    """Add a link to Colab to every link to a notebook in docs/learn; Colab opens notebooks from GitHub only."""
    name = repository.removeprefix("https://github.com/").rstrip("/")
    if not repository or name == repository:
        return text
    folder = f"https://colab.research.google.com/github/{name}/blob/main/docs/learn"
    return NOTEBOOK_LINK.sub(rf"\g<0>, [Colab]({folder}/\1)", text)


def mark_charts(_app: Sphinx, page: nodes.document) -> None:
    """Give charts a class of their own."""
    for image in page.findall(nodes.image):
        if CHARTS.search(image["uri"]) and not COLOUR_MAPS.search(image["uri"]):
            image["classes"].append("chart")


def leave_out_numbers(_app: Sphinx, _what: str, _name: str, _thing: Any, _options: Any, lines: list[str]) -> None:
    """What Python says of a named tuple's fields is which number they have."""
    lines[:] = [line for line in lines if not line.startswith("Alias for field number")]


def show_context_managers(
    _app: Sphinx, _what: str, _name: str, thing: Any, _options: Any, arguments: str, returned: str | None
) -> tuple[str, str | None]:
    """A function that is used in a `with` statement is written as a generator, which is not what it returns."""
    if returned and hasattr(thing, "__wrapped__"):
        returned = re.sub(r"^[~\w.]*Iterator\[", "AbstractContextManager[", returned)
    return arguments, returned


def write_formula(translator: Any, node: nodes.math) -> None:
    """A formula in a line, as MathML, which browsers draw themselves."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def write_displayed_formula(translator: Any, node: nodes.math_block) -> None:
    """A formula of its own."""
    translator.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode
