"""Recipes: complete configurations of training runs that are known to work.

In: text files, and settings to override. Out: a `Recipe` for `train`.
Does not know: the loop, ranks. Memory: none before the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.attention.rotary import Rotary
from attnscope.errors import SettingError
from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig, load, load_tokenizer, train_bpe
from attnscope.models.published_configs import DECODERS
from attnscope.models.text.any_tokenizer import AnyTokenizer
from attnscope.train.batch import Dataset
from attnscope.train.data.corpus import TextSources, make_text_data
from attnscope.train.recipe import Data, Recipe
from attnscope.train.settings import Settings
from attnscope.train.tasks import Repetition, Reversal, ReversalModel

Sources = Sequence[str | Path]
VALIDATION_SEED_OFFSET = 1_000_003


def char_gpt(sources: Sources, *, separator: str | None = None, **changes: Any) -> Recipe:
    """A small character-level GPT; trains in minutes on two cores.

    Args:
        sources: Text files, or folders with text files.
        separator: A line that separates documents; each file is one document if None.
        **changes: Settings to override, see `Settings`.
    """
    settings = Settings(
        steps=1500,
        batch_size=32,
        sequence_length=128,
        learning_rate=4e-3,
        betas=(0.9, 0.99),
        evaluate_sequences=864,
        sample_every=250,
    )

    def model(data: Data, settings: Settings) -> Decoder:
        assert data.tokenizer is not None
        return Decoder(
            small_llama(
                vocab_size=data.tokenizer.vocab_size, hidden_size=128, num_layers=4, num_heads=4, settings=settings
            )
        )

    return text_recipe(
        "char-gpt",
        TextSources(sources, separator),
        train_character_tokenizer,
        model,
        override_settings(settings, changes),
    )


def gpt2_small(
    sources: Sources, *, tokenizer: str | Path | None = None, separator: str | None = None, **changes: Any
) -> Recipe:
    """GPT-2 small with 124 million parameters, for a cluster.

    Args:
        sources: Text files, or folders with text files.
        tokenizer: A folder or hub name of a tokenizer; a BPE tokenizer is trained on the sources if None.
        separator: A line that separates documents; each file is one document if None.
        **changes: Settings to override, see `Settings`.

    Returns:
        The recipe.

    Raises:
        SettingError: There is no setting of a name in `changes`.
    """
    settings = Settings(
        steps=600_000,
        batch_size=480,
        sequence_length=1024,
        learning_rate=6e-4,
        warmup_steps=2000,
        bf16=True,
        compile=True,
        gradient_accumulation_steps=5,
        evaluate_every=1000,
        checkpoint_every=1000,
        sample_every=1000,
    )
    config = replace(DECODERS["gpt2-small"], dropout=0.0)

    def make_tokenizer(texts: TextSources) -> AnyTokenizer:
        return train_bpe(texts.documents(), config.vocab_size) if tokenizer is None else load_tokenizer(tokenizer)

    def model(data: Data, settings: Settings) -> Decoder:
        assert data.tokenizer is not None
        if data.tokenizer.vocab_size > config.vocab_size or settings.sequence_length > config.max_position_embeddings:
            raise SettingError(
                f"gpt2-small has {config.vocab_size:,} token ids and {config.max_position_embeddings:,} positions, "
                f"got {data.tokenizer.vocab_size:,} ids and sequence_length {settings.sequence_length:,}"
            )
        return Decoder(config)

    recipe = text_recipe(
        "gpt2-small", TextSources(sources, separator), make_tokenizer, model, override_settings(settings, changes)
    )
    return replace(recipe, identity={**recipe.identity, "tokenizer": None if tokenizer is None else str(tokenizer)})


def smollm2_finetune(
    sources: Sources,
    *,
    base_model: str | Path = "HuggingFaceTB/SmolLM2-135M",
    separator: str | None = None,
    **changes: Any,
) -> Recipe:
    """Fine-tunes SmolLM2, or another decoder with a tokenizer, on text files.

    Args:
        sources: Text files, or folders with text files.
        base_model: A folder or hub name of a decoder.
        separator: A line that separates documents; each file is one document if None.
        **changes: Settings to override, see `Settings`.

    Returns:
        The recipe.

    Raises:
        SettingError: There is no setting of a name in `changes`.
    """
    settings = Settings(
        steps=200,
        batch_size=8,
        sequence_length=512,
        learning_rate=5e-5,
        warmup_steps=20,
        weight_decay=0.01,
        evaluate_every=50,
        evaluate_sequences=16,
        checkpoint_every=50,
        sample_every=50,
    )

    def model(_data: Data, _settings: Settings) -> nn.Module:
        loaded = load(base_model, dtype=torch.float32)
        if not isinstance(loaded, Decoder):
            raise SettingError(f"smollm2-finetune: expected a decoder, and {base_model} is an encoder")
        return loaded.train()

    def tokenizer(_texts: TextSources) -> AnyTokenizer:
        return load_tokenizer(base_model)

    tuned = override_settings(settings, changes)
    recipe = text_recipe("smollm2-finetune", TextSources(sources, separator), tokenizer, model, tuned)
    return replace(recipe, identity={**recipe.identity, "base_model": str(base_model)})


def reversal(*, with_positions: bool = True, **changes: Any) -> Recipe:
    """One attention layer learns to reverse a sequence of digits, which it cannot do without positions.

    Args:
        with_positions: Whether the model has position embeddings.
        **changes: Settings to override, see `Settings`.
    """
    settings = Settings(
        steps=600,
        batch_size=64,
        sequence_length=12,
        learning_rate=1e-2,
        warmup_steps=20,
        weight_decay=0.0,
        evaluate_every=100,
        evaluate_sequences=512,
    )

    def model(_data: Data, settings: Settings) -> ReversalModel:
        return ReversalModel(
            vocab_size=Reversal.vocab_size, sequence_length=settings.sequence_length, with_positions=with_positions
        )

    identity = {"with_positions": with_positions}
    return Recipe(
        name="reversal",
        settings=override_settings(settings, changes),
        data=task_data(Reversal),
        model=model,
        identity=identity,
    )


def induction(**changes: Any) -> Recipe:
    """A two-layer decoder learns to continue repeated sequences and develops induction heads.

    Args:
        **changes: Settings to override, see `Settings`.
    """
    settings = Settings(
        steps=500,
        batch_size=64,
        sequence_length=64,
        learning_rate=4e-3,
        weight_decay=0.01,
        evaluate_every=20,
        evaluate_sequences=128,
        heads_every=20,
    )

    def model(_data: Data, settings: Settings) -> Decoder:
        return Decoder(
            small_llama(vocab_size=Repetition.vocab_size, hidden_size=64, num_layers=2, num_heads=4, settings=settings)
        )

    return Recipe(
        name="induction", settings=override_settings(settings, changes), data=task_data(Repetition), model=model
    )


RECIPES: dict[str, Callable[..., Recipe]] = {
    "char-gpt": char_gpt,
    "gpt2-small": gpt2_small,
    "smollm2-finetune": smollm2_finetune,
    "reversal": reversal,
    "induction": induction,
}
"""Recipes by their names on the command line."""


def override_settings(settings: Settings, changes: dict[str, Any]) -> Settings:
    """Settings with some of them changed; if only `steps` is, warmup takes at most a tenth of them.

    Raises:
        SettingError: There is no setting of this name.
    """
    unknown = changes.keys() - Settings.__dataclass_fields__
    if unknown:
        raise SettingError(
            f"{min(unknown)!r} is not a setting; expected one of {', '.join(Settings.__dataclass_fields__)}"
        )
    if "steps" in changes and "warmup_steps" not in changes:
        changes = {**changes, "warmup_steps": min(settings.warmup_steps, changes["steps"] // 10)}
    return replace(settings, **changes)


def task_data(task: Callable[..., Dataset]) -> Callable[[Path, Settings], Data]:
    """The data of a synthetic task, with other samples for validation."""

    def data(_folder: Path, settings: Settings) -> Data:
        training, validation = (
            task(sequence_length=settings.sequence_length, seed=settings.seed + offset)
            for offset in (0, VALIDATION_SEED_OFFSET)
        )
        return Data(training, validation)

    return data


def small_llama(
    *, vocab_size: int, hidden_size: int, num_layers: int, num_heads: int, settings: Settings
) -> DecoderConfig:
    """A small decoder like Llama: rotary positions, RMSNorm, SwiGLU, no biases.

    Its sliding window is as long as a training sequence, so that it can generate beyond that length without distances
    that it was not trained on.
    """
    return DecoderConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=8 * hidden_size // 3 // 8 * 8,
        max_position_embeddings=settings.sequence_length,
        sliding_windows=(settings.sequence_length,) * num_layers,
        position_encoding=Rotary(dim=hidden_size // num_heads, layout="half"),
        norm="rms",
        activation="silu",
        gated=True,
        qkv_bias=False,
        output_bias=False,
        feed_forward_bias=False,
    )


def train_character_tokenizer(texts: TextSources) -> CharacterTokenizer:
    """A tokenizer of all characters in the sources."""
    return CharacterTokenizer(sorted(set().union(*map(set, texts.documents()))))


def text_recipe(
    name: str,
    texts: TextSources,
    make_tokenizer: Callable[[TextSources], AnyTokenizer],
    model: Callable[[Data, Settings], nn.Module],
    settings: Settings,
) -> Recipe:
    """A recipe that trains on text files."""
    data = partial(make_text_data, texts, make_tokenizer)
    return Recipe(name=name, settings=settings, data=data, model=model, identity=texts.identity())
