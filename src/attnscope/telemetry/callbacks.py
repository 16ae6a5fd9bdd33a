"""`WatchCallback`: a `Watch` for the trainers of transformers, trl and Lightning.

In: the events that a trainer sends to its callbacks. Out: a watch that steps with the optimizer.
Neither library is imported: a callback is what has the methods that they call. Does not know: what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnscope.telemetry.watcher import Watch


class WatchCallback:
    """Watches the model of a trainer.

    Args:
        clip: The limit of QK-clip; see `Watch.clip`. None does not clip.
        **options: Those of `watch`: `every`, `log`, `folder`, `rules`, ...

    >>> callback = WatchCallback(every=100)  # Trainer(..., callbacks=[callback])
    """

    def __init__(self, *, clip: float | None = None, **options: Any) -> None:
        self._clip, self._options = clip, options
        self.watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """transformers: training begins, at `state.global_step` steps if it resumes."""
        self._open(model, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """transformers: the optimizer has stepped."""
        if self.watch is not None:
            self.watch.step()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning: training begins, at `trainer.global_step` steps if it resumes."""
        self._open(pl_module, trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Lightning: a batch is done; the optimizer steps after the last of those whose gradients it accumulates."""
        if self.watch is not None and trainer.global_step > self.watch.num_steps:
            self.watch.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Both: training ends."""
        self._close()

    def on_exception(self, *_: Any) -> None:
        """Lightning: training ends with an error."""
        self._close()

    def _open(self, model: Any, step: int) -> None:
        self._close()
        self.watch = Watch(model, step=step, **self._options).__enter__()
        if self._clip is not None:
            self.watch.clip(self._clip)

    def _close(self) -> None:
        if self.watch is not None:
            self.watch.__exit__()
            self.watch = None

    state_key = "attnscope.WatchCallback"
    """Lightning: the name of its state in a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Lightning: it has no state beyond the number of steps, which the trainer knows."""
        return {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Trainers call a method for every event; the others do nothing."""
        if name.startswith("_"):
            raise AttributeError(name)
        return _ignore


def _ignore(*_: Any, **__: Any) -> None:
    return None
