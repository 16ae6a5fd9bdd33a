"""What the campaign disturbs: a survey, a training run, a trace that is saved, and a model that is saved.

A scenario makes its input, and names the command that writes `disk/out`, the command that reads it, and the work in it
that is complete. All paths are relative to one folder, so that every run has the same paths and writes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from attnscope.errors import AttnScopeError
from attnscope.models import load, load_tokenizer, save
from attnscope.models.checked_log import read_log
from attnscope.recording import read
from scripts.fault_injection.processes import Ended, Job, attnscope, print_json
from tests.survey.survey_process import write_model, write_text

OUT = "disk/out"
"""What a scenario writes; a small file system may be mounted at `disk`."""
TEXT = "rose is a garden in the light, and nobody sees it. rose is a garden"
OLD_TEXT = "of the light, in a garden"


class Scenario(ABC):
    """One kind of work.

    Args:
        folder: Where its input and its results are.
    """

    name: str
    inputs: tuple[str, ...]
    """Input folders that are watched; the first may disappear."""
    can_be_half_done = False
    """Whether the command resumes an interrupted run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def out(self) -> Path:
        """The folder with the results."""
        return self.folder / OUT

    def make_input(self) -> None:
        """Write the input, once."""
        self.folder.mkdir(parents=True)
        write_model(self.folder / "model")
        (self.folder / "disk").mkdir()

    @abstractmethod
    def write(self) -> Job:
        """The command that writes the results, or resumes."""

    @abstractmethod
    def read(self) -> Job:
        """The command that prints every number of the results."""

    def write_old(self) -> Job | None:
        """A command that writes another result of the same kind, which `write` then replaces."""
        return None

    @abstractmethod
    def complete_work(self) -> Mapping[str, Any]:
        """The complete units of work in `out`, each with a stamp that changes if it is done again."""

    def lost_work(self, before: Mapping[str, Any], resumed: Ended) -> str:
        """What of the work that was complete before the resumed run did again; empty if nothing."""
        after = self.complete_work()
        return ", ".join(sorted(name for name, stamp in before.items() if after.get(name) != stamp))

    def repeated_work(self) -> str:
        """What two processes have both done, after both had success; empty if nothing."""
        return ""

    def is_damageable(self, path: Path) -> bool:
        """Whether a damage to this file of `out` is one that the project promises to notice or survive."""
        return not path.name.startswith((".", "events.out"))

    def repair(self, damaged: Path, intact: bytes) -> None:
        """Do what the error says about a damaged file: by default, start again.

        Args:
            damaged: The file.
            intact: What it was, as a backup has it.
        """
        shutil.rmtree(self.out)

    def _job(self, command: Any, *arguments: str) -> Job:
        watched = [self.folder / "disk", *(self.folder / name for name in self.inputs)]
        return Job(command, arguments, self.folder, watched)


class SurveyScenario(Scenario):
    """`attnscope survey run`: shards are the units of work."""

    name = "survey"
    inputs = ("corpus",)
    can_be_half_done = True

    def make_input(self) -> None:
        """Write a model, and three files of text in eight shards."""
        super().make_input()
        (self.folder / "corpus").mkdir()
        for number in range(3):
            write_text(self.folder / "corpus" / f"{number}.txt", 4000, seed=number)

    def write(self) -> Job:
        """Run or resume the survey."""
        settings = ("--max-length", "64", "--batch-tokens", "512", "--shard-bytes", "1500", "--threads", "1")
        return self._job(attnscope, "survey", "run", "model", "corpus", "--out", OUT, *settings)

    def read(self) -> Job:
        """Read all tables."""
        return self._job(read_survey, OUT)

    def complete_work(self) -> Mapping[str, Any]:
        """The partial results on disk."""
        files = sorted((self.out / "partials").glob("*.partial"))
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}

    def repeated_work(self) -> str:
        """The number of shards that were read, if it is more than there are."""
        runs = json.loads((self.out / "log.json").read_text(encoding="utf-8"))["runs"]
        read, shards = sum(run["shards"] for run in runs), len(self.complete_work())
        return f"{read} shards were read, and there are {shards}" if read > shards else ""

    def repair(self, damaged: Path, intact: bytes) -> None:
        """Delete a damaged file, for a table also the manifest that lists it; restore the identity of the survey."""
        if damaged.name == "survey.json":
            damaged.write_bytes(intact)
            return
        damaged.unlink(missing_ok=True)
        if damaged.suffix == ".parquet":
            (self.out / "manifest.json").unlink(missing_ok=True)


class TrainingScenario(Scenario):
    """`attnscope train char-gpt`: checkpoints are the units of work."""

    name = "training"
    inputs = ("text",)
    can_be_half_done = True

    def make_input(self) -> None:
        """Write a text."""
        self.folder.mkdir(parents=True)
        (self.folder / "disk").mkdir()
        (self.folder / "text").mkdir()
        write_text(self.folder / "text" / "text.txt", 6000)

    def write(self) -> Job:
        """Train or resume."""
        settings = {
            "steps": 8, "batch-size": 2, "sequence-length": 16, "warmup-steps": 2, "log-every": 1, "evaluate-every": 4,
            "evaluate-sequences": 4, "sample-every": 0, "checkpoint-every": 2, "keep-checkpoints": 2,
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return self._job(attnscope, "train", "char-gpt", "--data", "text/text.txt", "--out", OUT, *words)

    def read(self) -> Job:
        """Read the curve and the model."""
        return self._job(read_run, OUT)

    def complete_work(self) -> Mapping[str, Any]:
        """The step of each complete checkpoint."""
        folders = sorted((self.out / "checkpoints").glob("step-*"))
        return {path.name: int(path.name[5:]) for path in folders if re.fullmatch(r"step-\d{8}", path.name)}

    def lost_work(self, before: Mapping[str, Any], resumed: Ended) -> str:
        """The newest checkpoint, if the run did not resume from it."""
        newest = max(before.values(), default=0)
        found = re.search(r"resuming after step (\d+)", resumed.errors)
        return "" if int(found[1] if found else 0) >= newest else f"step-{newest:08}"

    def repair(self, damaged: Path, intact: bytes) -> None:
        """Remove a damaged checkpoint, or damaged tokens, which are written again; restore other files of the run."""
        if damaged.name in ("run.json", "metrics.jsonl"):
            damaged.write_bytes(intact)
        elif damaged.parent.parent.name == "checkpoints":
            shutil.rmtree(damaged.parent)
        elif damaged.parent.name in ("tokens", "tokenizer"):
            for name in ("tokens", "tokenizer"):
                shutil.rmtree(self.out / name)
        else:
            super().repair(damaged, intact)


class SavedScenario(Scenario):
    """Something that is saved at once, so that it is there or not."""

    inputs = ("model",)

    def complete_work(self) -> Mapping[str, Any]:
        """Nothing: saving again writes all of it."""
        return {}


class TraceScenario(SavedScenario):
    """`read(...).save(folder)`, and `attnscope heads FOLDER`."""

    name = "trace"

    def write(self) -> Job:
        """Record a text and save the trace."""
        return self._job(save_trace, "model", TEXT, OUT)

    def write_old(self) -> Job:
        """A trace of another text."""
        return self._job(save_trace, "model", OLD_TEXT, OUT)

    def read(self) -> Job:
        """Score all heads."""
        return self._job(attnscope, "heads", OUT, "--json")


class CheckpointScenario(SavedScenario):
    """`save(model, folder)`, and `load(folder)`."""

    name = "checkpoint"

    def make_input(self) -> None:
        """Write two models."""
        super().make_input()
        write_model(self.folder / "old", num_heads=2)

    def write(self) -> Job:
        """Load a model and save it."""
        return self._job(save_model, "model", OUT)

    def write_old(self) -> Job:
        """Another model."""
        return self._job(save_model, "old", OUT)

    def read(self) -> Job:
        """Load the model and its tokenizer."""
        return self._job(read_model, OUT)


SCENARIOS: dict[str, type[Scenario]] = {
    kind.name: kind for kind in (SurveyScenario, TrainingScenario, TraceScenario, CheckpointScenario)
}


def save_trace(model_folder: str, text: str, out: str) -> int:
    """Record a model on a text, and save the trace."""
    try:
        model, tokenizer = load(model_folder), load_tokenizer(model_folder)
        read(model, text, tokenizer).save(out)
    except (AttnScopeError, OSError) as error:
        return fail(error)
    return 0


def save_model(model_folder: str, out: str) -> int:
    """Load a model, and save it elsewhere."""
    try:
        model, tokenizer = load(model_folder), load_tokenizer(model_folder)
        save(model, out, overwrite=True)
        tokenizer.save(out)
    except (AttnScopeError, OSError) as error:
        return fail(error)
    return 0


def read_survey(folder: str) -> int:
    """Print all numbers and passages of a survey."""
    from attnscope.survey import open_survey
    from attnscope.survey.tables.survey import QUANTILES, SUMMARY_COLUMNS

    try:
        survey = open_survey(folder)
        found: dict[str, Any] = {"manifest": survey.manifest}
        for column in (*SUMMARY_COLUMNS, *QUANTILES):
            table = survey.table(column)
            found[column] = {name: repr(table[name].tolist()) for name in table.columns}
        heads = list(zip(survey.heads.layers, survey.heads.heads, strict=True))
        places = [(layer, head, name) for layer, head in heads for name in survey.statistics]
        found["histograms"] = repr([(bins.low, bins.high, bins.count) for bins in survey.histograms(places)])
        found["examples"] = [repr(survey.examples(*place)) for place in places]
    except (AttnScopeError, OSError) as error:
        return fail(error)
    return print_json(found)


def read_run(folder: str) -> int:
    """Print the curve of a run, and its model."""
    try:
        metrics = [line for _, line in read_log(Path(folder) / "metrics.jsonl", advice="copy it again")]
        for line in metrics:
            line.pop("tokens_per_second", None)
        return print_json({"metrics": metrics, "model": describe_model(Path(folder) / "model")})
    except (AttnScopeError, OSError) as error:
        return fail(error)


def read_model(folder: str) -> int:
    """Print all about a model."""
    try:
        return print_json(describe_model(Path(folder)))
    except (AttnScopeError, OSError) as error:
        return fail(error)


def describe_model(folder: Path) -> dict[str, Any]:
    """The configuration of a model, the hash of each parameter, and a text in its tokens."""
    model, ids = load(folder), list(load_tokenizer(folder).encode(TEXT))
    hashes = {name: tensor_hash(tensor) for name, tensor in model.state_dict().items()}
    return {"config": repr(model.config), "parameters": hashes, "ids": ids}


def tensor_hash(tensor: torch.Tensor) -> str:
    """A hash of the numbers of a tensor."""
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def fail(error: Exception) -> int:
    """Print an error of AttnScope or of the disk as the command line does."""
    print(f"attnscope: {' '.join(str(error).split())}", file=sys.stderr)
    return 2
