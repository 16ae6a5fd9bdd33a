"""The HTML of pages that need no server: saved pages, published sites and galleries.

In: what a page contains. Out: an HTML document with its content security policy. Does not know: traces, scripts.
Memory: the page.
"""

from __future__ import annotations

import html

MAX_TITLE_LENGTH = 120
DOCUMENT = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta http-equiv="Content-Security-Policy" content="{policy}">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="light dark">
    <meta name="referrer" content="no-referrer">
    <title>{title}</title>
    <link rel="icon" href="data:,">
    {head}
  </head>
  <body>
    {body}
  </body>
</html>
"""
EXPLORER = '<div id="explorer" class="explorer" {attributes}><noscript>{no_script}</noscript></div>'
NO_SCRIPT = "AttnScope draws attention in the browser and needs JavaScript."


def make_page(*, title: str, policy: str, attributes: str, head: str, body: str = "") -> str:
    """Make the page of an explorer.

    Args:
        title: Its title, as text.
        policy: Its content security policy.
        attributes: Those of the element that holds the explorer, as HTML.
        head: The end of its head, as HTML.
        body: What follows the explorer, as HTML.

    Returns:
        The document.
    """
    explorer = EXPLORER.format(attributes=attributes, no_script=NO_SCRIPT)
    return make_document(title=title, policy=policy, head=head, body=f"{explorer}\n    {body}")


def make_document(*, title: str, policy: str, head: str, body: str) -> str:
    """Make a page.

    Args:
        title: Its title, as text.
        policy: Its content security policy.
        head: The end of its head, as HTML.
        body: Its content, as HTML.

    Returns:
        The document.
    """
    return DOCUMENT.format(policy=policy, title=html.escape(printable_title(title)), head=head, body=body)


def printable_title(text: str) -> str:
    r"""Replace what cannot be printed by spaces, and cut long texts.

    >>> printable_title("a\nb")
    'a b'
    """
    return "".join(one if one.isprintable() else " " for one in text)[:MAX_TITLE_LENGTH]
