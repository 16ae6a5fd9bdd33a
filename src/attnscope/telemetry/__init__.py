"""Exact attention statistics of every head while a model trains."""
