"""The fields of a config.json, each accounted for: read, known to change nothing, allowed at one value, or refused.

In: an object that somebody else wrote. Out: sizes, numbers, flags and choices that have the type and range they should.
Does not know: what a field means to a model; the families say that.
Memory: O(fields).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from reprlib import Repr
from typing import TypeVar

from attnscope.errors import CheckpointError

Choice = TypeVar("Choice")

MAX_LAYERS = 100_000
"""Some settings are lists with an entry a layer, so their number is limited before any list is made."""

MAX_SIZE_OF_ANYTHING = 2**53
"""Larger counts are no counts, and their products have more digits than Python prints."""

CHANGES_NOTHING = (
    # what the file says about itself and its training
    "_name_or_path", "_model_name_or_path", "_commit_hash", "architectures", "transformers_version", "model_type",
    "dtype", "torch_dtype", "initializer_range", "gradient_checkpointing", "use_cache", "output_attentions",
    "output_hidden_states", "return_dict", "torchscript", "use_bfloat16", "chunk_size_feed_forward",
    "attn_implementation", "_attn_implementation_autoset", "tokenizer_class", "transformers.js_config",
    "unsloth_version", "unsloth_fixed",
    # what the tokens mean
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id",
    "decoder_start_token_id",
    # the heads of tasks, which are left out
    "id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task", "task_specific_params",
    # how older versions noted the way that text is generated
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "prefix",
)  # fmt: skip
"""Fields of every family that change no number that a model computes."""

ONE_VALUE: dict[str, object] = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": {},
    "tie_encoder_decoder": False,
}
"""Fields of every family that are understood at one value only."""


SHORT = Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 100
"""Values and names come from strangers: they are cut short, and cannot write to a terminal."""


class Required:
    """The default of a field that has none."""


REQUIRED = Required()


class Fields:
    """An object from a file: every field is asked for once, and `finish` refuses what nobody asked for.

    >>> fields = Fields({"hidden_size": 64, "bos_token_id": 1}, source="config.json")
    >>> fields.size("hidden_size")
    64
    >>> fields.changes_nothing("bos_token_id")
    >>> fields.finish()
    """

    def __init__(self, found: Mapping[str, object], *, source: str, ignore: Collection[str] = (), path: str = ""):
        """Fields named in `ignore` are treated as if they were not in the file; `path` is where an inner object is."""
        self.source, self.path, self.ignore = source, path, tuple(ignore)
        self.found = {name: value for name, value in found.items() if path + name not in self.ignore}
        self.left = dict(self.found)

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def take(self, name: str, default: object) -> object:
        """The value of a field, whatever it is, or its default."""
        self.left.pop(name, None)
        value = self.found.get(name, default)
        if isinstance(value, Required):
            raise CheckpointError(f"{self.source} has no field {self.path + name!r}, which this kind of model needs")
        return value

    def size(self, name: str, default: int | Required = REQUIRED, *, most: int = MAX_SIZE_OF_ANYTHING) -> int:
        """A count of something: a whole number, at least 1."""
        value = self.take(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.wrong(name, value, f"a whole number from 1 to {most:,}")
        return value

    def optional_size(self, name: str) -> int | None:
        """A count, or None where the file has null or no such field."""
        return None if self.take(name, None) is None else self.size(name)

    def number(self, name: str, default: float | Required = REQUIRED) -> float:
        """A finite number that is not negative."""
        value = self.take(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= sys.float_info.max:
            raise self.wrong(name, value, "a finite number of at least 0")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A finite number, or None where the file has null or no such field."""
        return None if self.take(name, None) is None else self.number(name)

    def flag(self, name: str, default: bool | Required = REQUIRED) -> bool:
        """True or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def choice(self, name: str, choices: Mapping[str, Choice], default: str | Required = REQUIRED) -> Choice:
        """What a name stands for."""
        value = self.take(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(name, value, f"one of {', '.join(choices)}")
        return choices[value]

    def shared_number(self, *names: str) -> float:
        """The one number that all of these fields that are there agree on; 0 if there are none."""
        numbers = {name: self.number(name) for name in names if name in self.found}
        if len(set(numbers.values())) > 1:
            listed = ", ".join(f"{self.path}{name} = {value}" for name, value in numbers.items())
            raise CheckpointError(
                f"{self.source} has {listed}, but our models have one number for all of them. They only matter in "
                f"training; to leave them out, pass ignore={tuple(self.path + name for name in numbers)!r}"
            )
        return next(iter(numbers.values()), 0.0)

    def inner(self, name: str) -> Fields | None:
        """The fields of an object inside this one, or None where the file has null, {} or no such field."""
        value = self.take(name, None)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        return Fields(value, source=self.source, ignore=self.ignore, path=f"{self.path}{name}.")

    def changes_nothing(self, *names: str) -> None:
        """These fields have no influence on what a model computes, whatever they hold."""
        for name in names:
            self.left.pop(name, None)

    def only(self, **values: object) -> None:
        """These fields are understood at one value only."""
        for name, wanted in values.items():
            value = self.take(name, wanted)
            if value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
                raise self.wrong(name, value, f"{json.dumps(wanted)}, the only value that is understood here")

    def finish(self) -> None:
        """Refuse what nobody has asked for."""
        if not self.left:
            return
        names = tuple(self.path + name for name in sorted(self.left)[:5])
        listed = ", ".join(f"{shown(name)[1:-1]} = {shown(self.left[name[len(self.path) :]])}" for name in names)
        more = f" and {len(self.left) - 5} more" if len(self.left) > 5 else ""
        raise CheckpointError(
            f"{self.source} has fields that are not understood: {listed}{more}. They may change what the model "
            f"computes. If you know that they do not, pass ignore={shown(names)}"
        )

    def wrong(self, name: str, value: object, wanted: str) -> CheckpointError:
        """The refusal of a value."""
        name = self.path + name
        return CheckpointError(
            f"{self.source}: {name} is {shown(value)}, but has to be {wanted}. To read the file as if it had no such "
            f"field, pass ignore=({name!r},)"
        )


def shown(value: object) -> str:
    """A value of unknown size as a short text."""
    return SHORT.repr(value)
