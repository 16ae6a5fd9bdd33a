"""A model in a session: it reads and writes for one at a time, in any thread, and leaves nothing behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnscope.errors import Cancelled, SettingError, UnsupportedError, VocabularyError
from attnscope.explorer.sessions.model_session import MAX_NEW_TOKENS, MAX_TOKENS, BusyError, ModelSession, Superseded
from attnscope.explorer.sessions.presets import PRESETS, Preset
from attnscope.explorer.sessions.random_baseline import has_random_baseline, make_random_baseline
from attnscope.models import CharacterTokenizer, Decoder, Seq2Seq, Seq2SeqConfig
from attnscope.recording import load, read
from tests.explorer.model_sessions import CHARACTERS, TEXT, ZOO, make_session, small, written
from tests.models.smollm2 import FOLDER, own_model, tokenizer, transformers_model

SOON = 20  # seconds after which a test no longer waits


@cache
def smollm2() -> ModelSession:
    return ModelSession(*own_model(), "SmolLM2-135M")


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "attnscope-generate"}


class Gate:
    """A model that waits, before it reads, until it is let go on."""

    def __init__(self, model: Decoder) -> None:
        self.opened, self.reached, self.reads = threading.Event(), threading.Event(), 0
        model.embedding.register_forward_pre_hook(self.wait)

    def wait(self, *_: object) -> None:
        self.reads += 1
        self.reached.set()
        assert self.opened.wait(SOON)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def until(happened: Callable[[], bool]) -> None:
    for _ in range(SOON * 100):
        if happened():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it has not happened")


def waiting(session: ModelSession) -> int:
    return len(session._queue._waiting)


@pytest.mark.parametrize("baseline", [False, True])
def test_a_run_is_a_recording_of_the_text(baseline: bool):
    model = small()
    trace = make_session(model).run(TEXT, baseline)
    plain = read(make_random_baseline(model) if baseline else model, CHARACTERS.encode(TEXT), progress=False)
    assert trace.tokens() == list(TEXT)
    for name in plain:
        torch.testing.assert_close(trace[name].to_dense(), plain[name].to_dense(), atol=1e-12, rtol=0)


def test_an_encoder_is_read_and_does_not_write():
    session = ModelSession(*load(FOLDER.parent / "minilm-l6"), "MiniLM")
    assert session.run("The cat sat.").tokens() == ["[CLS]", "the", "cat", "sat", ".", "[SEP]"]
    assert session.run("The cat sat.", baseline=True)[0].shape == (1, 12, 6, 6)
    assert not session.can_generate
    with pytest.raises(UnsupportedError, match="MiniLM cannot generate text"):
        session.generate("The cat", 3, 0.0, 0, 0, 0)


def test_a_text_beyond_the_limit_is_refused_with_both_numbers():
    session = make_session(max_tokens=20)
    with pytest.raises(SettingError, match="at most 20 tokens, got 29"):
        session.run(TEXT)
    with pytest.raises(SettingError, match="at most 20 tokens, got 29"):
        session.generate(TEXT, 1, 0.0, 0, 0, 0)
    assert session.run(TEXT[:20])[0].shape[-1] == 20


def test_the_limit_is_not_beyond_what_the_model_has_room_for():
    assert make_session(small(max_position_embeddings=17)).max_tokens == 17
    assert make_session(ZOO["Llama"].build()).max_tokens == 64
    assert make_session().max_tokens == MAX_TOKENS


def test_what_cannot_be_read_is_refused():
    with pytest.raises(SettingError, match="at least one token"):
        make_session().run("")
    with pytest.raises(VocabularyError, match="none of the 56"):
        make_session().run("a!")
    with pytest.raises(SettingError, match="needs a tokenizer"):
        ModelSession(small(), None, "a model of pictures")
    with pytest.raises(UnsupportedError, match="encoder-decoder"):
        make_session(
            Seq2Seq(Seq2SeqConfig(vocab_size=50, hidden_size=16, num_layers=1, num_heads=4, intermediate_size=64))
        )


@pytest.mark.parametrize("build", [small, lambda: small(torch.bfloat16), ZOO["Llama"].build, ZOO["BERT"].build])
def test_a_random_baseline_has_fresh_weights_of_the_same_kind_and_the_same_each_time(build: Callable[[], nn.Module]):
    model = build()
    state = torch.random.get_rng_state()
    baseline, again = make_random_baseline(model), make_random_baseline(model)
    assert torch.equal(state, torch.random.get_rng_state())
    assert has_random_baseline(model)
    assert not baseline.training
    originals = dict(model.named_parameters())
    assert dict(baseline.named_parameters()).keys() == originals.keys()
    for (name, one), other in zip(baseline.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == originals[name].dtype
        if one.dim() == 2:
            assert not torch.equal(one, originals[name])
            assert one.std() < 0.1


def test_a_random_baseline_keeps_what_a_model_in_bfloat16_holds_in_float32():
    model: Any = ZOO["Llama"].build()
    model.to(torch.bfloat16)
    rotary = model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.float()
    baseline: Any = make_random_baseline(model)
    assert baseline.model.rotary_emb.inv_freq.dtype == torch.float32
    assert baseline.lm_head.weight.dtype == torch.bfloat16


def test_no_random_baseline_is_made_of_a_model_that_does_not_say_how_it_is_made():
    model = nn.Sequential(nn.Embedding(56, 8), nn.TransformerEncoderLayer(8, 2))
    assert not make_session(model).has_baseline
    with pytest.raises(UnsupportedError, match="only Decoder and Encoder"):
        make_random_baseline(model)


def test_one_runs_and_the_newest_of_each_kind_waits(pool: ThreadPoolExecutor):
    model = small()
    session, gate = make_session(model), Gate(model)
    first = pool.submit(session.run, "first")
    assert gate.reached.wait(SOON)
    older = pool.submit(session.run, "older")
    until(lambda: waiting(session) == 1)
    baseline = pool.submit(session.run, "baseline", baseline=True)
    until(lambda: waiting(session) == 2)
    newer = pool.submit(session.run, "newer")
    with pytest.raises(Superseded, match="newer request"):
        older.result(SOON)
    with pytest.raises(BusyError, match="2 requests are waiting"):
        next(session.generate("third", 1, 0.0, 0, 0, 0))
    assert gate.reads == 1
    gate.opened.set()
    assert [future.result(SOON).tokens() for future in (first, baseline, newer)] == [
        [*"first"],
        [*"baseline"],
        [*"newer"],
    ]
    assert session.run("again").tokens() == [*"again"]


def test_who_waits_may_be_cancelled(pool: ThreadPoolExecutor):
    model = small()
    session, gate, gone = make_session(model), Gate(model), threading.Event()
    first = pool.submit(session.run, "first")
    assert gate.reached.wait(SOON)
    second = pool.submit(session.run, "second", cancelled=gone.is_set)
    until(lambda: waiting(session) == 1)
    gone.set()
    with pytest.raises(Cancelled):
        second.result(SOON)
    assert waiting(session) == 0
    gate.opened.set()
    assert first.result(SOON).tokens() == [*"first"]


def test_a_long_text_is_given_up_between_pieces_and_the_next_is_read():
    model = small()
    session, gate = make_session(model), Gate(model)
    gate.opened.set()
    with pytest.raises(Cancelled):
        session.run("a" * 500, cancelled=lambda: gate.reads >= 2)
    assert gate.reads == 2
    assert len(session.run("ab").tokens() or ()) == 2


def test_an_error_of_the_model_lets_the_next_have_its_turn():
    model = small()
    session, failing = make_session(model), [True]

    def fail(*_: object) -> None:
        if failing:
            raise RuntimeError("out of memory")

    model.embedding.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        session.run(TEXT)
    with pytest.raises(RuntimeError, match="out of memory"):
        written(session)
    failing.clear()
    assert session.run("ab").tokens() == ["a", "b"]


def rows_of(events: list[dict[str, Any]], length: int) -> Tensor:
    """The rows that were told, as the last rows of a matrix."""
    rows = [event["row"] + [0.0] * (length - len(event["row"])) for event in events]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("options", [{}, {"sliding_windows": (None, 5, None)}], ids=["causal", "window"])
def test_the_rows_that_are_told_are_those_of_a_plain_reading(options: dict[str, Any]):
    model = small(**options)
    prompt, *new, done = written(make_session(model))
    assert prompt == {"prompt": list(TEXT)}
    assert [event["position"] for event in new] == list(range(29, 37))
    assert all(len(event["row"]) == event["position"] + 1 for event in new)
    assert done["text"] == TEXT + "".join(event["token"] for event in new)
    plain = read(model, CHARACTERS.encode(done["text"]), progress=False)
    torch.testing.assert_close(rows_of(new, 37), plain[1].to_dense()[0, 2, 29:], atol=1e-12, rtol=0)
    for name in plain:
        torch.testing.assert_close(done["trace"][name].to_dense(), plain[name].to_dense(), atol=1e-12, rtol=0)
    assert done["trace"].tokens() == list(done["text"])


@pytest.mark.parametrize("name", ["Llama", "Gemma 3", "GPT-2"])
def test_models_of_transformers_write_on_too(name: str):
    model = ZOO[name].build()
    session = make_session(model)
    assert session.can_generate
    _, *new, done = written(session, count=20, layer=0)
    ids = done["trace"].texts[-1].ids
    exact = read(model, ids, progress=False)[0].to_dense()[0, 2].double()
    assert len(new) == 20
    torch.testing.assert_close(rows_of(new, 49), exact[29:], atol=5e-6, rtol=0)


def test_each_token_is_read_once():
    model, read_tokens = small(), []
    model.embedding.register_forward_pre_hook(lambda _, given: read_tokens.append(given[0].shape[1]))
    written(make_session(model))
    assert read_tokens == [29] + [1] * 8


def test_the_seed_decides_what_is_written_and_without_temperature_the_model_alone():
    session = make_session()
    texts = {seed: written(session, seed=seed)[-1]["text"] for seed in (1, 2)}
    assert texts[1] != texts[2]
    assert written(session, seed=1)[-1]["text"] == texts[1]
    assert (
        written(session, seed=1, temperature=0.0)[-1]["text"] == written(session, seed=2, temperature=0.0)[-1]["text"]
    )


def test_writing_ends_before_the_end_of_a_text():
    third = written(make_session(), temperature=0.0)[3]["token"]
    codec = CharacterTokenizer(CHARACTERS.characters)
    codec.eos_token_ids = frozenset(CHARACTERS.encode(third))
    events = written(ModelSession(small(), codec, "a small model"), temperature=0.0)
    assert third not in [event["token"] for event in events[1:-1]]
    assert len(events[1:-1]) <= 2
    assert events[-1]["trace"][0].shape[-1] == 29 + len(events[1:-1])


def test_writing_ends_at_the_limit():
    assert [event.get("position") for event in written(make_session(max_tokens=31))] == [None, 29, 30, None]
    events = written(make_session(max_tokens=29))
    assert len(events) == 2
    assert events[-1]["text"] == TEXT


def test_a_token_is_told_before_the_next_one_is_read():
    model, received, reads = small(), [threading.Event() for _ in range(9)], []

    def wait(*_: object) -> None:
        if reads:
            assert received[len(reads) - 1].wait(SOON), "what came before was not told"
        reads.append(1)

    model.embedding.register_forward_pre_hook(wait)
    for event, heard in zip(make_session(model).generate(TEXT, 8, 0.0, 0, 1, 2), received, strict=False):
        assert len(reads) == 1 if "prompt" in event else len(reads) == event["position"] - 27
        heard.set()
    assert len(reads) == 9


def test_events_may_be_taken_by_another_thread_each_time():
    plain = written(make_session())
    events = make_session().generate(TEXT, 8, 1.0, 3, 1, 2)
    taken: list[Any] = []
    while True:
        with ThreadPoolExecutor(1) as fresh:
            event = fresh.submit(next, events, None).result(SOON)
        if event is None:
            break
        taken.append(event)
    assert taken[:-1] == plain[:-1]
    assert taken[-1]["text"] == plain[-1]["text"]


@pytest.mark.parametrize("leave", ["close", "forget"])
def test_who_goes_away_leaves_no_thread_and_no_turn_behind(leave: str):
    session = make_session()
    events: Any = session.generate(TEXT, MAX_NEW_TOKENS, 1.0, 0, 0, 0)
    next(events)
    assert threads()
    if leave == "close":
        events.close()
    del events
    gc.collect()
    assert not threads()
    assert session.run("ab").tokens() == ["a", "b"]


def test_who_goes_away_while_waiting_leaves_no_thread_behind(pool: ThreadPoolExecutor):
    model = small()
    session, gate, gone = make_session(model), Gate(model), threading.Event()
    first = pool.submit(session.run, "first")
    assert gate.reached.wait(SOON)
    events = session.generate(TEXT, 3, 0.0, 0, 0, 0, cancelled=gone.is_set)
    second: Future = pool.submit(next, events)
    until(lambda: waiting(session) == 1)
    gone.set()
    with pytest.raises(Cancelled):
        second.result(SOON)
    assert not threads()
    gate.opened.set()
    first.result(SOON)


def test_nothing_begins_before_the_first_event_is_taken():
    model = small()
    gate = Gate(model)
    events: Any = make_session(model).generate(TEXT, 3, 0.0, 0, 0, 0)
    assert not threads()
    events.close()
    assert not gate.reads


@pytest.mark.parametrize(("layer", "head"), [(3, 0), (-1, 0), (0, 4), (0, -1)])
def test_a_head_that_is_not_there_is_refused_before_anything_is_told(layer: int, head: int):
    with pytest.raises(SettingError, match=r"expected a (layer|head) from 0 to"):
        next(make_session().generate(TEXT, 3, 0.0, 0, layer, head))
    assert not threads()


@pytest.mark.parametrize(("count", "temperature"), [(0, 1.0), (MAX_NEW_TOKENS + 1, 1.0), (3, -1.0), (3, float("nan"))])
def test_settings_are_refused_at_once(count: int, temperature: float):
    with pytest.raises(SettingError, match=r"1 to 64|temperature must be"):
        make_session().generate(TEXT, count, temperature, 0, 0, 0)


def test_a_trained_model_writes_on_what_a_preset_promises():
    session, preset = smollm2(), PRESETS[5]
    asked = {"count": 5, "temperature": 0.0, "layer": preset.layer, "head": preset.head}
    prompt, *new, done = written(session, preset.text, **asked)
    assert new[0]["token"] == " Mary"
    assert done["text"].startswith(preset.text + " Mary")
    plain = read(session._model, done["trace"].texts[-1].ids, progress=False)
    exact = plain[preset.layer].to_dense()[0, preset.head].double()
    start = len(prompt["prompt"])
    torch.testing.assert_close(rows_of(new, len(exact)), exact[start:], atol=1e-5, rtol=0)


def test_the_same_model_of_transformers_writes_the_same():
    theirs = ModelSession(transformers_model(), tokenizer(), "SmolLM2-135M")
    assert theirs.can_generate
    assert theirs.has_baseline
    asked = {"count": 5, "temperature": 0.0, "layer": 24, "head": 4}
    mine, other = (written(session, PRESETS[5].text, **asked) for session in (smollm2(), theirs))
    assert [event.get("token") for event in mine] == [event.get("token") for event in other]
    assert mine[0] == other[0]
    assert mine[-1]["text"] == other[-1]["text"]
    torch.testing.assert_close(rows_of(mine[1:-1], 20), rows_of(other[1:-1], 20), atol=1e-4, rtol=0)


PROMISED: tuple[list[tuple[int, int]], ...] = (
    [(6, 1)],
    [(8, 1)],
    [(8, 4), (9, 5), (10, 6), (11, 7), (12, 8)],
    [(6, 2), (12, 10), (16, 8)],
    [(7, 1)],
    [(13, 1)],
    [(place, place - 1) for place in range(1, 12)],
)
"""For each preset, which token looks most at which."""


@pytest.mark.parametrize(("preset", "pairs"), list(zip(PRESETS, PROMISED, strict=True)), ids=lambda one: str(one)[:40])
def test_what_a_preset_promises_is_there(preset: Preset, pairs: list[tuple[int, int]]):
    weights = smollm2().run(preset.text)[preset.layer].to_dense()[0, preset.head]
    assert [(place, int(weights[place].argmax())) for place, _ in pairs] == pairs
    assert min(weights[pair] for pair in pairs) > 0.45
    assert f"layer {preset.layer}, head {preset.head}" in preset.note


def test_what_a_preset_promises_was_learned():
    for preset, pairs in zip(PRESETS, PROMISED, strict=True):
        weights = smollm2().run(preset.text, baseline=True)[preset.layer].to_dense()[0, preset.head]
        even = torch.tensor([1 / (place + 1) for place, _ in pairs])
        found = torch.stack([weights[pair] for pair in pairs])
        torch.testing.assert_close(found, even, atol=0.1, rtol=0)


def test_presets_are_short_texts_with_notes():
    presets = make_session().presets
    assert {"text": TEXT, "note": PRESETS[0].note, "layer": None, "head": None} in presets  # of another model
    assert all(preset.keys() == {"text", "note", "layer", "head"} for preset in presets)
    assert all(len(preset["text"]) < 100 for preset in presets)
