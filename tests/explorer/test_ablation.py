"""Ablated heads change predictions as `effect` reports, and nothing else."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnscope.errors import Cancelled, SettingError, UnsupportedError
from attnscope.explorer.library.library import Library
from attnscope.explorer.sessions import ablation as module
from attnscope.explorer.sessions.ablation import Ablation, _cancellable, heads_by_module
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.explorer.sessions.random_baseline import make_random_baseline
from attnscope.heads import Effect, ablate, measure_effect
from attnscope.recording import Trace, load, read
from tests.explorer.model_sessions import CHARACTERS, TEXT, ZOO, make_session, small
from tests.explorer.serving import Handle, serving, small_trace

SMOLLM2 = Path(__file__).resolve().parents[2] / ".cache" / "models" / "smollm2-135m"
HEADS = [(1, 2), (2, 0), (2, 3)]
BY_LAYER = {1: [2], 2: [0, 3]}


def numbers_of(found: Effect, texts: Any) -> dict[str, Any]:
    """What is told of an effect, found in the plainest way."""
    before, after = found.before.losses[0].tolist(), found.after.losses[0].tolist()
    rises = sorted(range(len(before)), key=lambda at: before[at] - after[at])[:10]
    return {
        "tokens": len(before) + 1,
        "loss": [sum(before) / len(before), sum(after) / len(after)],
        "harder": [
            [at + 1, texts([int(found.ids[0, at + 1])])[0], before[at], after[at]]
            for at in rises
            if after[at] > before[at]
        ],
        "next": [[texts([one.token])[0], one.before, one.after] for one in found.next_tokens(10)],
    }


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["tokens"] == wanted["tokens"]
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    for part in ("harder", "next"):
        words = [[cell for cell in row if not isinstance(cell, float)] for row in found[part]]
        assert words == [[cell for cell in row if not isinstance(cell, float)] for row in wanted[part]]
        for column in (-2, -1):
            numbers = [row[column] for row in wanted[part]]
            assert [row[column] for row in found[part]] == pytest.approx(numbers, rel=1e-4, abs=1e-6)


class Passes:
    """How often a model has read."""

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        model.register_forward_hook(self._more)

    def _more(self, *_: object) -> None:
        self.count += 1


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_the_numbers_are_those_of_effect(how: Any) -> None:
    model = small()
    trace = read(model, TEXT, CHARACTERS, progress=False)
    found = Ablation(make_session(model)).effect(trace, "a", HEADS, how)
    wanted = measure_effect(model, TEXT, ablate(model, BY_LAYER, how), CHARACTERS)
    assert abs(float(wanted.loss_change.mean())) > 1e-3
    same(found, numbers_of(wanted, CHARACTERS.texts))


def test_the_numbers_of_a_trained_model_are_those_of_effect() -> None:
    model, tokenizer = load(SMOLLM2)
    text = "When Mary and John went to the store, John gave a drink to"
    session = ModelSession(model, tokenizer, "smollm2")
    with serving(session.run(text), session) as handle:
        name = handle.server.library.summaries()[0]["trace"]
        answer = handle.post("/api/1/ablate", {"trace": name, "heads": [[17, 5], [24, 4]], "how": "zero"})
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
        wanted = measure_effect(model, text, ablate(model, {17: [5], 24: [4]}), tokenizer)
        same(answer.json, numbers_of(wanted, tokenizer.texts))
        assert answer.json["next"][0][0] == " Mary"
        example = handle.get("/api/1/session").json["example"]
        answer = handle.post("/api/1/ablate", {"trace": example, "heads": [[3, 0]]})
        shipped = handle.server.library.entry(example)
        assert shipped is not None
        wanted = measure_effect(model, shipped.trace.texts[0].ids, ablate(model, {17: [4]}), tokenizer)
        same(answer.json, numbers_of(wanted, tokenizer.texts))


def test_heads_are_those_of_the_model_where_some_were_recorded() -> None:
    model = small()
    trace = read(model, TEXT, CHARACTERS, heads={0: [3], 2: [1, 3]}, progress=False)
    assert list(heads_by_module(trace, [(0, 0), (1, 1), (1, 1)]).values()) == [[3], [3]]
    found = Ablation(make_session(model)).effect(trace, "a", [(0, 0), (1, 1)], "zero")
    same(found, numbers_of(measure_effect(model, TEXT, ablate(model, {0: [3], 2: [3]}), CHARACTERS), CHARACTERS.texts))
    for wrong in ((2, 0), (0, 1), (-1, 0), (0, -1)):
        with pytest.raises(SettingError, match="is not in this trace"):
            heads_by_module(trace, [wrong])


def test_without_any_head_nothing_changes() -> None:
    model = small()
    found = Ablation(make_session(model)).effect(read(model, TEXT, CHARACTERS, progress=False), "a", [], "zero")
    assert found["loss"][0] == found["loss"][1]
    assert found["harder"] == []
    assert all(before == after for _, before, after in found["next"])


def test_what_the_whole_model_predicts_is_kept_for_the_last_texts() -> None:
    model = small()
    traces = [read(model, TEXT[at:], CHARACTERS, progress=False) for at in range(5)]
    passes, ablation = Passes(model), Ablation(make_session(model))
    first = ablation.effect(traces[0], "0", HEADS, "zero")
    assert passes.count == 2  # beside the first tokens, of which features alone are read
    assert ablation.effect(traces[0], "0", HEADS, "zero") == first
    assert passes.count == 3
    for at in range(1, 5):
        ablation.effect(traces[at], str(at), [], "zero")
    assert passes.count == 7
    ablation.effect(traces[4], "4", [], "zero")
    assert passes.count == 7
    assert ablation.effect(traces[0], "0", HEADS, "zero") == first
    assert passes.count == 9


def test_traces_of_another_model_are_refused() -> None:
    model = small()
    ablation = Ablation(make_session(model))
    others = [
        read(make_random_baseline(model), TEXT, CHARACTERS, progress=False),
        read(small(num_heads=8), TEXT, CHARACTERS, progress=False),
        small_trace(TEXT),
        read(small(vocab_size=400), torch.arange(300, 310), progress=False),
    ]
    for at, other in enumerate(others):
        with pytest.raises(UnsupportedError, match=r"of another model.*ablate\(model, \{'blocks\.0.*\[1\]\}, 'mean'\)"):
            ablation.effect(other, str(at), [(0, 1)], "mean")


def test_a_trace_in_another_dtype_is_of_the_same_model() -> None:
    model = small()
    trace = read(model, TEXT, CHARACTERS, dtype=torch.bfloat16, progress=False)
    wanted = measure_effect(model, TEXT, ablate(model, BY_LAYER), CHARACTERS)
    same(Ablation(make_session(model)).effect(trace, "a", HEADS, "zero"), numbers_of(wanted, CHARACTERS.texts))


def test_texts_that_cannot_be_read_again_are_refused_with_the_line_to_run() -> None:
    ablation = Ablation(make_session())
    weights = Trace.from_attentions([torch.eye(3)[None, None]])
    with pytest.raises(UnsupportedError, match=r"with token ids.*effect\(model, text, ablate\(model"):
        ablation.effect(weights, "weights", [(0, 0)], "zero")
    model = small()
    one = read(model, "a", CHARACTERS, progress=False)
    with pytest.raises(SettingError, match="at least 2 tokens, got 1"):
        Ablation(make_session(model)).effect(one, "one", [(0, 0)], "zero")


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_a_long_text_is_ablated_in_chunks(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    trace = read(model, TEXT, CHARACTERS, progress=False)
    for name, size in (("WHOLE_TOKENS", 16), ("CHUNK_SIZE", 7), ("TIMED_TOKENS", 5)):
        monkeypatch.setattr(module, name, size)
    ablation = Ablation(make_session(model))
    found = ablation.effect(trace, "a", HEADS, how)
    same(found, numbers_of(measure_effect(model, TEXT, ablate(model, BY_LAYER, how), CHARACTERS), CHARACTERS.texts))
    assert found["estimate_seconds"] > 0
    estimate = ablation.estimate(trace, HEADS, how)
    assert estimate["estimate_seconds"] == pytest.approx(found["estimate_seconds"])
    assert estimate["each_seconds"] == pytest.approx(estimate["estimate_seconds"] * 13 / 2)


def test_the_mean_of_a_long_text_needs_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE_TOKENS", 16)
    model = ZOO["Llama"].build().eval()
    ids = torch.arange(20)
    trace = read(model, ids, progress=False)
    ablation = Ablation(make_session(model))
    with pytest.raises(UnsupportedError, match=r"at most 16 tokens.*ablate by zero instead"):
        ablation.effect(trace, "a", [(0, 0)], "mean")
    wanted = measure_effect(model, ids, ablate(model, {0: [0]}))
    first = next(ablation.effect_of_each(trace, "a", "zero"))
    assert first["effect"] == pytest.approx(float(wanted.loss_change.mean()), abs=1e-5)


def test_ablating_each_stops_between_heads() -> None:
    model = small()
    trace = read(model, TEXT, CHARACTERS, progress=False)
    stopped: list[bool] = []
    events = Ablation(make_session(model)).effect_of_each(trace, "a", "zero", lambda: bool(stopped))
    assert next(events)["head"] == 0
    stopped.append(True)
    with pytest.raises(Cancelled):
        next(events)


def test_it_stops_within_a_pass_when_it_is_told_to_and_the_model_is_as_it_was() -> None:
    model = small()
    trace = read(model, TEXT, CHARACTERS, progress=False)
    ids = torch.tensor([CHARACTERS.encode(TEXT)])
    with torch.no_grad():
        wanted = model(ids)
    ablation, asked = Ablation(make_session(model)), 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 9  # in the second pass

    with pytest.raises(Cancelled):
        ablation.effect(trace, "a", HEADS, "zero", cancelled)
    with torch.no_grad():
        assert torch.equal(model(ids), wanted)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_the_model_at_work_in_another_thread_is_not_stopped() -> None:
    model, found = small(), []
    ids = torch.tensor([CHARACTERS.encode(TEXT)])

    def elsewhere() -> None:
        with torch.no_grad():
            found.append(model(ids))

    with _cancellable(model, lambda: True):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with pytest.raises(Cancelled):
            model(ids)
    assert isinstance(found[0], Tensor)


def test_predictions_that_are_no_numbers_are_refused() -> None:
    model = small()
    trace = read(model, TEXT, CHARACTERS, progress=False)
    for parameter in model.norm.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    with pytest.raises(UnsupportedError, match="NaN"):
        Ablation(make_session(model)).effect(trace, "a", HEADS, "zero")


def test_nobody_is_worked_for_who_has_gone() -> None:
    model, entered, released = small(), threading.Event(), threading.Event()
    session, passes = make_session(model), Passes(model)
    trace = session.run(TEXT)

    def wait(*_: object) -> None:
        entered.set()
        released.wait()

    with serving(trace, session) as handle, model.blocks[0].register_forward_pre_hook(wait):
        wish = {"trace": handle.server.library.summaries()[0]["trace"], "heads": [[1, 2]]}
        headers = {"authorization": handle.authorization, "content-type": "application/json"}
        connection = http.client.HTTPConnection(handle.host, timeout=60)
        connection.request("POST", "/api/1/ablate", json.dumps(wish), headers)
        entered.wait()
        connection.close()
        time.sleep(0.3)
        assert handle.get("/api/1/session").status == 200  # the server has heard of it
        released.set()
        assert handle.post("/api/1/ablate", wish).status == 200
        assert passes.count == 2


@pytest.fixture(scope="module")
def model_served() -> Iterator[tuple[Handle, str]]:
    session, library = make_session(), Library()
    name = library.add(session.run(TEXT), name="a text")
    with serving(library, session) as handle:
        yield handle, name


def test_a_session_says_whether_heads_can_be_ablated(model_served: tuple[Handle, str]) -> None:
    assert model_served[0].get("/api/1/session").json["can_ablate"] is True


def test_without_its_mask_a_text_has_the_predictions_that_it_has(model_served: tuple[Handle, str]) -> None:
    handle, name = model_served
    other = handle.get(f"/api/1/{name}/meta").json["unmasked"]
    answers = [handle.post("/api/1/ablate", {"trace": one, "heads": [[1, 2]]}) for one in (name, other)]
    assert answers[0].json == answers[1].json
    assert answers[0].status == 200


@pytest.mark.parametrize(
    "wish",
    [
        {"heads": [[0, 0]] * 65},
        {"heads": [[0]]},
        {"heads": [[0, "0"]]},
        {"heads": [[0, True]]},
        {"heads": [0, 0]},
        {"heads": None},
        {"heads": [[3, 0]]},
        {"heads": [[0, 4]]},
        {"heads": [[0, 0]], "how": "half"},
        {"heads": [[0, 0]], "how": 0.5},
        {"heads": [[0, 0]], "trace": 5},
    ],
)
def test_wishes_that_make_no_sense_are_refused(model_served: tuple[Handle, str], wish: dict[str, Any]) -> None:
    handle, name = model_served
    answer = handle.post("/api/1/ablate", {"trace": name, **wish})
    assert answer.status == 400
    assert answer.json["error"]


def test_traces_and_models_that_are_not_there_are_said_not_to_be(model_served: tuple[Handle, str]) -> None:
    handle, name = model_served
    assert handle.post("/api/1/ablate", {"trace": "0" * 32, "heads": []}).status == 404
    assert handle.post("/api/1/ablate", {"trace": "../x", "heads": []}).status == 404
    assert handle.get("/api/1/ablate").status == 405
    example = handle.get("/api/1/session").json["example"]
    answer = handle.post("/api/1/ablate", {"trace": example, "heads": [[0, 0]]})
    assert (answer.status, "of another model" in answer.json["error"]) == (400, True)
    with serving(small_trace()) as alone:
        assert alone.get("/api/1/session").json["can_ablate"] is False
        answer = alone.post("/api/1/ablate", {"trace": name, "heads": []})
        assert (answer.status, "attnscope look" in answer.json["error"]) == (409, True)


def test_every_head_alone_has_the_effect_that_it_has(model_served: tuple[Handle, str]) -> None:
    live, name = model_served
    answer = live.post("/api/1/ablate_each", {"trace": name, "method": "mean"})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [(line["layer"], line["head"]) for line in lines] == [(at, head) for at in range(3) for head in range(4)]
    for line in (lines[0], lines[7]):
        heads = [[line["layer"], line["head"]]]
        before, after = live.post("/api/1/ablate", {"trace": name, "heads": heads, "how": "mean"}).json["loss"]
        assert line["effect"] == pytest.approx(after - before, abs=1e-9)
    estimate = live.post("/api/1/ablate", {"trace": name, "heads": [[0, 0]], "estimate": True}).json
    assert set(estimate) == {"estimate_seconds", "each_seconds"}
    for wrong, status in (({"method": "half"}, 400), ({"trace": "0" * 32}, 404), ({"trace": 3}, 400)):
        assert live.post("/api/1/ablate_each", {"trace": name, **wrong}).status == status
