"""A model that comes on stage when it is first asked for.

In: how to load it. Out: its `ModelSession`; until then nothing of it is in memory. What kept it away is
remembered in words, and the next who asks tries again. Any thread may ask: it is loaded once.
Does not know: what is asked of the model. Memory: the model, once it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from attnscope.errors import AttnScopeError, Cancelled, SettingError, UnsupportedError
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.sessions.model_session import LIMIT, ModelSession
from attnscope.models.fingerprint import fingerprint_model
from attnscope.recording import load
from attnscope.survey.tables.survey import Survey

MAX_PASSAGE_TOKENS = (
    8192  # tokens of a document that a survey has read whole, and of which a map is made while one waits
)

Make = Callable[[CancelCheck], ModelSession]


class LazySession:
    """`stage` is None until the model was `called`, and `problem` says why it is, where somebody has tried."""

    def __init__(self, name: str, make: Make) -> None:
        self.name = name
        self.stage: ModelSession | None = None
        self.problem: str | None = None
        self._make, self._turn = make, Lock()

    def called(self, cancelled: CancelCheck) -> ModelSession:
        """The model on stage; raises what keeps it away, as an error for people."""
        with self._turn:
            if self.stage is None:
                try:
                    self.stage = self._make(cancelled)
                except Cancelled:
                    raise
                except Exception as error:  # those of libraries that read models have no common root
                    said = error if isinstance(error, AttnScopeError) else f"{type(error).__name__}: {error}"
                    self.problem = f"{self.name} cannot be loaded here: {' '.join(str(said).split())}"
                    raise UnsupportedError(self.problem) from error
                self.problem = None
            return self.stage


def get_session(stage: ModelSession | LazySession | None) -> ModelSession | None:
    """The model that is on stage now, if any is."""
    return stage.stage if isinstance(stage, LazySession) else stage


def survey_session(survey: Survey, model: str | Path | None) -> LazySession:
    """The model of a survey, or the one that stands in for it, to read passages once more.

    The survey's own place may hold other weights by now, which would show maps that the survey has never seen: those
    are refused, unless somebody names them.
    """
    place = str(model if model is not None else survey.manifest["settings"]["model"])
    name, surveyed = Path(place).name, survey.manifest["model"]

    def make(cancelled: CancelCheck) -> ModelSession:
        def tell(*_: int) -> None:
            if cancelled():
                raise Cancelled(f"{place} was being loaded for a passage that is no longer wanted")

        found, tokenizer = load(place, progress=tell)
        if model is None and fingerprint_model(found, name)["hash"] != surveyed["hash"]:
            raise SettingError(f"the weights in {place} have changed since the survey; to read with them, add --model")
        window = survey.manifest["settings"].get("max_length") or MAX_PASSAGE_TOKENS
        return ModelSession(found, tokenizer, name, limit=max(window, LIMIT))

    return LazySession(name, make)
