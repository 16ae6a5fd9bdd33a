"""`LazySession`: a model that is loaded on first use.

In: a function that loads it. Out: its `ModelSession`. A failure is stored as a message, and the next request retries.
Any thread may call `load`; the model is loaded once. Does not know: requests. Memory: the model, once loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from attnscope.errors import AttnScopeError, Cancelled, SettingError, UnsupportedError
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.sessions.model_session import MAX_TOKENS, ModelSession
from attnscope.models.fingerprint import fingerprint_model
from attnscope.recording import load
from attnscope.survey.tables.survey import Survey

MAX_PASSAGE_TOKENS = 8192  # of a document that the survey ran whole


class LazySession:
    """A session that is created by the first `load`.

    Args:
        name: The name of the model.
        create: Loads the model; it gets a cancellation check.

    Attributes:
        session: The session, or None before it is loaded.
        problem: Why the last `load` failed, or None.
    """

    def __init__(self, name: str, create: Callable[[CancelCheck], ModelSession]) -> None:
        self.name = name
        self.session: ModelSession | None = None
        self.problem: str | None = None
        self._create, self._lock = create, Lock()

    def load(self, cancelled: CancelCheck) -> ModelSession:
        """Return the session, and create it if needed; raises UnsupportedError with the reason if that fails."""
        with self._lock:
            if self.session is None:
                try:
                    self.session = self._create(cancelled)
                except Cancelled:
                    raise
                except Exception as error:  # libraries that load models have no common base class
                    reason = error if isinstance(error, AttnScopeError) else f"{type(error).__name__}: {error}"
                    self.problem = f"cannot load {self.name}: {' '.join(str(reason).split())}"
                    raise UnsupportedError(self.problem) from error
                self.problem = None
            return self.session


def get_session(session: ModelSession | LazySession | None) -> ModelSession | None:
    """Return the session that is loaded now, if any."""
    return session.session if isinstance(session, LazySession) else session


def survey_session(survey: Survey, model: str | Path | None) -> LazySession:
    """Create a session for the model of a survey, or for the given one, to run passages again.

    The folder in the survey may contain other parameters by now, whose maps would not match the survey. They are
    rejected unless `model` names them.
    """
    source = str(model if model is not None else survey.manifest["settings"]["model"])
    name, surveyed = Path(source).name, survey.manifest["model"]

    def create(cancelled: CancelCheck) -> ModelSession:
        def check(*_: int) -> None:
            if cancelled():
                raise Cancelled(f"loading {source} was cancelled")

        found, tokenizer = load(source, progress=check)
        if model is None and fingerprint_model(found, name)["hash"] != surveyed["hash"]:
            raise SettingError(
                f"the parameters in {source} have changed since the survey; to use them anyway, add --model"
            )
        window = survey.manifest["settings"].get("max_length") or MAX_PASSAGE_TOKENS
        return ModelSession(found, tokenizer, name, max_tokens=max(window, MAX_TOKENS))

    return LazySession(name, create)
