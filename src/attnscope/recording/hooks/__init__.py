"""Hooks that intercept attention calls, and their inputs, while a model runs."""
