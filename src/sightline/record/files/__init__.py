"""Traces in folders."""
