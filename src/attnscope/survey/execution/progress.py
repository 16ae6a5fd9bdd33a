"""The progress of a survey: shards done, throughput and remaining time.

In: reports of workers. Out: numbers to display. Does not know: workers, clocks. Memory: O(1).
"""

from __future__ import annotations

from attnscope.survey.execution.workers import WorkReport

BYTES_PER_TOKEN = 4.0
"""Typical for English prose; used until the first shard has been read."""


class SurveyProgress:
    """Sums up the reports of one run.

    Args:
        size: Bytes of the corpus.
        shards: The number of shards of the corpus.
        missing: The number of shards that this run has to read.
        workers: The number of workers that the run uses, once they have started.
    """

    def __init__(self, *, size: int, shards: int, missing: int, workers: int) -> None:
        self.size, self.shards, self.missing, self.workers = size, shards, missing, workers
        self.active_workers = workers
        """The number of workers that have started, as of the last report."""
        self.excluded_machines: dict[str, str] = {}
        """Machines that were given no more work, and the error of each; known at the end of a run."""
        self.tokens, self.shards_read = 0, 0
        self.merged, self.to_merge = 0, 0
        """Partial results that this run has merged, and those that it has to; none before all shards are read."""
        self._seconds, self._model_seconds, self._tokens_in_read_shards = 0.0, 0.0, 0

    def add(self, report: WorkReport) -> None:
        """Add the report of a worker."""
        self.tokens += report.tokens
        self.merged += report.merged
        self._seconds += report.seconds
        self._model_seconds += report.model_seconds
        if report.workers is not None:
            self.active_workers = report.workers
        if report.shard is not None:
            self.shards_read += 1
            self._tokens_in_read_shards = self.tokens

    @property
    def shards_done(self) -> int:
        """The number of shards that have a partial result, from this run or an earlier one."""
        return self.shards - self.missing + self.shards_read

    @property
    def expected_tokens(self) -> float:
        """The estimated number of tokens that this run reads in total."""
        if self.shards_read:
            return max(self._tokens_in_read_shards / self.shards_read * self.missing, self.tokens)
        return max(self.size / BYTES_PER_TOKEN * self.missing / self.shards, self.tokens)

    @property
    def tokens_per_second(self) -> float:
        """The throughput of all workers together, without loading their models."""
        return self.tokens * self.active_workers / self._seconds if self._seconds else 0.0

    @property
    def overhead(self) -> float:
        """The fraction of the workers' time that was not spent in the model."""
        return 1 - self._model_seconds / self._seconds if self._seconds else 0.0

    @property
    def remaining_seconds(self) -> float | None:
        """The estimated time until all shards are read; None before the first report."""
        return (self.expected_tokens - self.tokens) / self.tokens_per_second if self.tokens_per_second else None
