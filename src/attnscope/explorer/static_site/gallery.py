"""`write_gallery`: a page that lists all published sites of a folder, by model and text.

The page is HTML without scripts. Its policy allows its own style sheet and the pictures in it, and nothing else. In: a
folder with sites. Out: `index.html` in it. Does not know: traces. Memory: the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from attnscope.atlas import codec
from attnscope.atomic_files import write_atomically
from attnscope.errors import SettingError
from attnscope.explorer.analysis.png import encode_png
from attnscope.explorer.html_page import make_document, printable_title
from attnscope.explorer.static_site.gallery_sites import Opening, PublishedSite, read_site
from attnscope.formatting import format_bytes, format_count

MARK = '<meta name="generator" content="AttnScope gallery">'
"""In every page of a gallery, so that no other page is overwritten."""
OCTAVES = 10
"""Weights below 2^-10 are as light as those that are zero."""
LIGHT = (244, 246, 248), (255, 255, 255), (74, 32, 150)
DARK = (29, 33, 37), (20, 23, 26), (213, 190, 255)
"""Colours of masked bins, of the lowest and of the highest weight."""
POLICY = "default-src 'none'; style-src 'sha256-{style}'; img-src data:; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5c6570; --paper: #fff; --rule: #d5dae0; --accent: #6b3fc0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #98a2ad; --paper: #14171a; --rule: #343a41; --accent: #bd9cf7; }
}
body { margin: 0 auto; padding: 24px 16px 48px; max-width: 1120px; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 32px 0 12px; overflow-wrap: anywhere; }
h3 { font-size: 15px; margin: 0; overflow-wrap: anywhere; }
p { margin: 0; color: var(--soft); }
a { color: var(--accent); }
.scroll { overflow-x: auto; margin-top: 20px; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: 6px 16px 6px 0; border-bottom: 1px solid var(--rule); font-weight: normal; }
thead th { color: var(--soft); }
ul { list-style: none; margin: 0; padding: 0; display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(240px, 100%), 1fr)); }
li { border: 1px solid var(--rule); border-radius: 8px; padding: 12px; display: flex;
  flex-direction: column; gap: 8px; }
img { display: block; width: 100%; aspect-ratio: 1; image-rendering: pixelated; border: 1px solid var(--rule); }
"""
BODY = """<h1>{title}</h1>
    <p>{summary}</p>
    {table}
    {sections}"""


def write_gallery(folder: str | Path, *, title: str | None = None) -> list[PublishedSite]:
    """Write a page that lists the sites in a folder, or write it again.

    Args:
        folder: A folder, of which some subfolders are sites that `attnscope publish` wrote.
        title: The title of the page; by default the name of the folder.

    Returns:
        The sites, in the order of the page.

    Raises:
        SettingError: The folder has no sites, or another page.
        CheckpointError: A site is damaged, or of another version.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise SettingError(f"publish: {folder} is not a folder; give a folder of published sites")
    if (folder / "manifest.json").is_file():
        raise SettingError(f"publish: {folder} is a site itself; give the folder that it is in")
    page = folder / "index.html"
    if page.exists() and MARK.encode() not in page.read_bytes()[:4096]:
        raise SettingError(f"publish: {page} is not the page of a gallery; move it, or give another folder")
    manifests = sorted(folder.glob("*/manifest.json"))
    found = [site for path in manifests if (site := read_site(path.parent)) is not None]
    if not found:
        raise SettingError(
            f"publish: no folder in {folder} is a site; write one with: attnscope publish TRACE --out DIR"
        )
    sites = sorted(found, key=lambda site: (site.model, site.name, site.folder))
    write_atomically(page, render_gallery(sites, title or folder.resolve().name).encode())
    return sites


def render_gallery(sites: Sequence[PublishedSite], title: str) -> str:
    """The page, from sites sorted by model."""
    models = {model: list(some) for model, some in groupby(sites, key=lambda site: site.model)}
    texts = sorted({site.name for site in sites})
    is_grid = len(models) > 1 and len(texts) > 1
    body = BODY.format(
        title=_escape(title),
        summary=f"Attention of {format_count(len(models), 'model')} on {format_count(len(texts), 'text')}, "
        f"{format_bytes(sum(site.num_bytes for site in sites))}. Each links to all of its heads at every zoom level.",
        table=_render_table(models, texts) if is_grid else "",
        sections="\n    ".join(_render_model(model, some) for model, some in models.items()),
    )
    policy = POLICY.format(style=base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode())
    return make_document(title=title, policy=policy, head=f"{MARK}\n    <style>{STYLE}</style>", body=body)


def _render_table(models: dict[str, list[PublishedSite]], texts: Sequence[str]) -> str:
    """A table of models and texts."""
    head = "".join(f'<th scope="col">{_escape(text)}</th>' for text in texts)
    rows = []
    for model, sites in models.items():
        cells = [
            ", ".join(
                f'<a href="{_link(site)}">{format_count(site.heads, "head")}</a>' for site in sites if site.name == text
            )
            for text in texts
        ]
        rows.append(f'<tr><th scope="row">{_escape(model)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    body = f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Models and texts"><table>{body}</table></div>'


def _render_model(model: str, sites: Sequence[PublishedSite]) -> str:
    return f"<section><h2>{_escape(model)}</h2><ul>{''.join(map(_render_site, sites))}</ul></section>"


def _render_site(site: PublishedSite) -> str:
    tokens, heads = format_count(site.tokens, "token"), format_count(site.heads, "head")
    sizes = f"{tokens}, {heads} of {format_count(site.layers, 'layer')}"
    picture = "" if site.opening is None else _render_picture(site, site.opening)
    return (
        f'<li>{picture}<h3><a href="{_link(site)}">{_escape(site.name)}</a></h3>'
        f"<p>{sizes}, {format_bytes(site.num_bytes)}</p></li>"
    )


def _render_picture(site: PublishedSite, opening: Opening) -> str:
    """The thumbnail in both colour schemes, as a link to the head."""
    name = f"L{opening.layer}H{opening.number}"
    light, dark = (_to_data_url(_colour(opening.codes, *colours)) for colours in (LIGHT, DARK))
    about = _escape(f"Attention pattern of {name}, {opening.label}, in {site.model} on {site.name}")
    return (
        f'<a href="{_link(site, opening)}"><picture><source srcset="{dark}" media="(prefers-color-scheme: dark)">'
        f'<img src="{light}" alt="{about}" loading="lazy"></picture></a>'
        f"<p>{name}, {_escape(opening.label)}</p>"
    )


def _colour(codes: NDArray[np.uint8], masked: Sequence[int], low: Sequence[int], high: Sequence[int]) -> NDArray:
    """Pixels (rows, columns, 3) between two colours, on a logarithmic scale."""
    with np.errstate(divide="ignore"):
        shade = (1 + np.log2(codec.decode(codes)) / OCTAVES).clip(0, 1)
    mixed = np.array(low) + np.nan_to_num(shade)[..., None] * (np.array(high) - np.array(low))
    return np.where((codes > 0)[..., None], mixed, np.array(masked)).round().astype(np.uint8)


def _to_data_url(pixels: NDArray) -> str:
    content = encode_png(pixels, max(pixels.shape[:2]))
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _link(site: PublishedSite, opening: Opening | None = None) -> str:
    """A relative address of the site, or of a head in it."""
    place = "" if opening is None else f"#1/-/L{opening.layer}H{opening.head}/map"
    return html.escape(f"./{quote(site.folder, safe='')}/{place}")


def _escape(text: str) -> str:
    return html.escape(printable_title(text))
