"""`attnscope train RECIPE`: train a model, or go on with a run that was interrupted."""

from __future__ import annotations

import argparse
import inspect
import os
from pathlib import Path
from typing import Any

from attnscope.cli.parsers import add_command
from attnscope.errors import SettingError

RECIPES = {
    "char-gpt": "a small GPT learns to write, letter by letter: minutes",
    "gpt2-small": "GPT-2 at its real size, for a cluster",
    "smollm2-finetune": "SmolLM2-135M, or another decoder, learns from your text",
    "reversal": "one layer learns to reverse a row of digits: seconds",
    "induction": "two layers learn to repeat, by induction heads: a minute",
}
"""As in `attnscope.train.RECIPES`, which takes longer to import than help should take."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "train",
        about="train a model, on this machine or on many",
        description="Train a model. The same command goes on with a run that was interrupted.\n"
        "On many ranks: torchrun --nproc-per-node N -m attnscope.train RECIPE ...",
        below="recipes:\n" + "\n".join(f"  {name:18}{about}" for name, about in RECIPES.items()),
        examples=["attnscope train char-gpt --data shakespeare.txt --out runs/shakespeare"],
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("recipe", metavar="RECIPE", choices=tuple(RECIPES), help="what to train; see below")
    parser.add_argument("--data", nargs="+", metavar="FILE", help="files or folders of text or Parquet")
    parser.add_argument("--out", metavar="DIR", help="the folder of the run (default: runs/RECIPE)")
    parser.add_argument("--separator", metavar="LINE", help="the line that stands between documents in a file")
    parser.add_argument("--start", metavar="MODEL", help="smollm2-finetune: the model to go on from")
    parser.add_argument("--tokenizer", metavar="MODEL", help="gpt2-small: take the tokenizer of this model")
    parser.add_argument(
        "--without-positions", dest="with_positions", action="store_false", help="reversal: the model that cannot"
    )
    group = parser.add_argument_group("settings", "each has a default that suits the recipe; N in steps, 0 for never")
    for name, kind, about in (
        ("steps", int, "how many times the weights are changed"),
        ("batch", int, "rows of a step, over all ranks"),
        ("length", int, "tokens of a row"),
        ("learning-rate", float, "the highest one"),
        ("warm-up", int, "steps in which it rises"),
        ("least-rate", float, "the share of it that is left at the end"),
        ("weight-decay", float, "pulls matrices towards zero"),
        ("clip", float, "the longest gradient; 0 for any"),
        ("accumulate", int, "in how many parts a batch is read"),
        ("seed", int, "of weights, order and dropout"),
        ("log-every", int, "write the loss every N"),
        ("evaluate-every", int, "read the validation data every N"),
        ("evaluate-rows", int, "rows of it that are read"),
        ("sample-every", int, "write some text every N"),
        ("checkpoint-every", int, "save every N"),
        ("keep", int, "checkpoints that are kept"),
        ("heads-every", int, "score all heads every N, for attnscope heads --over-training"),
        ("tensor", int, "ranks that share the heads of a layer"),
        ("context", int, "ranks that share the positions of a row"),
    ):
        shown = "N" if name.endswith("-every") else kind.__name__.upper()
        group.add_argument(f"--{name}", type=kind, metavar=shown, help=about)
    group.add_argument("--bf16", action=argparse.BooleanOptionalAction, help="matrix products in bfloat16")
    group.add_argument("--compile", action=argparse.BooleanOptionalAction, help="use torch.compile")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> None:
    """Train, and say what came of it."""
    from attnscope.train import RECIPES as MAKE
    from attnscope.train import train

    given: dict[str, Any] = {name: value for name, value in vars(options).items() if name not in ("handler", "recipe")}
    folder = Path(given.pop("out", Path("runs") / options.recipe))
    make = MAKE[options.recipe]
    wanted = inspect.signature(make).parameters
    for name in ("separator", "start", "tokenizer", "with_positions"):
        if name in given and name not in wanted:
            raise SettingError(
                f"train: {options.recipe} has no --{name.replace('with_positions', 'without-positions')}"
            )
    data = given.pop("data", None)
    if ("sources" in wanted) != (data is not None):
        needs = "learns from text; give --data FILE" if data is None else "makes its own data; leave out --data"
        raise SettingError(f"train: {options.recipe} {needs}")
    recipe = make(*([] if data is None else [data]), **given)
    trained = train(recipe, folder)
    if trained.step < recipe.settings.steps:
        if "TORCHELASTIC_RUN_ID" not in os.environ:  # torchrun would take it for a crash, and start again
            raise KeyboardInterrupt
    elif int(os.environ.get("RANK", "0")) == 0:
        print(f"{trained.step} steps, validation loss {trained.validation_loss:.4f} nats per token, in {folder}")
