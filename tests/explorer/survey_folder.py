"""A small survey for tests of its page: a model with random weights, and what its heads do in a few documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from attnscope.explorer.library.library import Library
from attnscope.explorer.library.survey import SurveyView
from attnscope.explorer.sessions.lazy_session import survey_session
from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig, save
from attnscope.survey import open_survey, run_survey
from tests.explorer.serving import Handle, serving

LAYERS, HEADS = 3, 4
DOCUMENTS = tuple(
    f"{name} came to the market at {hour} and bought {many} pears.\nThe pears of {name} were green; {name} was glad."
    for name, hour, many in zip(
        ("Anna", "Berta", "Clara", "Dora", "Edith", "Frida", "Greta", "Hanna", "Irma", "Jutta", "Klara", "Lotte"),
        ("noon", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"),
        ("two", "six", "ten", "no", "nine", "some", "five", "all", "four", "few", "eight", "many"),
        strict=True,
    )
)


def save_model(folder: Path, documents: Sequence[str] = DOCUMENTS, *, seed: int = 0) -> Path:
    """A decoder of characters with weights that are far from all alike."""
    tokenizer = CharacterTokenizer.from_text("".join(documents))
    torch.manual_seed(seed)
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_layers=LAYERS,
        num_heads=HEADS,
        intermediate_size=48,
        max_position_embeddings=600,
    )
    model = Decoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    save(model, folder)
    tokenizer.save(folder)
    return folder


def make_survey(folder: Path, documents: Sequence[str] = DOCUMENTS, **settings: Any) -> Path:
    """A survey of such a model, and its folder; the model lies beside it."""
    model = save_model(folder / "small-model", documents)
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    run_survey(model, corpus, folder / "surveyed", **settings)
    return folder / "surveyed"


@contextmanager
def survey_served(folder: Path, model: Path | None = None) -> Iterator[Handle]:
    """A server of a survey, and of its model once somebody asks for it."""
    library = Library()
    library.survey = SurveyView(open_survey(folder), "a survey")
    with serving(library, survey_session(library.survey.survey, model), page=True) as handle:
        yield handle
