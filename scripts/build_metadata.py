"""What the build adds to the metadata: project URLs, and a README whose links work on a package index.

Both come from the addresses under [tool.attnscope.project] in pyproject.toml. While `repository` is empty there are no
URLs and the README stays as it is, with relative links. hatchling runs this file as a metadata hook.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

README = "README.md"
PICTURE = re.compile(r"\.(?:png|jpe?g|gif|svg|webp)$")
CODE = re.compile(r"(^```.*?^```[^\n]*$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
RELATIVE = r"(?![a-z][a-z0-9+.-]*:|//|#)(?:\./)?"
MARKDOWN_LINK = re.compile(rf"(?<=\]\(){RELATIVE}(?P<path>[^)\s]+)")
HTML_LINK = re.compile(rf"(?P<attribute>\b(?:src|srcset|href)=\"){RELATIVE}(?P<path>[^\"\s]+)")


class MetadataHook(MetadataHookInterface):
    """Fill in `urls` and `readme`, which pyproject.toml declares as dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add to the metadata of the project."""
        root = Path(self.root)
        addresses = project_addresses(root)
        text = (root / README).read_text(encoding="utf-8")
        repository = addresses["repository"].rstrip("/")
        if repository:
            text = with_absolute_links(text, repository, f"v{metadata['version']}")
        metadata["urls"] = project_urls(repository, addresses["documentation"]) if repository else {}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def project_addresses(root: Path) -> dict[str, str]:
    """The table [tool.attnscope.project] of pyproject.toml; an address that is not known yet is empty."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["attnscope"]["project"]


def project_urls(repository: str, documentation: str) -> dict[str, str]:
    """The links beside the project's page on an index."""
    urls = {"Repository": repository, "Issues": f"{repository}/issues"}
    urls["Changelog"] = f"{repository}/blob/main/CHANGELOG.md"
    return urls | ({"Documentation": documentation} if documentation else {})


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Point relative links and pictures at the files of a tag; code stays as it is."""

    def absolute(link: re.Match[str]) -> str:
        path = link["path"]
        kind = "raw" if PICTURE.search(path.partition("#")[0]) else "blob"
        return f"{link.groupdict().get('attribute', '')}{repository}/{kind}/{tag}/{path}"

    parts = CODE.split(text)
    parts[::2] = [HTML_LINK.sub(absolute, MARKDOWN_LINK.sub(absolute, part)) for part in parts[::2]]
    return "".join(parts)
