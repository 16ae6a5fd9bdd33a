"""`attnscope heads MODEL TEXT --link "QUERY -> KEY"`: the heads that attend from some tokens to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.cli.json_output import heads_to_json, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.cli.commands import Options
    from attnscope.heads.links import Positions
    from attnscope.recording import Trace

CONTEXT = 60  # characters of a passage that are printed


def show_links(options: Options, trace: Trace, console: Console, top: int) -> None:
    """Rank all heads by a link, and print them with the tokens that it means."""
    from attnscope.heads.links import find_heads, parse_link

    link = parse_link(trace, options.link)
    table = find_heads(trace, query=link.query, key=link.key)
    best = table.rows(range(min(len(table), top)))
    if options.json:
        print_json(model=options.model, link=options.link, heads=heads_to_json(best))
        return
    sides = {"query": link.query, "key": link.key}
    for name, positions in sides.items():
        console.print(f"{name}: {describe(trace, positions)}", markup=False, soft_wrap=True)
    console.print()
    console.print(best if console.is_terminal else best.to_text(console.width), markup=False, soft_wrap=True)


def describe(trace: Trace, positions: Positions | None) -> str:
    """Return the position and the text of tokens."""
    if positions is None:
        return "all tokens"
    tokens = trace.tokens()
    if not isinstance(positions, range):
        return str(positions)
    span = str(positions.start) if len(positions) == 1 else f"{positions.start}..{positions.stop - 1}"
    if tokens is None:
        return span
    count = len(tokens)
    text = "".join(tokens[at + count if at < 0 else at] for at in positions if -count <= at < count)
    return f"{span} {text[:CONTEXT]!r}"
