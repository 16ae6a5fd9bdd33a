"""Image processors of transformers: how a photo, and a question about it, become the input of a model.

In: a folder. Out: the image processor, or the processor of a vision-language model. transformers is given a copy of
their settings, without fields that name code or files, and has no network.
Does not know: models, attention. Memory: O(vocabulary).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from attnscope.errors import CheckpointError
from attnscope.extras import import_extra
from attnscope.models.json_files import read_bytes, read_json, write_json
from attnscope.models.text.tokenizer import MAX_BYTES as MAX_VOCABULARY_BYTES
from attnscope.recording.offline import no_network
from attnscope.recording.transformers_tokenizers import OBJECTS, OTHERS, VOCABULARIES

SETTINGS, PROCESSOR = "preprocessor_config.json", "processor_config.json"
PROCESSOR_SETTINGS = (SETTINGS, PROCESSOR, "video_preprocessor_config.json", "chat_template.json", *OBJECTS)
PROCESSOR_FILES = ("tokenizer.json", "chat_template.jinja", *VOCABULARIES, *OTHERS)


def load_image_processor(folder: Path) -> Any:
    """The image processor of a folder.

    Raises:
        CheckpointError: The folder has no settings of an image processor, or transformers cannot build it.
        MissingExtraError: transformers is not installed.
    """
    if not (folder / SETTINGS).is_file():
        raise CheckpointError(f"{folder} has no {SETTINGS}, which says how a photo becomes the input of the model")
    return _build("AutoImageProcessor", folder, (SETTINGS,), ())


def load_processor(folder: Path) -> Any:
    """The processor of a vision-language model: its image processor, tokenizer and chat template.

    Raises:
        CheckpointError: The folder has no settings of a processor, or transformers cannot build it.
        MissingExtraError: transformers is not installed.
    """
    if not any((folder / name).is_file() for name in (PROCESSOR, SETTINGS)):
        raise CheckpointError(f"{folder} has neither {PROCESSOR} nor {SETTINGS}, so it cannot be asked about a photo")
    return _build("AutoProcessor", folder, PROCESSOR_SETTINGS, PROCESSOR_FILES)


def _build(kind: str, folder: Path, settings: tuple[str, ...], files: tuple[str, ...]) -> Any:
    """Something that transformers builds from a copy of some files of a folder."""
    transformers = import_extra("transformers")
    with tempfile.TemporaryDirectory(prefix="attnscope-images-") as name:
        scratch = Path(name)
        if (folder / "config.json").is_file():
            write_json(scratch / "config.json", {"model_type": read_json(folder / "config.json").get("model_type", "")})
        for found in (one for one in settings if (folder / one).is_file()):
            write_json(scratch / found, _harmless(read_json(folder / found)))
        for found in (one for one in files if (folder / one).is_file()):
            (scratch / found).write_bytes(read_bytes(folder / found, MAX_VOCABULARY_BYTES))
        try:
            with no_network(f"the image processor of {folder} names something on the network"):
                return getattr(transformers, kind).from_pretrained(name, local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
            first = str(error).strip().partition("\n")[0]
            raise CheckpointError(f"{folder}: transformers cannot build its image processor: {first}") from error


def _harmless(value: Any) -> Any:
    """Settings without those that name code or files, at any depth."""
    if isinstance(value, list):
        return [_harmless(one) for one in value]
    if not isinstance(value, dict):
        return value
    dropped = ("auto_map", "custom_pipelines")
    return {
        name: _harmless(one)
        for name, one in value.items()
        if name not in dropped and not str(name).endswith(("_file", "_files"))
    }
