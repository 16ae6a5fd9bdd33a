"""Models of transformers, for checkpoints that AttnScope's own models do not implement.

In: a folder. Out: the model, in eval mode. transformers is given a config and tensors that AttnScope has read and
checked, and no path: it opens no file of the folder, runs no code in it, and has no network while it builds.
Does not know: tokenizers, recording. Memory: the model; tensors that keep their dtype are views of the mapped files.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.errors import CheckpointError
from attnscope.extras import import_extra, require
from attnscope.models.checkpoint.folder_checksums import verified
from attnscope.models.checkpoint.safetensors_files import open_weights
from attnscope.models.json_fields import short_repr
from attnscope.models.json_files import read_json, read_optional_json
from attnscope.recording.build_limits import BuildLimits
from attnscope.recording.offline import no_network

DROPPED = frozenset(
    ("auto_map", "custom_pipelines", "transformers_weights", "attn_implementation", "_attn_implementation")
)
"""Fields that name code, files or kernels instead of describing the model; the last two may name kernels of the hub."""

NO_JSON = ("Infinity", "-Infinity", "NaN")
"""What transformers writes as `{"__float__": ...}`."""


def load_transformers_model(folder: Path, dtype: torch.dtype | None) -> nn.Module:
    """Load a model with transformers.

    Args:
        folder: A folder with config.json and safetensors files.
        dtype: The dtype of the parameters; None for that of the config, or else of the files.

    Returns:
        The model, of the class that the config names.

    Raises:
        CheckpointError: If the files are invalid, do not fill the model, or transformers does not know it.
        MissingExtraError: If transformers is not installed.
    """
    require("record", "transformers")
    path = folder / "config.json"
    with ExitStack() as files:
        files.enter_context(verified(folder))
        fields, generation = read_json(path), read_optional_json(folder / "generation_config.json")
        stored = open_weights(folder, files)
        limits = BuildLimits.from_tensors(stored.values(), str(path))
        limits.check_fields(fields)
        tensors = {name: tensor.whole() for name, tensor in stored.items()}
        transformers = import_extra("transformers")
        files.enter_context(_convert_errors(folder))
        with limits.enforce(), no_network(f"{path} names something on the network"):
            named = _named_class(transformers, fields)
            config = _build_config(transformers, named, _clean(fields), path)
            model, report = (named or _body_class(transformers, config)).from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=dtype or "auto",
                generation_config=transformers.GenerationConfig.from_dict(generation) if generation else None,
                trust_remote_code=False,
                output_loading_info=True,
            )
    _check_report(folder, report)
    model.config.name_or_path = str(folder)
    return model.eval()


def _named_class(transformers: Any, fields: Mapping[str, Any]) -> Any:
    """The class that the config names, or None if transformers has no such class."""
    named = fields.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    kind: Any = getattr(transformers, name, None) if isinstance(name, str) else None
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    return kind if is_model and getattr(kind, "config_class", None) is not None else None


def _body_class(transformers: Any, config: Any) -> Any:
    """The class of a model without a head for a task."""
    found = transformers.MODEL_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple | list) else found


def _build_config(transformers: Any, kind: Any, fields: dict[str, Any], path: Path) -> Any:
    """The config, or that part of a nested one which the class is for."""
    if kind is None:
        model_type = fields.get("model_type")
        if model_type not in transformers.CONFIG_MAPPING:
            raise CheckpointError(
                f"{path}: model_type: transformers {transformers.__version__} does not know {short_repr(model_type)}; "
                "code that came with a model is never run. A newer transformers may know it"
            )
        return transformers.CONFIG_MAPPING[model_type].from_dict(fields)
    cls = kind.config_class
    parts = [fields, *(part for part in fields.values() if isinstance(part, dict))]
    matching = (part for part in parts if part.get("model_type") == cls.model_type)
    return cls.from_dict(next(matching, fields))


def _clean(value: Any) -> Any:
    """A parsed JSON value without the fields of DROPPED, and with numbers that JSON does not have, at any depth."""
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__float__"} and value["__float__"] in NO_JSON:
        return float(value["__float__"])
    return {name: _clean(inner) for name, inner in value.items() if name not in DROPPED}


def _check_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Raise if parameters were left at random values, and warn about tensors that were left out."""
    if missing := sorted(report["missing_keys"]):
        raise CheckpointError(
            f"{folder} has no tensor for {_list_names(missing)}, so transformers would fill in random numbers; the "
            "files are incomplete, or `architectures` in config.json names another class than the one that was saved"
        )
    if unused := sorted(report["unexpected_keys"]):
        warnings.warn(f"load: transformers has no use for {_list_names(unused)} in {folder}", stacklevel=4)


def _list_names(names: list[str]) -> str:
    shown = ", ".join(short_repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


@contextmanager
def _convert_errors(folder: Path) -> Iterator[None]:
    """Raise whatever transformers raises as a CheckpointError; its errors have no common root."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"load: transformers could not open {folder}: {type(error).__name__}: {first}") from error
