"""The folder of a run: what lies where, whose it is, and the model that is left in it.

    run.json             what the run is; another run in the same folder is refused
    .lock .lock.json     held while a run writes to the folder
    tokens/ tokenizer/   the data, for recipes that learn from text
    metrics.jsonl        the curve, and events/ for TensorBoard
    checkpoints/         the last ones
    heads/               what each head did, a table a step
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
from attnscope.models import Decoder, save
from attnscope.models.checked_json import encode_checked_json, read_checked_json
from attnscope.models.text.any_tokenizer import AnyTokenizer
from attnscope.train.data.corpus import TOKENIZER, TOKENS
from attnscope.train.metrics import EVENTS, FILE
from attnscope.train.monitoring import HEADS
from attnscope.train.parallel import Ranks
from attnscope.train.recipe import Data, Recipe

RUN = "run.json"
UNFINISHED_RUN = "run.json.unfinished"
"""Replaces run.json until data and model are ready."""
CHECKPOINTS, MODEL = "checkpoints", "model"
RESULTS = (CHECKPOINTS, FILE, EVENTS, HEADS, MODEL)
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
                check_same_run(recipe, folder)  # what is of somebody else does not even get a lock
                held.enter_context(lock_folder(folder, report))
                check_same_run(recipe, folder)
                begin(folder)
                return recipe.data(folder, recipe.settings)
            except OSError as error:
                raise SettingError(f"train: {folder} cannot be used: {error}") from error

        data = ranks.run_on_first(make)
        yield recipe.data(folder, recipe.settings) if data is None else data


def check_same_run(recipe: Recipe, folder: Path) -> None:
    """Raise an error if the folder belongs to another run, or holds what is of no run."""
    if not (folder / RUN).exists():
        names = RESULTS if (folder / UNFINISHED_RUN).exists() else (*RESULTS, TOKENS, TOKENIZER)
        if found := [name for name in names if (folder / name).exists()]:
            raise SettingError(f"{folder} holds {' and '.join(found)}, which are of no run; choose another folder")
        return
    before = read_checked_json(folder / RUN, advice=ADVICE)
    if not isinstance(before.get(RUN_ID), str):
        raise CheckpointError(f"{folder / RUN} has no field {RUN_ID!r}; choose another folder")
    for name, value in described(recipe).items():
        if name not in RESUMABLE_SETTINGS and before.get(name) != value:
            shown = " other files" if name == "data" else f" {name} = {before.get(name)}, and {value} was asked for"
            longer = ", for the learning rate falls towards its last step" if name == "steps" else ""
            raise CheckpointError(
                f"{folder} holds a run with{shown}; go on with the same{longer}, or choose another folder"
            )


def begin(folder: Path) -> None:
    """Take a folder into use: data that was prepared for a run that never began is removed."""
    if (folder / RUN).exists():
        return
    for left in (folder / TOKENS, folder / TOKENIZER):
        shutil.rmtree(left, ignore_errors=True)
    (folder / UNFINISHED_RUN).touch()


def claim(recipe: Recipe, folder: Path) -> str:
    """Write run.json, once data and model are ready; returns the id of the run."""
    if not (folder / RUN).exists():
        write_atomically(folder / RUN, encode_checked_json(described(recipe) | {RUN_ID: secrets.token_hex(16)}))
        (folder / UNFINISHED_RUN).unlink(missing_ok=True)
    return str(read_checked_json(folder / RUN, advice=ADVICE)[RUN_ID])


def described(recipe: Recipe) -> dict[str, Any]:
    """Everything that determines the result of a run, in JSON types."""
    return {"recipe": recipe.name, **recipe.identity, **asdict(recipe.settings), "betas": list(recipe.settings.betas)}


def write_model(model: nn.Module, tokenizer: AnyTokenizer | None, folder: Path) -> str:
    """Write a whole model with its tokenizer, where the layout of Hugging Face can express it; says what was done."""
    if not isinstance(model, Decoder):
        return f"the weights are in {folder / CHECKPOINTS}; there is no common layout for a {type(model).__name__}"
    place, trained = folder / MODEL, copy(model)
    trained.config = replace(model.config, dropout=0.0)  # most families cannot say it, and it has done its work
    try:
        save(trained, place, overwrite=True)
    except CheckpointError as error:
        return f"the weights are in {folder / CHECKPOINTS}; Hugging Face has no layout for this model: {error}"
    if tokenizer is not None:
        tokenizer.save(place)
    return f"the model is in {place}"
