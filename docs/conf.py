"""The docs as a site: `scripts/docs` builds it, and takes every warning for an error."""

import re

from sphinx.application import Sphinx

from sightline.version import __version__

project = "Sightline"
author = "The Sightline authors"
copyright = "2026, The Sightline authors"
release = version = __version__

extensions = ["myst_parser"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Sightline"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0a5c8f", "color-brand-content": "#0a5c8f"},
    "dark_css_variables": {"color-brand-primary": "#6cb8e6", "color-brand-content": "#6cb8e6"},
}


def setup(app: Sphinx) -> None:
    """Told by Sphinx to get ready."""
    app.connect("source-read", offer_outer_pages)


def offer_outer_pages(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Pages of the repository that are no pages of the site, such as results of measurements, are files to download."""
    source[0] = re.sub(r"\]\((\.\./(?:\.\./)*(?:benchmarks|web)/[^)]*\.md)\)", r"](path:\1)", source[0])
