"""The folder of a training run: its layout, its lock, and its trained model.

    run.json             the settings of the run; other settings are rejected
    .lock .lock.json     locked while a run writes to the folder
    tokens/ tokenizer/   the data, for recipes that train on text
    metrics.jsonl        losses by step, and events/ for TensorBoard
    checkpoints/         the newest checkpoints
    heads/               tables of head scores, one per step
    model/               the trained model in the layout of Hugging Face

In: a recipe or a model, and the folder. Out: data, or files. Does not know: the loop. Memory: the data, the model.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from attnscope.atomic_files import write_atomically
from attnscope.errors import CheckpointError, SettingError
from attnscope.folder_lock import lock_folder
from attnscope.heads.over_training import METRICS
from attnscope.models import Decoder, save
from attnscope.models.checked_json import encode_checked_json, read_checked_json
from attnscope.models.text.any_tokenizer import AnyTokenizer
from attnscope.train.data.corpus import TOKENIZER, TOKENS
from attnscope.train.data.tokens import skip_checksums
from attnscope.train.metrics import EVENTS
from attnscope.train.monitoring import HEADS
from attnscope.train.parallel import Ranks
from attnscope.train.recipe import Data, Recipe

RUN = "run.json"
UNFINISHED_RUN = "run.json.unfinished"
"""Replaces run.json until data and model are ready."""
CHECKPOINTS, MODEL = "checkpoints", "model"
RESULTS = (CHECKPOINTS, METRICS, EVENTS, HEADS, MODEL)
"""What a run writes after run.json."""
ADVICE = "copy it again, or choose another folder"
RUN_ID = "id"
"""The field of run.json that every checkpoint of the run repeats."""
RESUMABLE_SETTINGS = {
    "gradient_accumulation_steps", "compile", "log_every", "evaluate_every", "evaluate_sequences", "sample_every",
    "checkpoint_every", "keep_checkpoints", "heads_every", "tensor_parallel_size", "context_parallel_size",
    "start_timeout_seconds", "step_timeout_seconds",
}  # fmt: skip
"""Settings that may change when a run resumes: they affect only rounding and dropout."""


@contextmanager
def open_run(recipe: Recipe, folder: Path, ranks: Ranks, report: Callable[[str], object]) -> Iterator[Data]:
    """Lock the folder of a run, and yield its data: the first rank creates it, then the others open it.

    Args:
        recipe: The recipe of the run.
        folder: The folder, which is created if necessary.
        ranks: All ranks; the first one holds the lock.
        report: Called with one sentence if the lock of a killed run was taken over.

    Raises:
        SettingError: The folder is in use, belongs to another run, or cannot be written to.
    """
    with ExitStack() as held:

        def make() -> Data:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                check_same_run(recipe, folder)  # before the lock, which writes into the folder
                held.enter_context(lock_folder(folder, report))
                check_same_run(recipe, folder)
                begin(folder)
                return recipe.data(folder, recipe.settings)
            except OSError as error:
                raise SettingError(f"train: {folder} cannot be used: {error}") from error

        data = ranks.run_on_first(make)
        if data is None:
            with skip_checksums():
                data = recipe.data(folder, recipe.settings)
        yield data


def check_same_run(recipe: Recipe, folder: Path) -> None:
    """Raise an error if the folder belongs to another run, or has files of a run without its run.json."""
    if not (folder / RUN).exists():
        names = RESULTS if (folder / UNFINISHED_RUN).exists() else (*RESULTS, TOKENS, TOKENIZER)
        if found := [name for name in names if (folder / name).exists()]:
            raise SettingError(f"{folder} has {' and '.join(found)}, but no {RUN}; choose another folder")
        return
    before = read_checked_json(folder / RUN, advice=ADVICE)
    if not isinstance(before.get(RUN_ID), str):
        raise CheckpointError(f"{folder / RUN} has no field {RUN_ID!r}; choose another folder")
    for name, value in describe_run(recipe).items():
        if name not in RESUMABLE_SETTINGS and before.get(name) != value:
            found = "other data files" if name == "data" else f"{name} = {before.get(name)}, not {value}"
            why = ", because the learning rate schedule depends on it" if name == "steps" else ""
            raise CheckpointError(
                f"{folder} contains a run with {found}; resume it with the same {name}{why}, or choose another folder"
            )


def begin(folder: Path) -> None:
    """Prepare a folder for a new run, and remove the data of a run that did not start."""
    if (folder / RUN).exists():
        return
    for left in (folder / TOKENS, folder / TOKENIZER):
        shutil.rmtree(left, ignore_errors=True)
    (folder / UNFINISHED_RUN).touch()


def claim(recipe: Recipe, folder: Path) -> str:
    """Write run.json, once data and model are ready; returns the id of the run."""
    if not (folder / RUN).exists():
        write_atomically(folder / RUN, encode_checked_json(describe_run(recipe) | {RUN_ID: secrets.token_hex(16)}))
        (folder / UNFINISHED_RUN).unlink(missing_ok=True)
    return str(read_checked_json(folder / RUN, advice=ADVICE)[RUN_ID])


def describe_run(recipe: Recipe) -> dict[str, Any]:
    """Everything that determines the result of a run, in JSON types."""
    return {"recipe": recipe.name, **recipe.identity, **asdict(recipe.settings), "betas": list(recipe.settings.betas)}


def write_model(model: nn.Module, tokenizer: AnyTokenizer | None, folder: Path) -> str:
    """Write the model and its tokenizer in the layout of Hugging Face, if it has one for the model.

    Returns:
        A sentence that says where the parameters are.
    """
    if not isinstance(model, Decoder):
        return f"the parameters are in {folder / CHECKPOINTS}; Hugging Face has no layout for a {type(model).__name__}"
    place, trained = folder / MODEL, copy(model)
    trained.config = replace(model.config, dropout=0.0)  # most families have no field for it
    try:
        save(trained, place, overwrite=True)
    except CheckpointError as error:
        return f"the parameters are in {folder / CHECKPOINTS}; Hugging Face has no layout for this model: {error}"
    if tokenizer is not None:
        tokenizer.save(place)
    return f"the model is in {place}"
