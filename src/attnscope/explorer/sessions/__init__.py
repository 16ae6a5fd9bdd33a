"""Model sessions: run typed texts, generate, compare with a random-weight baseline, and ablate heads."""
