"""How far a survey has come, how fast it goes, and what is left.

In: what workers tell after each step. Out: numbers for people. Does not know: workers, clocks. Memory: O(1).
"""

from __future__ import annotations

from attnscope.survey.work.workers import Step

BYTES_A_TOKEN = 4.0
"""What a token of English prose takes, until the first shard has been read."""


class Pace:
    """Counts what has been done in one run."""

    def __init__(self, *, size: int, shards: int, missing: int, workers: int) -> None:
        self.size, self.shards, self.missing, self._workers = size, shards, missing, workers
        self.tokens, self.shards_read = 0, 0
        self._seconds, self._in_model, self._whole_shards = 0.0, 0.0, 0

    def add(self, step: Step) -> None:
        """Count a step."""
        self.tokens += step.tokens
        self._seconds += step.seconds
        self._in_model += step.in_model
        if step.shard is not None:
            self.shards_read += 1
            self._whole_shards = self.tokens

    @property
    def shards_done(self) -> int:
        """Of all shards, those whose part is there."""
        return self.shards - self.missing + self.shards_read

    @property
    def expected_tokens(self) -> float:
        """About how many this run has to read in all."""
        if self.shards_read:
            return max(self._whole_shards / self.shards_read * self.missing, self.tokens)
        return max(self.size / BYTES_A_TOKEN * self.missing / self.shards, self.tokens)

    @property
    def tokens_a_second(self) -> float:
        """Of all workers together, since they have their models."""
        return self.tokens * self._workers / self._seconds if self._seconds else 0.0

    @property
    def waiting(self) -> float:
        """The share of the workers' time that was not spent in the model."""
        return 1 - self._in_model / self._seconds if self._seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """About how long the rest takes; None before anything is known."""
        return (self.expected_tokens - self.tokens) / self.tokens_a_second if self.tokens_a_second else None
