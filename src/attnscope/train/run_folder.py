"""The folder of a run: what lies where, whose it is, and the model that is left in it.

    run.json             what the run is; another run in the same folder is refused
    tokens/ tokenizer/   the data, for recipes that learn from text
    metrics.jsonl        the curve, and events/ for TensorBoard
    checkpoints/         the last ones
    heads/               what each head did, a table a step
    model/               the trained model in the layout of Hugging Face

In: a recipe or a model, and the folder. Out: data, or files. Does not know: the loop. Memory: the data, the model.
"""

from __future__ import annotations

import shutil
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from attnscope.errors import CheckpointError, SettingError
from attnscope.models import Decoder, save
from attnscope.models.json_files import read_json, write_json
from attnscope.models.text.any_tokenizer import AnyTokenizer
from attnscope.train.data.corpus import TOKENIZER, TOKENS
from attnscope.train.parallel import Ranks
from attnscope.train.recipe import Data, Recipe

RUN = "run.json"
UNFINISHED_RUN = "run.json.unfinished"
"""Replaces run.json until data and model are ready."""
RESUMABLE_SETTINGS = {
    "gradient_accumulation_steps", "compile", "log_every", "evaluate_every", "evaluate_sequences", "sample_every",
    "checkpoint_every", "keep_checkpoints", "heads_every", "tensor_parallel_size", "context_parallel_size",
}  # fmt: skip
"""Settings that may change when a run resumes: they affect only rounding and dropout."""


def prepare_data(recipe: Recipe, folder: Path, ranks: Ranks) -> Data:
    """The data of a run: the first rank creates it, then the others open it."""

    def make() -> Data:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_same_run(recipe, folder)
            return recipe.data(folder, recipe.settings)
        except OSError as error:
            raise SettingError(f"train: {folder} cannot be used: {error}") from error

    data = ranks.run_on_first(make)
    return recipe.data(folder, recipe.settings) if data is None else data


def check_same_run(recipe: Recipe, folder: Path) -> None:
    """Raise an error if the folder belongs to another run."""
    if not (folder / RUN).exists():
        begin(folder)
        return
    before = read_json(folder / RUN)
    for name, value in described(recipe).items():
        if name not in RESUMABLE_SETTINGS and before.get(name) != value:
            shown = " other files" if name == "data" else f" {name} = {before.get(name)}, and {value} was asked for"
            longer = ", for the learning rate falls towards its last step" if name == "steps" else ""
            raise CheckpointError(
                f"{folder} holds a run with{shown}; go on with the same{longer}, or choose another folder"
            )


def begin(folder: Path) -> None:
    """Take a folder into use. What an attempt of ours left there that never began is cleared away; what is of somebody
    else is neither used nor touched.
    """
    data = [folder / TOKENS, folder / TOKENIZER]
    if (folder / UNFINISHED_RUN).exists():
        for left in (*data, *folder.glob(f".unfinished-{TOKENS}-*")):
            shutil.rmtree(left, ignore_errors=True)
    elif found := [place.name for place in data if place.exists()]:
        raise SettingError(f"{folder} holds {' and '.join(found)}, which are of no run; choose another folder")
    (folder / UNFINISHED_RUN).touch()


def claim(recipe: Recipe, folder: Path) -> None:
    """Write run.json, once data and model are ready."""
    if not (folder / RUN).exists():
        write_json(folder / UNFINISHED_RUN, described(recipe))
        (folder / UNFINISHED_RUN).replace(folder / RUN)


def described(recipe: Recipe) -> dict[str, Any]:
    """Everything that determines the result of a run, in JSON types."""
    return {"recipe": recipe.name, **recipe.identity, **asdict(recipe.settings), "betas": list(recipe.settings.betas)}


def write_model(model: nn.Module, tokenizer: AnyTokenizer | None, folder: Path) -> str:
    """Write a whole model with its tokenizer, where the layout of Hugging Face can express it; says what was done."""
    if not isinstance(model, Decoder):
        return f"the weights are in {folder / 'checkpoints'}; there is no common layout for a {type(model).__name__}"
    place, trained = folder / "model", copy(model)
    trained.config = replace(model.config, dropout=0.0)  # most families cannot say it, and it has done its work
    try:
        save(trained, place, overwrite=True)
    except CheckpointError as error:
        return f"the weights are in {folder / 'checkpoints'}; Hugging Face has no layout for this model: {error}"
    if tokenizer is not None:
        tokenizer.save(place)
    return f"the model is in {place}"
