"""Records the PHOTO argument of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.cli.progress import stderr_progress
from attnscope.extras import require

if TYPE_CHECKING:
    from attnscope.recording import Trace

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def is_photo(argument: str) -> bool:
    """Whether an argument names an image file that exists."""
    return Path(argument).suffix.lower() in SUFFIXES and Path(argument).is_file()


def record_photo(place: str, photo_path: str, question: str | None = None, *, max_new_tokens: int = 0) -> Trace:
    """Load a model and its processor, and record it on a photo, with an answer of at most some tokens."""
    require("figures", "PIL")
    require("record", "transformers")
    from attnscope.images import open_photo
    from attnscope.models.checkpoint import locate
    from attnscope.recording import load
    from attnscope.recording.photo_reading import read_photo
    from attnscope.recording.transformers_images import load_image_processor, load_processor

    photo = open_photo(photo_path)
    folder = locate(place)
    has_tokenizer = (folder / "tokenizer_config.json").is_file()
    processor = load_processor(folder) if has_tokenizer else load_image_processor(folder)
    with stderr_progress() as bar:
        task = bar.add_task("loading the model", total=None)
        model, _ = load(place, progress=lambda done, whole: bar.update(task, completed=done, total=whole))
        bar.update(task, description="reading the photo", completed=0, total=None)
        return read_photo(model, processor, photo, question, max_new_tokens=max_new_tokens)
