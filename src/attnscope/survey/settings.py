"""The settings that determine the result of a survey.

Out: `Settings`, validated. The number of workers and their devices do not change the result, so they are in `Workers`.
Does not know: files, models.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.errors import SettingError

MAX_LENGTH = 512
BATCH_TOKENS = 2048
MAX_SKIPPED = 0.05


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a survey reads, and in which units.

    Raises:
        SettingError: There are no sources, or a value is out of range.
    """

    model: str
    """A folder, a name on the hub, the name of a downloaded model, or a GGUF file."""

    sources: tuple[str, ...]
    """Files, folders, globs and URLs of text, JSONL and Parquet."""

    max_length: int | None = MAX_LENGTH
    """Maximum length of a passage in tokens; longer documents are split. None reads whole documents."""

    batch_tokens: int = BATCH_TOKENS
    """Maximum number of tokens per forward pass; a longer passage is a batch of its own."""

    field: str = "text"
    """The JSONL field or Parquet column that contains the text."""

    separator: str | None = None
    """The line between the documents of a text file; None reads a file as one document."""

    shard_bytes: int | None = None
    """Bytes per shard; None chooses a size from 64 KiB to 512 KiB, so that a worker reads a shard in minutes, and a
    larger one only for corpora above 512 GiB."""

    seed: int = 0
    """Random seed of the sample of passages."""

    max_skipped: float = MAX_SKIPPED
    """The largest share of the corpus, in bytes, that may be skipped as invalid; more is an error at the end of the
    survey. It does not change the tables."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise SettingError("survey: no sources; give files, folders, globs or URLs of text")
        for name, minimum in (("max_length", 2), ("batch_tokens", 1), ("shard_bytes", 1)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise SettingError(f"survey: {name} must be at least {minimum}, got {value}")
        if not 0 <= self.max_skipped <= 1:
            raise SettingError(f"survey: max_skipped must be from 0 to 1, got {self.max_skipped:g}")
        if self.separator is not None and ("\n" in self.separator or "\r" in self.separator):
            raise SettingError(f"survey: separator must be one line without a line end, got {self.separator!r}")
