"""Training, from a mini-GPT on a laptop to many machines, by one loop."""

from sightline.train.batch import IGNORED, Batch, Batches
from sightline.train.loop import Trained, train
from sightline.train.recipe import Data, Recipe
from sightline.train.recipes import RECIPES, char_gpt, gpt2_small, induction, reversal, smollm2_finetune
from sightline.train.settings import Settings

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
