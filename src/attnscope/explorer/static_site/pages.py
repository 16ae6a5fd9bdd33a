"""The pages of a site: the explorer, and a card for hubs.

In: an open trace, and the files of the explorer. Out: `index.html`, scripts, the style sheet and `README.md`. The
policy of the page allows its own files only. Does not know: archives. Memory: the files.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

from attnscope.explorer.html_page import make_page, printable_title
from attnscope.explorer.library.library import Entry
from attnscope.explorer.service.app import STATIC
from attnscope.explorer.static_site.archive import StoredFile, store_file
from attnscope.version import __version__

ASSETS = ("explorer.css", "site.js", "site_worker.js")
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
    "trusted-types attnscope"
)
HEAD = """<link rel="stylesheet" href="explorer.css">
    <link rel="preload" href="manifest.json" as="fetch" crossorigin="anonymous">
    <script type="module" src="site.js"></script>"""
CARD = """---
pretty_name: {title}
sdk: static
tags:
- attention
- interpretability
- attnscope
viewer: false
---

# {name}

The attention of {model} on a text of {tokens:,} tokens: {heads:,} heads, published with AttnScope {version}. Open
`index.html` on any host that answers HTTP range requests. `manifest.json` lists every file with its size and SHA-256.
"""


def write_pages(folder: Path, entry: Entry, num_heads: int) -> list[StoredFile]:
    """Write the page of the explorer with its scripts, and the card."""
    readable = printable_title(entry.name)
    page = make_page(title=f"{readable} - AttnScope", policy=POLICY, attributes='data-attnscope="site"', head=HEAD)
    card = CARD.format(
        title=json.dumps(readable, ensure_ascii=False),
        name=_escape_markdown(readable),
        model=_escape_markdown(entry.trace.model or "a model"),
        tokens=entry.summary()["tokens"],
        heads=num_heads,
        version=__version__,
    )
    found = [store_file(folder, name, (STATIC / name).read_bytes()) for name in ASSETS]
    found.append(store_file(folder, "index.html", page.encode()))
    return [*found, store_file(folder, "README.md", card.encode())]


def _escape_markdown(text: str) -> str:
    r"""Escape what Markdown and HTML would interpret.

    >>> _escape_markdown("a_b <i>")
    'a\\_b &lt;i&gt;'
    """
    return "".join(f"\\{one}" if one in "\\`*_{}[]()#+!|~" else one for one in html.escape(text, quote=False))
