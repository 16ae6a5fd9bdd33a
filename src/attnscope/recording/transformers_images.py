"""Image processors of transformers: how a photo becomes the input of a model.

In: a folder. Out: the image processor. transformers is given a copy of its settings, without fields that name code, and
has no network. Does not know: models, attention. Memory: O(1).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from attnscope.errors import CheckpointError
from attnscope.extras import import_extra
from attnscope.models.json_files import read_json, write_json
from attnscope.recording.offline import no_network

SETTINGS = "preprocessor_config.json"
DROPPED = frozenset(("auto_map", "custom_pipelines"))
"""Fields that name code."""


def load_image_processor(folder: Path) -> Any:
    """The image processor of a folder.

    Raises:
        CheckpointError: The folder has no settings of an image processor, or transformers cannot build it.
        MissingExtraError: transformers is not installed.
    """
    transformers = import_extra("transformers")
    if not (folder / SETTINGS).is_file():
        raise CheckpointError(f"{folder} has no {SETTINGS}, which says how a photo becomes the input of the model")
    fields = {name: value for name, value in read_json(folder / SETTINGS).items() if name not in DROPPED}
    with tempfile.TemporaryDirectory(prefix="attnscope-images-") as name:
        write_json(Path(name) / SETTINGS, fields)
        try:
            with no_network(f"the image processor of {folder} names something on the network"):
                return transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
            raise CheckpointError(f"{folder / SETTINGS}: transformers cannot build it: {error}") from error
