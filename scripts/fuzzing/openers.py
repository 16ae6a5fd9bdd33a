"""Everything that opens files, each with small valid files to start from, and a function that opens and uses them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from attnscope.attention.rotary import Rotary
from attnscope.models import CharacterTokenizer, Decoder, DecoderConfig, load, load_tokenizer, save, train_bpe
from attnscope.recording import Trace, open_trace, read

WORDS = "a rose is a rose in the garden of light"


class Opener(ABC):
    """One way in for files."""

    name: ClassVar[str]

    @abstractmethod
    def write_seed(self, folder: Path) -> None:
        """Write a valid input."""

    @abstractmethod
    def open(self, folder: Path) -> None:
        """Open an input, and use it as far as a user would."""


class TraceOpener(Opener):
    """`open_trace`."""

    name = "trace"

    def write_seed(self, folder: Path) -> None:
        """A recorded text, with tokens, a mask and a rotary embedding."""
        tokenizer = CharacterTokenizer.from_text(WORDS)
        read(tiny_model(tokenizer.vocab_size), WORDS[:12], tokenizer).save(folder)

    def open(self, folder: Path) -> None:
        """Open it, and compute the weights of one query of each layer."""
        trace: Trace = open_trace(folder, verify=True)
        trace.tokens()
        for name in list(trace.layers)[:4]:
            layer = trace[name]
            if layer.shape[-1] <= 1024 and layer.shape[-2] >= 1:
                layer[..., 0, :]


class PartialOpener(Opener):
    """`load_partial`: the partial result of a shard of a survey."""

    name = "partial"

    def write_seed(self, folder: Path) -> None:
        """One passage in two heads."""
        from attnscope.survey.partials.partial_files import save_partial

        save_partial(tiny_partial(), folder / "0.partial")

    def open(self, folder: Path) -> None:
        """Load it."""
        from attnscope.survey.partials.partial_files import load_partial

        load_partial(folder / "0.partial")


class SurveyOpener(Opener):
    """`open_survey`: a manifest and tables."""

    name = "survey"

    def write_seed(self, folder: Path) -> None:
        """The tables of one passage in two heads."""
        from tests.survey.synthetic_surveys import write_survey

        dice = np.random.default_rng(0)
        write_survey(folder, [{"sink": dice.random((2, 4)), "reach": dice.random((2, 4))}], layers=("0", "1"))

    def open(self, folder: Path) -> None:
        """Read all tables."""
        from attnscope.survey import open_survey

        survey = open_survey(folder)
        heads = survey.heads
        survey.split()
        for layer, head in list(zip(heads.layers, heads.heads, strict=True))[:2]:
            for statistic in survey.statistics[:2]:
                survey.distribution(layer, head, statistic)
                survey.examples(layer, head, statistic)


class ModelOpener(Opener):
    """`load`: config.json and model.safetensors."""

    name = "model"

    def write_seed(self, folder: Path) -> None:
        """A Llama of one layer."""
        save(tiny_model(13), folder)
        (folder / "attnscope-checksums.json").unlink()  # it would find every change before the readers see it

    def open(self, folder: Path) -> None:
        """Load it, and predict a token."""
        model = load(folder)
        assert isinstance(model, Decoder)
        if model.config.vocab_size >= 2 and model.config.max_position_embeddings >= 2:
            model(torch.tensor([[0, 1]]))


class GgufOpener(Opener):
    """`load` and `load_tokenizer`: a GGUF file."""

    name = "gguf"

    def write_seed(self, folder: Path) -> None:
        """A Llama of one layer, and a vocabulary of thirteen tokens."""
        from gguf import GGMLQuantizationType
        from transformers import LlamaConfig, LlamaForCausalLM

        from tests.models.checkpoint.gguf_files import write

        config = LlamaConfig(
            vocab_size=13, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=16, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
        vocabulary = {"pre": "gpt-2", "merges": ["a b"], "bos_token_id": 11, "eos_token_id": 12}
        vocabulary |= {"tokens": [*"abcdefghij", "ab", "<s>", "</s>"], "token_type": [1] * 11 + [3] * 2}
        metadata = {f"tokenizer.ggml.{name}": value for name, value in vocabulary.items()}
        write(folder / "model.gguf", LlamaForCausalLM(config), kind=GGMLQuantizationType.Q4_0, metadata=metadata)

    def open(self, folder: Path) -> None:
        """Load the model and the tokenizer."""
        load(folder / "model.gguf")
        load_tokenizer(folder / "model.gguf")


class TokenizerOpener(Opener):
    """`load_tokenizer`: tokenizer.json and its configuration."""

    name = "tokenizer"

    def write_seed(self, folder: Path) -> None:
        """A small BPE."""
        train_bpe([WORDS] * 3, 262).save(folder)

    def open(self, folder: Path) -> None:
        """Load it, encode and decode."""
        tokenizer = load_tokenizer(folder)
        tokenizer.decode(list(tokenizer.encode(WORDS)))


class RunOpener(Opener):
    """`read_over_training` and checkpoints: the folder of a training run."""

    name = "run"
    settings: ClassVar[dict[str, Any]] = {
        "steps": 1, "batch_size": 1, "sequence_length": 4, "evaluate_sequences": 1, "checkpoint_every": 1,
        "log_every": 1, "evaluate_every": 1,
    }  # fmt: skip

    def write_seed(self, folder: Path) -> None:
        """One step, and a table of heads."""
        from attnscope.train import train

        train(self._recipe(), folder, progress=False)
        for path in [*(folder / "events").glob("*")]:
            path.unlink()
        (folder / "heads").mkdir(exist_ok=True)
        for step in (0, 1):
            content = "layer,head,sink,previous\nblocks.0,0,0.5,0.25\nblocks.0,1,0.125,0.75\n"
            (folder / "heads" / f"step-{step:08}.csv").write_text(content, encoding="utf-8")

    def open(self, folder: Path) -> None:
        """Read the tables of heads, then resume the run, which is finished."""
        from attnscope.heads import read_over_training
        from attnscope.train import train

        read_over_training(folder).appearances()
        train(self._recipe(), folder, progress=False)

    def _recipe(self) -> Any:
        from dataclasses import replace

        from attnscope.train.recipes import reversal
        from attnscope.train.tasks import ReversalModel

        recipe = reversal(**self.settings)
        return replace(
            recipe,
            model=lambda _data, settings: ReversalModel(
                vocab_size=10, sequence_length=settings.sequence_length, hidden_size=4, num_heads=1
            ),
        )


class WatchOpener(Opener):
    """`RunReader`: the folder of a watched training run."""

    name = "watch"

    def write_seed(self, folder: Path) -> None:
        """Three steps of two heads, and an alert."""
        from tests.telemetry.runs import make_alert, write_run

        write_run(folder, np.arange(6.0).reshape(3, 2), alerts=[make_alert(20, 0)])
        (folder / "statistics.parquet").unlink()  # only other programs read it

    def open(self, folder: Path) -> None:
        """Read it, as the command line and the explorer do."""
        from attnscope.explorer.library.watched_run import WatchedRunView
        from attnscope.telemetry.run_reader import RunReader
        from attnscope.telemetry.run_summary import summarize_run

        run = RunReader(folder)
        run.update()
        summarize_run(run)
        view = WatchedRunView(folder, "a run")
        if view.about()["heads"]:
            view.table("max_logit", 2)
            view.head(0, 2)


OPENERS: dict[str, type[Opener]] = {
    kind.name: kind
    for kind in (
        *(TraceOpener, PartialOpener, SurveyOpener, ModelOpener, GgufOpener, TokenizerOpener, RunOpener, WatchOpener),
    )
}


def tiny_model(vocab_size: int) -> Decoder:
    """A decoder of one layer with two heads."""
    torch.manual_seed(0)
    biases = dict.fromkeys(("qkv_bias", "output_bias", "feed_forward_bias"), False)
    return Decoder(
        DecoderConfig(
            vocab_size=vocab_size, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8,
            max_position_embeddings=16, position_encoding=Rotary(dim=4, layout="half"), norm="rms", activation="silu",
            gated=True, **biases,
        )
    ).eval()  # fmt: skip


def tiny_partial() -> Any:
    """The partial result of one passage in one layer of two heads."""
    from attnscope.survey.corpus.batches import Batch, PlacedPassage
    from attnscope.survey.corpus.passages import Passage
    from attnscope.survey.partials.accumulator import ShardAccumulator
    from attnscope.survey.partials.examples import passage_id
    from tests.survey.synthetic_surveys import row_scores

    accumulator, ids = ShardAccumulator(seed=0), [0, 1, 2, 3]
    placed = PlacedPassage(Passage(ids, "/corpus/text.txt", 0, 0), 0, 0)
    accumulator.begin_batch(Batch(torch.tensor([ids]), None, [placed]), [passage_id(0, 0)], [list("rose")])
    dice = random.Random(0)
    scores = {name: np.array([[dice.random() for _ in ids] for _ in range(2)]) for name in ("sink", "reach")}
    accumulator.add_layer("0", range(2), {name: row_scores(values) for name, values in scores.items()})
    accumulator.finish_batch()
    return accumulator.to_partial(0, "digest", documents=1, problems=())
