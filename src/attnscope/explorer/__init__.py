"""The attention explorer: a local server, a notebook widget and static HTML pages."""

from attnscope.explorer.launch import Server, explore, look
from attnscope.explorer.library.example import example

__all__ = ["Server", "example", "explore", "look"]
