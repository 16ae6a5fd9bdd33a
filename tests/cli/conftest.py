"""What several tests of the command line share."""

import pytest

from attnscope.explorer.launch import Server
from tests.cli.serving import Visitor


@pytest.fixture
def visitor(monkeypatch: pytest.MonkeyPatch) -> Visitor:
    """Asks the server of a command that would wait for Ctrl-C, and closes it."""
    found = Visitor()
    monkeypatch.setattr(Server, "wait", lambda server: found.visit(server))
    return found
