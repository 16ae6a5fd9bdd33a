"""`attnscope train RECIPE`: train a model, or resume a run that was interrupted."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import click

from attnscope.cli.commands import Handler, Name, Options, argument, command, option
from attnscope.errors import SettingError

RECIPES = {
    "char-gpt": "a small GPT on the characters of your text: minutes",
    "gpt2-small": "GPT-2 at its real size, for a cluster",
    "smollm2-finetune": "fine-tune SmolLM2-135M, or another decoder, on your text",
    "reversal": "one layer that reverses a sequence of digits: seconds",
    "induction": "two layers that form induction heads: a minute",
}
"""As in `attnscope.train.RECIPES`, which takes longer to import than help should take."""
SETTINGS = (
    ("steps", int, "number of optimizer steps"),
    ("batch-size", int, "sequences per step, over all ranks"),
    ("sequence-length", int, "sequence length in tokens"),
    ("learning-rate", float, "peak learning rate"),
    ("warmup-steps", int, "steps of linear learning-rate warm-up"),
    ("min-lr-ratio", float, "final learning rate of the cosine schedule, as a fraction of the peak"),
    ("weight-decay", float, "weight decay of matrices"),
    ("max-grad-norm", float, "maximum gradient norm; 0 disables clipping"),
    ("gradient-accumulation-steps", int, "micro-batches per step"),
    ("seed", int, "random seed of parameters, order and dropout"),
    ("log-every", int, "log the loss every N steps"),
    ("evaluate-every", int, "compute the validation loss every N steps"),
    ("evaluate-sequences", int, "sequences per validation"),
    ("sample-every", int, "generate a sample every N steps"),
    ("checkpoint-every", int, "save a checkpoint every N steps"),
    ("keep-checkpoints", int, "number of checkpoints to keep"),
    ("heads-every", int, "score all heads every N steps, for attnscope heads --over-training"),
    ("tensor-parallel-size", int, "ranks that share the heads of each layer"),
    ("context-parallel-size", int, "ranks that share the positions of each sequence (ring attention)"),
    ("start-timeout-seconds", float, "how long ranks wait for each other before the first step and between steps"),
    ("step-timeout-seconds", float, "how long ranks wait for each other within a step"),
)
SECTION = "Training options (the defaults depend on the recipe; N in steps, 0 for never)"


def training_options(handler: Handler) -> Handler:
    """Add an option for each setting."""
    handler = option("--compile/--no-compile", default=None, section=SECTION, about="use torch.compile")(handler)
    handler = option("--bf16/--no-bf16", default=None, section=SECTION, about="matrix products in bfloat16")(handler)
    for name, kind, about in reversed(SETTINGS):
        shown = "N" if name.endswith("-every") else kind.__name__.upper()
        handler = option(f"--{name}", type=kind, metavar=shown, section=SECTION, about=about)(handler)
    return handler


@command(
    "train",
    about="train a model, on one machine or on many",
    description="Train a model, or resume an interrupted run with the same command.\n\n"
    "On many ranks: torchrun --nproc-per-node N -m attnscope.train RECIPE ...",
    notes="Recipes:\n" + "\n".join(f"  {name:18}{about}" for name, about in RECIPES.items()),
    examples=["attnscope train char-gpt --data shakespeare.txt --out runs/shakespeare"],
)
@argument("recipe", type=Name("recipe", tuple(RECIPES)), about="what to train; see below")
@option(
    "--data",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    about="a file or folder of text or Parquet; repeat for several",
)
@option("--out", type=click.Path(), metavar="DIR", about="the folder of the run (default: runs/RECIPE)")
@option("--separator", metavar="LINE", about="the line between documents in a text file")
@option("--base-model", type=click.Path(), metavar="MODEL", about="smollm2-finetune: the model to fine-tune")
@option("--tokenizer", type=click.Path(), metavar="MODEL", about="gpt2-small: use the tokenizer of this model")
@option("--without-positions", is_flag=True, about="reversal: train without positional information (expected to fail)")
@training_options
def train(options: Options) -> None:
    """Train, and print the validation loss."""
    from attnscope.train import RECIPES as MAKE
    from attnscope.train import train as run_training

    given: dict[str, Any] = {name: value for name, value in vars(options).items() if value not in (None, ())}
    del given["recipe"]
    if given.pop("without_positions"):
        given["with_positions"] = False
    folder = Path(given.pop("out", Path("runs") / options.recipe))
    make = MAKE[options.recipe]
    wanted = inspect.signature(make).parameters
    for name in ("separator", "base_model", "tokenizer", "with_positions"):
        if name in given and name not in wanted:
            flag = name.replace("with_positions", "without_positions").replace("_", "-")
            raise SettingError(f"train: {options.recipe} has no --{flag}")
    data = list(given.pop("data", ())) or None
    if ("sources" in wanted) != (data is not None):
        needs = "learns from text; give --data FILE" if data is None else "makes its own data; leave out --data"
        raise SettingError(f"train: {options.recipe} {needs}")
    recipe = make(*([] if data is None else [data]), **given)
    trained = run_training(recipe, folder)
    if trained.step < recipe.settings.steps:
        if "TORCHELASTIC_RUN_ID" not in os.environ:  # torchrun would take it for a crash, and start again
            raise KeyboardInterrupt
    elif int(os.environ.get("RANK", "0")) == 0:
        print(f"{trained.step} steps, validation loss {trained.validation_loss:.4f} nats per token, in {folder}")
