"""The training loop.

In: a recipe and a folder. Out: the trained model. The same loop runs in a single process and on every rank that
torchrun starts; `parallel` contains the differences. An interrupted run resumes from its last checkpoint and ends with
the same numbers.
Does not know: text files, tasks, how ranks divide the work. Memory: four times the parameters (parameters, gradients,
two moments), and the activations of one micro-batch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sized
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from attnscope.attention import Documents
from attnscope.checksums import crc32_file
from attnscope.errors import CheckpointError, SettingError
from attnscope.heads.over_training import TABLE_CHECKSUM
from attnscope.models import Decoder
from attnscope.progress import StatusBar
from attnscope.train import monitoring
from attnscope.train.batch import IGNORE_INDEX, Batch
from attnscope.train.checkpoint import CheckpointManager
from attnscope.train.interrupts import stop_on_signal
from attnscope.train.metrics import MetricsWriter
from attnscope.train.parallel import Ranks, clip_grad_norm, init_ranks, name_missing_ranks
from attnscope.train.recipe import Data, Recipe
from attnscope.train.run_folder import CHECKPOINTS, claim, open_run, write_model
from attnscope.train.settings import Settings, is_due, learning_rate
from attnscope.train.throughput import ThroughputMeter, flops_per_token, peak_flops

COUNTER = "step {task.completed:,.0f}/{task.total:,.0f}"


class TrainingResult(NamedTuple):
    """The result of a run."""

    model: nn.Module | None
    """The whole model in eval mode; None on all ranks except the first."""
    step: int
    """The number of steps done; less than `Settings.steps` if the run was interrupted."""
    validation_loss: float
    """The validation loss in nats per token; NaN if the run was interrupted."""


class StepResult(NamedTuple):
    """The result of one optimizer step."""

    loss: float
    """The mean loss over the batch, before the update."""
    grad_norm: float
    """The norm of all gradients, before clipping."""
    should_stop: bool
    """Whether any rank was interrupted."""


def train(recipe: Recipe, folder: str | Path, *, progress: bool = True) -> TrainingResult:
    """Train a recipe, or resume an interrupted run.

    Ctrl-C and SIGTERM stop the run after the current step and write a checkpoint. The same call resumes it.

    Args:
        recipe: Data, model and settings; see `attnscope.train.RECIPES`.
        folder: The folder of the run. It is created, or must belong to the same recipe and settings.
        progress: Whether to show progress on standard error.

    Returns:
        The trained model, the number of steps, and the validation loss.

    Raises:
        SettingError: The settings do not fit the data, the model or the number of ranks; another process trains in
            the folder; or a rank does not answer.
        CheckpointError: The folder has another run, or only damaged checkpoints.
    """
    folder = Path(folder)
    with init_ranks(recipe.settings) as ranks:
        display = StatusBar(COUNTER, total=recipe.settings.steps, enabled=progress and ranks.is_first)
        with (
            open_run(recipe, folder, ranks, display.print) as data,
            stop_on_signal() as stopping,
            display,
        ):
            with name_missing_ranks(ranks):
                run = TrainingRun(recipe, data, folder, ranks, display)
            with run, name_missing_ranks(ranks):
                return run.run(stopping)


class TrainingRun:
    """A run on one rank: the model, its optimizer and the current step."""

    def __init__(self, recipe: Recipe, data: Data, folder: Path, ranks: Ranks, display: StatusBar):
        self.recipe, self.settings, self.data, self.folder, self.ranks = recipe, recipe.settings, data, folder, ranks
        self.display, self.throughput, self.validation_loss = display, ThroughputMeter(), math.nan
        torch.manual_seed(self.settings.seed)  # the same initial parameters on all ranks
        model = recipe.model(data, self.settings)
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.flops = flops_per_token(model, self.settings.sequence_length)
        self.peak = peak_flops(ranks.device, bf16=self.settings.bf16) * ranks.world_size
        self.model = ranks.shard(model)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.checkpoints = CheckpointManager(
            folder / CHECKPOINTS,
            ranks,
            keep=self.settings.keep_checkpoints,
            run_id=claim(recipe, folder) if ranks.is_first else "",
            report=display.print,
        )
        self.step = self.first_step = self.checkpoints.load(self.model, self.optimizer)
        self.metrics = open_metrics(folder, self.step, ranks, display.print)
        # Both share their parameters; heads are recorded in the model that is not compiled.
        self.forward = torch.compile(self.model) if self.settings.compile else self.model

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.checkpoints.wait_briefly()
        if self.metrics is not None:
            self.metrics.close()

    def run(self, stopping: threading.Event) -> TrainingResult:
        """Train to the last step, or until the run is interrupted."""
        if self.step:
            self.display.print(f"resuming after step {self.step:,}")
        else:
            tokens = self.settings.steps * self.settings.batch_size * self.settings.sequence_length
            self.display.print(f"{self.recipe.name}: training {self.num_parameters:,} parameters on {tokens:,} tokens")
            self.monitor()
        stopped = False
        while self.step < self.settings.steps and not stopped:
            with self.ranks.step_timeout(enabled=self.step > self.first_step):
                result = self.train_step(stopping)
            stopped = result.should_stop
            self.step += 1
            if is_due(self.settings.log_every, self.step, self.settings.steps):
                self.log_step(result)
            self.monitor()
            if stopped or is_due(self.settings.checkpoint_every, self.step, self.settings.steps):
                if self.metrics is not None:
                    self.metrics.mark_checkpoint(self.step)
                self.checkpoints.save(self.model, self.optimizer, self.step)
        self.checkpoints.finish()
        return self.finish(stopped)

    def train_step(self, stopping: threading.Event) -> StepResult:
        """Do one optimizer step, with gradient accumulation."""
        settings, ranks = self.settings, self.ranks
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, self.step)
        # Dropout is the same in a resumed run, and differs between ranks with different sequences.
        torch.manual_seed(settings.seed + self.step * ranks.num_replicas + ranks.replica)
        batches = self.micro_batches()
        (count,) = ranks.sum_over_ranks(sum(int((batch.targets != IGNORE_INDEX).sum()) for batch in batches))
        total = 0.0
        for number, batch in enumerate(batches, start=1):
            ranks.set_gradient_sync(self.model, number == len(batches))
            loss = sum_loss(self.logits(batch), batch.targets)
            # FSDP averages the gradients of the replicas: times their number, that is the sum.
            (loss * (ranks.num_replicas / max(count, 1.0))).backward()
            total += float(loss.detach())
        grad_norm = clip_grad_norm(list(self.model.parameters()), settings.max_grad_norm)
        if not math.isfinite(grad_norm):
            raise SettingError(
                f"train: expected a finite gradient norm at step {self.step + 1}, got {grad_norm}; start again in "
                "another folder with a lower learning rate or a longer warm-up"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.throughput.add(settings.batch_size * settings.sequence_length)
        total, interrupted = ranks.sum_over_ranks(total, float(stopping.is_set()))
        return StepResult(total / max(count, 1.0), grad_norm, interrupted > 0)

    def micro_batches(self) -> list[Batch]:
        """Return the micro-batches of this rank in the current step."""
        first, size = (
            self.step * self.settings.batch_size,
            self.settings.batch_size // self.settings.gradient_accumulation_steps,
        )
        return [
            self.ranks.local_batch(self.data.training.get_batch(self.ranks.local_samples(first + part * size, size)))
            for part in range(self.settings.gradient_accumulation_steps)
        ]

    def logits(self, batch: Batch) -> Tensor:
        """Return the logits, (batch, positions, vocab_size)."""
        with (
            torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.settings.bf16),
            self.ranks.attention_context(self.settings.sequence_length),
        ):
            return self.forward(batch.input_ids, **model_inputs(batch)).float()

    def log_step(self, result: StepResult) -> None:
        """Write and show loss, throughput and remaining time."""
        speed = self.throughput.tokens_per_second()
        utilization = "" if self.flops is None else f"  MFU {speed * self.flops / self.peak:.0%}"
        left = (self.settings.steps - self.step) * self.settings.batch_size * self.settings.sequence_length / speed
        status = f"loss {result.loss:.3f}  {speed:,.0f} tokens/s{utilization}  {timedelta(seconds=round(left))} left"
        self.display.update(self.step, status, plain=f"step {self.step:,} of {self.settings.steps:,}")
        self.write_metrics(
            loss=result.loss,
            grad_norm=result.grad_norm,
            learning_rate=learning_rate(self.settings, self.step - 1),
            tokens_per_second=speed,
        )

    def monitor(self) -> None:
        """Validate, generate a sample and score the heads, if they are due after this step."""
        settings, step = self.settings, self.step
        self.throughput.add(0)
        if is_due(settings.evaluate_every, step, settings.steps):
            self.validation_loss, accuracy = self.evaluate()
            self.write_metrics(validation_loss=self.validation_loss, validation_accuracy=accuracy)
            self.display.print(
                f"step {step:,}  validation loss {self.validation_loss:.4f} nats per token, accuracy {accuracy:.1%}"
            )
        if is_due(settings.sample_every, step, settings.steps):
            model = self.gather_model()
            text = (
                None
                if model is None
                else monitoring.generate_sample(model, self.data, self.recipe.prompt, seed=settings.seed)
            )
            if text is not None:
                self.write_metrics(sample=text)
                self.display.print(f"step {step:,}  sample:\n{text}\n")
        if is_due(settings.heads_every, step, settings.steps):
            model = self.gather_model()
            if model is not None and self.metrics is not None:
                table = monitoring.write_head_scores(model, self.data, self.folder, step)
                self.metrics.write_line(step, **{TABLE_CHECKSUM: crc32_file(table)})
        if is_due(settings.sample_every, step, settings.steps) or is_due(settings.heads_every, step, settings.steps):
            self.ranks.sum_over_ranks(0.0)  # the others wait here for the first rank, and not within a step
        self.throughput.skip()

    def evaluate(self) -> tuple[float, float]:
        """Return the mean loss and the accuracy on the validation data."""
        settings, ranks = self.settings, self.ranks
        source, size = self.data.validation, settings.batch_size // settings.gradient_accumulation_steps
        until = len(source) if isinstance(source, Sized) else settings.evaluate_sequences
        total = right = count = 0.0
        with monitoring.evaluation_mode(self.model):
            for first in range(0, until, size):
                samples = ranks.local_samples(first, size)
                batch = source.get_batch(samples)
                counts = torch.tensor([sample < until for sample in samples])[:, None]  # count no sequence twice
                batch = ranks.local_batch(batch._replace(targets=torch.where(counts, batch.targets, IGNORE_INDEX)))
                logits = self.logits(batch)
                total += float(sum_loss(logits, batch.targets))
                right += int((logits.argmax(-1) == batch.targets).sum())
                count += int((batch.targets != IGNORE_INDEX).sum())
        ranks.reshard(self.model)
        total, right, count = ranks.sum_over_ranks(total, right, count)
        return total / max(count, 1.0), right / max(count, 1.0)

    def gather_model(self) -> nn.Module | None:
        """Return the whole model on the first rank, None on the others; all ranks must call this."""
        if self.ranks.world_size == 1:
            return self.model
        parameters = self.ranks.gather_parameters(self.model)
        if not self.ranks.is_first:
            return None
        assert isinstance(self.model, Decoder)
        with torch.device("meta"):
            whole = Decoder(self.model.config)
        whole.load_state_dict(parameters, assign=True)
        return whole

    def finish(self, stopped: bool) -> TrainingResult:
        """Save the model, and print how to resume."""
        if not stopped and math.isnan(self.validation_loss):
            self.validation_loss, _ = self.evaluate()
        model = self.gather_model()
        if model is not None:
            self.display.print(write_model(model.eval(), self.data.tokenizer, self.folder))
        if stopped:
            self.display.print(f"stopped after step {self.step:,}; the same command resumes it")
        return TrainingResult(model, self.step, math.nan if stopped else self.validation_loss)

    def write_metrics(self, **found: float | str) -> None:
        """Write metrics of the current step, on the first rank."""
        if self.metrics is not None:
            self.metrics.write(self.step, **found)


def open_metrics(folder: Path, step: int, ranks: Ranks, report: Callable[[str], object]) -> MetricsWriter | None:
    """Return the writer of metrics on the first rank, None on the others; all raise the error of the first."""
    writer, damage = None, ""
    if ranks.is_first:
        try:
            writer = MetricsWriter(folder, step, report)
        except CheckpointError as error:
            damage = str(error)
    if damage := ranks.broadcast(damage):
        raise CheckpointError(damage)
    return writer


def sum_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy in nats, summed over all targets except `IGNORE_INDEX`."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")


def model_inputs(batch: Batch) -> dict[str, Any]:
    """Return the document mask and positions of a batch, as arguments of a model."""
    inputs: dict[str, Any] = {}
    if batch.document_ids is not None:
        inputs["mask"] = Documents(batch.document_ids)
    if batch.position_ids is not None:
        inputs["position_ids"] = batch.position_ids
    return inputs


def make_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """Return AdamW with weight decay on matrices only."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return AdamW(groups, lr=settings.learning_rate, betas=settings.betas, fused=True)
