"""What a survey is told: everything that decides its result, and nothing else.

Out: `Settings`, checked. How many workers there are, and where, changes no number and is not in it.
Does not know: files, models.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.errors import SettingError

WINDOW = 512
BATCH = 2048


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is read, and in which portions."""

    model: str
    """A folder, a name on the hub, or a GGUF file."""

    sources: tuple[str, ...]
    """Files, folders and addresses of text, JSONL and Parquet."""

    window: int | None = WINDOW
    """Tokens of a passage at most: longer documents are read in windows. None reads them whole."""

    batch: int = BATCH
    """Tokens that go through the model at once, unless one passage has more."""

    field: str = "text"
    """Where JSONL and Parquet have the text."""

    separator: str | None = None
    """The line that stands between the documents of a text file; without it, a file is one document."""

    shard_bytes: int | None = None
    """Bytes of a shard; unless told, as many as make a few thousand shards."""

    seed: int = 0
    """Which passages are sampled as examples."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise SettingError("survey: there is nothing to read; give files, folders or addresses of text")
        for name, least in (("window", 2), ("batch", 1), ("shard_bytes", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise SettingError(f"survey: {name} {value} was asked for; it is {least} at least")
        if self.separator is not None and ("\n" in self.separator or "\r" in self.separator):
            raise SettingError(f"survey: the separator is one whole line, without its end, not {self.separator!r}")
