"""The layers of a trace: recorded queries and keys, statistics, or dense attention weights."""
