"""Request handlers, one method per route."""
