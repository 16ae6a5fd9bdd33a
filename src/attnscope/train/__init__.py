"""Training, from a mini-GPT on a laptop to many machines, by one loop."""

from attnscope.train.batch import IGNORED, Batch, Batches
from attnscope.train.loop import Trained, train
from attnscope.train.recipe import Data, Recipe
from attnscope.train.recipes import RECIPES, char_gpt, gpt2_small, induction, reversal, smollm2_finetune
from attnscope.train.settings import Settings

__all__ = [
    "IGNORED",
    "RECIPES",
    "Batch",
    "Batches",
    "Data",
    "Recipe",
    "Settings",
    "Trained",
    "char_gpt",
    "gpt2_small",
    "induction",
    "reversal",
    "smollm2_finetune",
    "train",
]
