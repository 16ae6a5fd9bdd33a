"""Fuzzers of everything that opens files: traces, surveys, models, tokenizers, training runs."""
