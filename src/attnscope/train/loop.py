"""The loop: read some rows, see how wrong the model is about them, change its weights a little, and again.

In: a recipe, and a folder for all that comes of it. Out: the trained model. The same loop runs alone and on every rank
that torchrun starts; what differs then stands in `parallel`. A folder in which a run was interrupted, by whatever, goes
on from its last checkpoint and ends with the same numbers.
Does not know: files of text, tasks, how ranks divide the work. Memory: the weights four times (themselves, gradients,
two momenta), and the activations of one part of a batch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sized
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from attnscope.attention import Documents
from attnscope.errors import SettingError
from attnscope.models import Decoder
from attnscope.train import watching
from attnscope.train.batch import IGNORED, Batch
from attnscope.train.checkpoint import Checkpoints
from attnscope.train.display import Display
from attnscope.train.metrics import Metrics
from attnscope.train.parallel import Ranks, all_ranks, clipped
from attnscope.train.recipe import Data, Recipe
from attnscope.train.run_folder import claim, prepared, write_model
from attnscope.train.settings import Settings, is_due, learning_rate
from attnscope.train.speed import Clock, flops_a_token, peak_flops
from attnscope.train.stopping import asked_to_stop


class Trained(NamedTuple):
    """What came of a run."""

    model: nn.Module | None
    """Whole, in eval mode; None on all ranks but the first."""
    step: int
    """Steps that were taken; fewer than asked for if somebody stopped the run."""
    validation_loss: float
    """In nats per token; NaN if the run was stopped."""


class Learned(NamedTuple):
    """What a step found out."""

    loss: float
    """The mean over the batch, before the weights were changed."""
    gradient: float
    """The length of the gradient, before it was shortened."""
    stopped: bool
    """Whether any rank was asked to stop."""


def train(recipe: Recipe, folder: str | Path, *, progress: bool = True) -> Trained:
    """Train a recipe in a folder, or go on with what was begun there.

    Ctrl-C, and SIGTERM, end it after the step at hand, with a checkpoint; asked again, it goes on.
    """
    folder = Path(folder)
    with all_ranks(recipe.settings) as ranks:
        data = prepared(recipe, folder, ranks)
        with (
            asked_to_stop() as stopping,
            Display(recipe.settings.steps, shown=progress and ranks.is_first) as display,
            Run(recipe, data, folder, ranks, display) as run,
        ):
            return run.until(stopping)


class Run:
    """One run on one rank: the model, its optimizer, and how far they have come."""

    def __init__(self, recipe: Recipe, data: Data, folder: Path, ranks: Ranks, display: Display):
        self.recipe, self.settings, self.data, self.folder, self.ranks = recipe, recipe.settings, data, folder, ranks
        self.display, self.clock, self.validation_loss = display, Clock(), math.nan
        torch.manual_seed(self.settings.seed)  # the first weights are the same on all ranks
        model = recipe.model(data, self.settings)
        self.weights = sum(parameter.numel() for parameter in model.parameters())
        self.flops = flops_a_token(model, self.settings.length)
        self.peak = peak_flops(ranks.device, bf16=self.settings.bf16) * ranks.count
        self.model = ranks.spread(model)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.checkpoints = Checkpoints(folder / "checkpoints", ranks, keep=self.settings.keep)
        self.step = self.checkpoints.load(self.model, self.optimizer)
        if ranks.is_first:
            claim(recipe, folder)
        self.metrics = Metrics(folder, self.step or -1) if ranks.is_first else None  # -1: from the beginning
        # The weights are the same; heads are watched in the model that was not compiled.
        self.forward = torch.compile(self.model) if self.settings.compile else self.model

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.checkpoints.settle()
        if self.metrics is not None:
            self.metrics.close()

    def until(self, stopping: threading.Event) -> Trained:
        """Train to the last step, or until somebody asks to stop."""
        if self.step:
            self.display.say(f"going on after step {self.step:,}")
        else:
            tokens = self.settings.steps * self.settings.batch * self.settings.length
            self.display.say(f"{self.recipe.name}: {self.weights:,} weights learn from {tokens:,} tokens")
            self.look()
        stopped = False
        while self.step < self.settings.steps and not stopped:
            learned = self.learn(stopping)
            stopped = learned.stopped
            self.step += 1
            if is_due(self.settings.log_every, self.step, self.settings.steps):
                self.log(learned)
            self.look()
            if stopped or is_due(self.settings.checkpoint_every, self.step, self.settings.steps):
                self.checkpoints.save(self.model, self.optimizer, self.step)
        self.checkpoints.finish()
        return self.finished(stopped)

    def learn(self, stopping: threading.Event) -> Learned:
        """One step."""
        settings, ranks = self.settings, self.ranks
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, self.step)
        # Dropout: the same when a run goes on from a checkpoint, and other for rows that are other.
        torch.manual_seed(settings.seed + self.step * ranks.replicas + ranks.replica)
        parts = self.parts()
        (count,) = ranks.summed(sum(int((part.targets != IGNORED).sum()) for part in parts))
        total = 0.0
        for number, part in enumerate(parts, start=1):
            ranks.last_part(self.model, number == len(parts))
            loss = summed_loss(self.logits(part), part.targets)
            # Ranks see different tokens, and their gradients are averaged: times their number, that is the sum.
            (loss * (ranks.replicas / max(count, 1.0))).backward()
            total += float(loss.detach())
        gradient = clipped(list(self.model.parameters()), settings.clip)
        if not math.isfinite(gradient):
            raise SettingError(
                f"train: the gradient of step {self.step + 1} is {gradient}; begin again in another folder with a "
                "lower learning rate or a longer warm-up"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.clock.count(settings.batch * settings.length)
        total, asked = ranks.summed(total, float(stopping.is_set()))
        return Learned(total / max(count, 1.0), gradient, asked > 0)

    def parts(self) -> list[Batch]:
        """What this rank reads of the step's batch, in as many parts as are accumulated."""
        first, rows = self.step * self.settings.batch, self.settings.batch // self.settings.accumulate
        return [
            self.ranks.positions_of(self.data.training.rows(self.ranks.samples(first + part * rows, rows)))
            for part in range(self.settings.accumulate)
        ]

    def logits(self, batch: Batch) -> Tensor:
        """The scores of every token of the vocabulary at each position."""
        with (
            torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.settings.bf16),
            self.ranks.attention(self.settings.length),
        ):
            return self.forward(batch.tokens, **what_is_seen(batch)).float()

    def log(self, learned: Learned) -> None:
        """Write and show how it goes."""
        speed = self.clock.speed()
        share = None if self.flops is None else speed * self.flops / self.peak
        left = (self.settings.steps - self.step) * self.settings.batch * self.settings.length / speed
        self.display.step(self.step, learned.loss, speed, share, left)
        self.note(
            loss=learned.loss,
            gradient=learned.gradient,
            learning_rate=learning_rate(self.settings, self.step - 1),
            tokens_per_second=speed,
        )

    def look(self) -> None:
        """Whatever is due after this step: validation, a sample of text, the heads."""
        settings, step = self.settings, self.step
        self.clock.count(0)
        if is_due(settings.evaluate_every, step, settings.steps):
            self.validation_loss, accuracy = self.evaluate()
            self.note(validation_loss=self.validation_loss, validation_accuracy=accuracy)
            self.display.say(
                f"step {step:,}  validation loss {self.validation_loss:.4f} nats per token, {accuracy:.1%} right"
            )
        if is_due(settings.sample_every, step, settings.steps):
            model = self.whole_model()
            text = None if model is None else watching.sample(model, self.data, self.recipe.prompt, seed=settings.seed)
            if text is not None:
                self.note(sample=text)
                self.display.say(f"step {step:,}  sample:\n{text}\n")
        if is_due(settings.heads_every, step, settings.steps):
            model = self.whole_model()
            if model is not None:
                watching.score(model, self.data, self.folder, step)
        self.clock.leave_out()

    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy on rows that were not learned from, in whole batches of them."""
        settings, ranks = self.settings, self.ranks
        source, rows = self.data.validation, settings.batch // settings.accumulate
        until = len(source) if isinstance(source, Sized) else settings.evaluate_rows
        total = right = count = 0.0
        with watching.at_rest(self.model):
            for first in range(0, until, rows):
                samples = ranks.samples(first, rows)
                batch = source.rows(samples)
                counts = torch.tensor([sample < until for sample in samples])[:, None]  # no row is counted twice
                batch = ranks.positions_of(batch._replace(targets=torch.where(counts, batch.targets, IGNORED)))
                logits = self.logits(batch)
                total += float(summed_loss(logits, batch.targets))
                right += int((logits.argmax(-1) == batch.targets).sum())
                count += int((batch.targets != IGNORED).sum())
        ranks.resharded(self.model)
        total, right, count = ranks.summed(total, right, count)
        return total / max(count, 1.0), right / max(count, 1.0)

    def whole_model(self) -> nn.Module | None:
        """The model in one piece, on the first rank; all ranks have to call this, and the others get None."""
        if self.ranks.count == 1:
            return self.model
        weights = self.ranks.whole_weights(self.model)
        if not self.ranks.is_first:
            return None
        assert isinstance(self.model, Decoder)
        with torch.device("meta"):
            whole = Decoder(self.model.config)
        whole.load_state_dict(weights, assign=True)
        return whole

    def finished(self, stopped: bool) -> Trained:
        """Leave the model behind, and say how to go on."""
        if not stopped and math.isnan(self.validation_loss):
            self.validation_loss, _ = self.evaluate()
        model = self.whole_model()
        if model is not None:
            self.display.say(write_model(model.eval(), self.data.tokenizer, self.folder))
        if stopped:
            self.display.say(f"stopped after step {self.step:,}; the same command goes on from there")
        return Trained(model, self.step, math.nan if stopped else self.validation_loss)

    def note(self, **found: float | str) -> None:
        """Keep what was found, on the rank that writes."""
        if self.metrics is not None:
            self.metrics.write(self.step, **found)


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses of all tokens that count, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def what_is_seen(batch: Batch) -> dict[str, Any]:
    """What a model is told beside the tokens, where there is something to tell."""
    told: dict[str, Any] = {}
    if batch.documents is not None:
        told["mask"] = Documents(batch.documents)
    if batch.positions is not None:
        told["position_ids"] = batch.positions
    return told


def make_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """AdamW that decays matrices and leaves vectors alone."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return AdamW(groups, lr=settings.learning_rate, betas=settings.betas, fused=True)
