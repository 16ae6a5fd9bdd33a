"""The attention explorer: a local server, a notebook widget and static HTML pages."""

from attnscope.explorer.library.shipped import example
from attnscope.explorer.running import Server, explore, look

__all__ = ["Server", "example", "explore", "look"]
