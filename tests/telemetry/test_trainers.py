"""`WatchCallback` and `watch` in real trainers with real loggers; those that are not installed are skipped."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter
from transformers import Trainer, TrainingArguments

from attnscope import WatchCallback
from attnscope.telemetry.run_log import read_steps
from attnscope.telemetry.watcher import Watch
from tests.telemetry.test_watcher import make_model, train

STEPS = 6


class Sequences(Dataset):
    """Random token ids as a trainer of transformers takes them."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        ids = torch.randint(64, (16,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": ids, "labels": ids}


def arguments(folder: Path, **options: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "trainer"),
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
        **options,
    }


def steps_in(folder: Path) -> list[int]:
    return [logged.step for logged in read_steps(folder)]


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 3}, {"bf16": True}], ids=str)
def test_trainer_of_transformers(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = tmp_path / "run"
    callback: Any = WatchCallback(every=2, folder=folder)
    model, plain = make_model(), make_model()
    Trainer(
        model, TrainingArguments(**arguments(tmp_path, **options)), train_dataset=Sequences(), callbacks=[callback]
    ).train()
    Trainer(plain, TrainingArguments(**arguments(tmp_path, **options)), train_dataset=Sequences()).train()
    assert steps_in(folder) == [1, 2, 4, 6]
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))
    assert callback.watch is None


def test_trainer_that_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    folder, saving = tmp_path / "run", {"save_strategy": "steps", "save_steps": 2}

    def trainer(steps: int, callback: Any) -> Trainer:
        options = arguments(tmp_path, **saving, max_steps=steps, lr_scheduler_type="constant")
        return Trainer(make_model(), TrainingArguments(**options), train_dataset=Sequences(), callbacks=[callback])

    trainer(6, WatchCallback(every=1, folder=tmp_path / "whole")).train()
    trainer(5, WatchCallback(every=1, folder=folder)).train()  # stops after step 5, past the checkpoint of step 4
    trainer(6, WatchCallback(every=1, folder=folder)).train(
        resume_from_checkpoint=str(tmp_path / "trainer/checkpoint-4")
    )
    assert (folder / "steps.jsonl").read_bytes() == (tmp_path / "whole/steps.jsonl").read_bytes()


def test_sft_trainer_of_trl(tmp_path: Path) -> None:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(
        [{"input_ids": item["input_ids"].tolist()} for item in map(Sequences().__getitem__, range(64))]
    )
    options = arguments(tmp_path, max_length=16, bf16=False, dataset_kwargs={"skip_prepare_dataset": True})
    folder = tmp_path / "run"
    tokenizer = make_tokenizer()
    trainer = trl.SFTTrainer(
        make_model(),
        args=trl.SFTConfig(**options),
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[WatchCallback(every=3, folder=folder)],
    )
    trainer.train()
    assert steps_in(folder) == [1, 3, 6]


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "<pad>": 1, "<eos>": 2} | {f"w{at}": at for at in range(3, 64)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # in Lightning's own code
@pytest.mark.parametrize("accumulate", [1, 2])
def test_trainer_of_lightning(tmp_path: Path, accumulate: int) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    folder = tmp_path / "run"
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accumulate_grad_batches=accumulate,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[WatchCallback(every=2, folder=folder)],
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), DataLoader(Sequences(), batch_size=2))
    assert steps_in(folder) == [1, 2, 4, 6]


def watch_with(log: Any) -> None:
    model = make_model()
    with Watch(model, every=2, log=log) as watch:
        train(model, 4, watch)


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with SummaryWriter(str(tmp_path)) as writer:
        watch_with(writer)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("attention/max_logit")] == [1, 2, 4]


def test_wandb_offline(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    with wandb.init(mode="offline", dir=tmp_path, project="watch") as run:
        watch_with(run.log)
        summary = dict(run.summary)
    assert summary["attention/max_logit"] > 0
    assert list(tmp_path.rglob("*.wandb"))


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio")
    trackio.init(project="watch")
    watch_with(trackio.log)
    trackio.finish()
    assert any(path.stat().st_size for path in tmp_path.rglob("*.db"))


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_experiment("watch")
    with mlflow.start_run():
        watch_with(mlflow.log_metrics)
    assert [path.name for path in tmp_path.rglob("max_logit")]


def test_a_logger_may_be_any_function() -> None:
    lines: list[str] = []
    watch_with(lambda values, step: lines.append(json.dumps({"step": step, **values})))
    assert len(lines) == 3
