"""Predictions are those of the model, whether its hidden states were kept or its text is run again."""

from __future__ import annotations

import base64
import gzip
import json
import time
from typing import Any

import pytest
import torch

from attnscope.explorer.library.library import Library
from attnscope.explorer.sessions import predictions as module
from attnscope.explorer.sessions.hidden_states import HiddenStates, collect_hidden_states
from attnscope.explorer.sessions.letter_session import LetterSession
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.explorer.sessions.random_baseline import make_random_baseline
from attnscope.models import Encoder, EncoderConfig
from attnscope.recording import Trace, read
from tests.explorer.model_sessions import CHARACTERS, TEXT, make_session, small
from tests.explorer.serving import Handle, serving, small_trace


def predicted(handle: Handle, trace: str, start: int = 0, stop: int = 4096) -> dict[str, Any]:
    until = time.monotonic() + 60
    while True:
        answer = handle.get(f"/api/1/{trace}/predictions?from={start}&to={stop}")
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
        if not answer.json["pending"]:
            return answer.json
        assert answer.json["tokens"] == []
        assert time.monotonic() < until
        time.sleep(0.02)


def check(found: dict[str, Any], model: torch.nn.Module, ids: list[int]) -> None:
    """Compare with the logits of the whole text at once."""
    with torch.no_grad():
        logs = model(torch.tensor([ids]))[0].float().log_softmax(-1)
    assert (found["problem"], len(found["tokens"])) == (None, len(ids))
    for at, token in enumerate(found["tokens"]):
        top = logs[at].topk(5)
        assert [text for text, _ in token["next"]] == CHARACTERS.texts(top.indices.tolist())
        assert [chance for _, chance in token["next"]] == pytest.approx(top.values.exp().tolist(), rel=1e-4)
        if at == 0:
            assert (token["surprise"], token["rank"]) == (None, None)
            continue
        own = logs[at - 1, ids[at]]
        assert token["surprise"] == pytest.approx(-float(own), rel=1e-4)
        assert token["rank"] == 1 + int((logs[at - 1] > own).sum())


@pytest.mark.parametrize("kept", [True, False])
def test_predictions_are_those_of_the_model(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_SIZE", 8)
    sizes: list[int] = []
    add = module.TracePredictions._add

    def counted(self: module.TracePredictions, start: int, logits: torch.Tensor) -> None:
        sizes.append(len(logits))
        add(self, start, logits)

    monkeypatch.setattr(module.TracePredictions, "_add", counted)
    model, session = small(), None
    session = make_session(model)
    trace = session.run(TEXT) if kept else read(model, TEXT, CHARACTERS, progress=False)
    assert (session.hidden_states.get(trace) is not None) == kept
    with serving(trace, session) as handle:
        name = handle.server.library.summaries()[0]["trace"]
        found = predicted(handle, name)
        check(found, model, CHARACTERS.encode(TEXT))
        assert max(sizes) <= 8  # never the logits of the whole text
        assert predicted(handle, name, 5, 9)["tokens"] == found["tokens"][5:9]
        unmasked = handle.get(f"/api/1/{name}/meta").json["unmasked"]
        assert predicted(handle, unmasked, 5, 9)["tokens"] == found["tokens"][5:9]
    assert session.hidden_states.get(trace) is None  # no longer needed


def test_what_was_requested_last_is_predicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_SIZE", 8)
    starts: list[int] = []
    add = module.TracePredictions._add

    def watched(self: module.TracePredictions, start: int, logits: torch.Tensor) -> None:
        starts.append(start)
        add(self, start, logits)

    monkeypatch.setattr(module.TracePredictions, "_add", watched)
    model = small()
    session = make_session(model)
    trace = session.run(TEXT)
    found = module.TracePredictions(session, trace)
    assert found.report(20, 22)["pending"]  # before the work begins
    found.start()
    assert found._job.finished.wait(60)
    check(found.report(0, 4096), model, CHARACTERS.encode(TEXT))
    assert starts[:2] == [19, 0]  # token 19 predicts token 20


def test_hidden_states_of_other_tokens_are_not_kept() -> None:
    model = small()
    ids = torch.tensor([CHARACTERS.encode(TEXT)])
    trace = read(model, TEXT, CHARACTERS, progress=False)

    def kept(*texts: torch.Tensor) -> torch.Tensor | None:
        states = HiddenStates()
        with collect_hidden_states(model) as parts, torch.no_grad():
            for text in texts:
                model(text)
        states.keep(trace, model, parts)
        found = states.get(trace)
        return None if found is None else found[1]

    whole = kept(ids)
    assert whole is not None
    assert len(whole) == ids.shape[1]
    after_others = kept(ids[:, :5], ids)  # the model ran on a few tokens before
    assert after_others is not None
    assert torch.equal(after_others, whole)
    assert kept(ids, ids[:, :5]) is None
    assert kept(ids.flip(1)) is None
    assert kept() is None


def test_a_typed_text_and_its_baseline_have_their_own_predictions() -> None:
    model = small()
    with serving(Library(), make_session(model)) as handle:
        for baseline in (False, True):
            trace = handle.post("/api/1/run", {"text": TEXT, "baseline": baseline}).json["trace"]
            check(
                predicted(handle, trace),
                make_random_baseline(model) if baseline else model,
                CHARACTERS.encode(TEXT),
            )


def test_why_there_are_no_predictions_is_said() -> None:
    config = EncoderConfig(
        vocab_size=56, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_position_embeddings=64
    )
    encoder = ModelSession(Encoder(config).eval(), CHARACTERS, "an encoder")
    without_ids = Trace.from_attentions([torch.eye(4)[None, None]])
    cases: list[tuple[Trace, ModelSession | None, str]] = [
        (small_trace(), None, "No model is loaded"),
        (small_trace(), LetterSession(), "No model is loaded"),
        (encoder.run(TEXT), encoder, "does not predict the next token"),
        (without_ids, make_session(), "no token ids"),
        (read(small(hidden_size=16), TEXT, CHARACTERS, progress=False), make_session(), "not of a small model"),
    ]
    for trace, session, problem in cases:
        with serving(trace, session) as handle:
            found = predicted(handle, handle.server.library.summaries()[0]["trace"])
            assert problem in found["problem"]
            assert found["tokens"] == []


def test_a_saved_page_has_the_predictions_of_the_model() -> None:
    session = make_session()
    with serving(session.run(TEXT), session) as handle:
        trace = handle.server.library.summaries()[0]["trace"]
        page = handle.get(f"/api/1/{trace}/0/0/page?i0=0&i1={len(TEXT)}&j0=0&j1={len(TEXT)}").body.decode()
        found = predicted(handle, trace)
    data = json.loads(page.partition('id="attnscope-answers">')[2].partition("</script>")[0])
    index = json.loads(gzip.decompress(base64.b64decode(data["index"])))
    part, start, length = index[f"{trace}/predictions"]
    stored = gzip.decompress(base64.b64decode(data["parts"][part]))[start : start + length]
    assert json.loads(stored) == found


def test_predicting_ends_with_the_library() -> None:
    model = small()
    session, library = make_session(model), Library()
    entry = library.entry(library.add(read(model, TEXT * 15, CHARACTERS, progress=False), name="long"))
    assert entry is not None
    work = module.TracePredictions(session, entry.trace)
    with session.acquire("something else", lambda: False):
        library.start_background(entry, work)
        library.close()
    assert work._job.finished.is_set()
