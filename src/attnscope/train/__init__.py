"""One training loop, from a laptop to many ranks."""

from attnscope.train.batch import IGNORE_INDEX, Batch, Dataset
from attnscope.train.loop import TrainingResult, train
from attnscope.train.recipe import Data, Recipe
from attnscope.train.recipes import RECIPES, char_gpt, gpt2_small, induction, reversal, smollm2_finetune
from attnscope.train.settings import Settings

__all__ = [
    "IGNORE_INDEX",
    "RECIPES",
    "Batch",
    "Data",
    "Dataset",
    "Recipe",
    "Settings",
    "TrainingResult",
    "char_gpt",
    "gpt2_small",
    "induction",
    "reversal",
    "smollm2_finetune",
    "train",
]
