"""Every address answers what the dense matrices say, and no text in it does harm."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy
import pytest
import torch

from attnscope.atlas.codec import EXACT, decode, unpack
from attnscope.attention import Causal
from attnscope.errors import SettingError
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.app import read_assets
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.heads import score_heads
from attnscope.recording import Trace, load, read
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from attnscope.version import __version__
from tests.explorer.serving import PAGE, TEXT, Handle, serving, small_trace

SMOLLM2 = Path(__file__).resolve().parents[2] / ".cache" / "models" / "smollm2-135m"
IMMUTABLE = "private, max-age=31536000, immutable"
HOSTILE = [
    "</script><script>alert(1)</script>",
    "\u202eevil\u2066",
    "\u200b\u200d\ufeff",
    "\x00\x1b[31m\u2028\u2029",
    "\ud800",
    '"\\',
    "x" * 2**20,
    "é" * 300,
    "",
]
KEPT = [
    "0/tokens?side=key&from=0&to=5",
    "0/sections?side=key",
    "0/0/0/0/0?ch=mean",
    "0/0/row/3",
    "0/0/col/3",
    "0/0/query/3",
    "0/0/key/3",
    "0/0/cells?i0=0&i1=2&j0=0&j1=2",
    "0/0/profile",
    "0/0/marginal/entropy/0/0",
    "0/0/marginal/received/0/0",
    "0/text?side=key&from=0&to=5",
    "0/words?side=key",
    "0/0/links/query/3",
    "0/0/links/key/3?unit=word",
    "0/thumbs",
    "0/0/why?query=9&key=3",
    "0/0/steps?query=9&key=3",
    "0/0/preview",
    "0/0/preview?ch=max",
    "find_heads?q0=3&q1=4&k0=1&k1=2",
    "find_heads?q0=3&q1=9&l0=1&l1=2",
    "find_heads?k0=3&k1=9",
]
NOT_THERE = [
    "0/0/1/0/0",
    "0/0/0/1/0",
    "0/0/0/0/1",
    "0/0/1000000000/0/0",
    "0/0/-1/0/0",
    "0/0/0/0/x",
    "2/0/0/0/0",
    "0/4/0/0/0",
    "0/0/row/72",
    "0/0/row/-1",
    "0/0/row/10000000000",
    "0/0/col/72",
    "0/0/query/72",
    "0/0/key/72",
    "0/0/row/1e1",
    "9999999/0/status",
    "99999999/0/status",
    "0/0/row/+1",
    "0/0/marginal/other/0/0",
    "0/0/marginal/entropy/1/0",
    "0/0/marginal/entropy/0/1",
    "2/tokens?from=0&to=1",
    "0/0/row/١",
    "0/0/0/0/0/0",
    "0/0/row/",
    "find_heads/0",
    "0/find_heads?q0=0&q1=1",
]
NONSENSE = [
    "0/tokens",
    "0/tokens?from=-1&to=2",
    "0/tokens?from=5&to=2",
    "0/tokens?from=0&to=1e9",
    "0/tokens?from=73&to=74",
    "0/find?text=a",
    "0/tokens?side=both&from=0&to=1",
    "0/find?text=&after=0",
    "0/find?text=%20&after=0",
    "0/find?text=a&after=0&backward=2",
    "0/0/cells",
    "0/0/cells?i0=0&i1=73&j0=0&j1=1",
    "0/0/cells?i0=3&i1=2&j0=0&j1=9",
    "0/0/cells?i0=0&i1=0&j0=0&j1=1",
    "0/0/cells?i0=-1&i1=2&j0=0&j1=1",
    "0/0/0/0/0?ch=sum",
    "0/0/preview?ch=sum",
    "0/0/why",
    "0/0/why?query=72&key=0",
    "0/0/why?query=0&key=72",
    "0/0/why?query=0&key=-1",
    "0/0/steps?query=0&key=72",
    "0/0/projection?query=72",
    "predictions",
    "predictions?from=5&to=4",
    "predictions?from=0&to=4097",
    "find_heads",
    "find_heads?q0=3",
    "find_heads?q1=3",
    "find_heads?q0=3&q1=3",
    "find_heads?q0=72&q1=73",
    "find_heads?q0=3&q1=4&k0=-1&k1=2",
    "find_heads?q0=3&q1=4&k0=0&k1=73",
    "find_heads?q0=3&q1=4&l0=0&l1=3",
    "find_heads?q0=3&q1=4&l0=1&l1=1",
    "find_heads?q0=3&q1=1e1",
]
ASKED_OF_HOSTILE = [
    "meta",
    "0/tokens?side=key&from=0&to=9",
    "0/sections?side=key",
    "0/find?side=key&text=evil&after=0",
    "0/0/status",
    "0/0/query/0",
    "0/find?side=key&text=%3C%2Fscript%3E%E2%80%AE&after=0",
    "0/0/key/0",
    "0/0/profile",
    "0/0/scores",
    "0/heads",
    "find_heads?q0=0&q1=1",
    "opening",
    "predictions?from=0&to=9",
]


def decoded(body: bytes) -> tuple[numpy.ndarray, dict[str, int]]:
    """The floats of a body, and its header."""
    magic, dtype, channel, norm, flags, rows, columns, z, y, x, _, _ = struct.unpack("<4sBBBBHHIIIff", body[:32])
    assert (magic, dtype, channel, norm) == (b"SLT1", 2, 2, 0)
    values = numpy.frombuffer(body[32:], "<f4").reshape(rows, columns)
    return values, {"z": z, "y": y, "x": x, "flags": flags}


def dense_of(trace: Trace, layer: int, head: int) -> torch.Tensor:
    """The weights of a causal head, from its query and key, with NaN ahead."""
    recorded = trace.layer(layer)
    assert isinstance(recorded, Layer)
    call = recorded.merge_calls()
    group = call.query.shape[1] // call.key.shape[1]
    query, key = call.query[0, head].double(), call.key[0, head // group].double()
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if call.scale is None else call.scale)
    ahead = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(ahead, -torch.inf).softmax(-1).masked_fill(ahead, torch.nan)


def close(found: object, wanted: object, rtol: float = 1e-4) -> None:
    numpy.testing.assert_allclose(numpy.asarray(found), numpy.asarray(wanted), rtol=rtol, atol=2e-6)


class Shown:
    """A trace and the server that shows it."""

    def __init__(self, handle: Handle, trace: Trace) -> None:
        self.handle, self.trace = handle, trace
        self.name = handle.server.library.summaries()[0]["trace"]

    def get(self, path: str):
        return self.handle.get(f"/api/1/{self.name}/{path}")


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    trace = small_trace()
    with serving(trace) as handle:
        yield Shown(handle, trace)


def test_the_page_and_its_files_are_there(shown: Shown) -> None:
    for path, name, kind in (("/", "index.html", "text/html"), ("/explorer.js", "explorer.js", "text/javascript"),
                             ("/explorer.css", "explorer.css", "text/css")):  # fmt: skip
        answer = shown.handle.get(path)
        assert (answer.status, answer.body) == (200, PAGE[name])
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert shown.handle.get(path, if_none_match=answer.headers["etag"]).status == 304


def test_a_page_that_is_not_built_is_named(tmp_path: Path) -> None:
    (tmp_path / "index.html").touch()
    with pytest.raises(SettingError, match=r"explorer\.js, explorer\.css.*npm ci && node build\.mjs"):
        read_assets(tmp_path)


def test_a_session_without_a_model(shown: Shown) -> None:
    answer = shown.handle.get("/api/1/session")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json == {
        "version": __version__, "model": "Decoder", "has_model": False, "max_tokens": 0, "presets": [],
        "model_free": False, "model_note": None,
        "has_baseline": False, "can_generate": False, "can_ablate": False,
        "example": shown.handle.server.library.example(),
        "survey": False, "watch": False, "file": None,
        "traces": [{"trace": shown.name, "name": "shown", "tokens": 72, "layers": 2, "heads": 8}],
    }  # fmt: skip


def test_what_follows_from_the_trace_is_kept_for_ever(shown: Shown) -> None:
    for path in KEPT:
        answer = shown.get(path)
        assert (answer.status, answer.headers["cache-control"]) == (200, IMMUTABLE), path
        assert "content-encoding" not in answer.headers
        again = shown.handle.get(f"/api/1/{shown.name}/{path}", if_none_match=answer.headers["etag"])
        assert (again.status, again.body) == (304, b"")


def test_what_another_name_or_another_version_changes_is_asked_about_anew(shown: Shown) -> None:
    for path in ("meta", "0/0/scores", "0/heads"):
        answer = shown.get(path)
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-cache")
        again = shown.handle.get(f"/api/1/{shown.name}/{path}", if_none_match=answer.headers["etag"])
        assert (again.status, again.body) == (304, b"")


def test_the_description_of_a_trace(shown: Shown) -> None:
    meta = shown.get("meta").json
    assert [layer["name"] for layer in meta["layers"]] == list(shown.trace)
    assert all((layer["queries"], layer["keys"], layer["causal"]) == (72, 72, True) for layer in meta["layers"])
    assert not any(layer["zeros_masked"] for layer in meta["layers"])
    other = shown.handle.get(f"/api/1/{meta['unmasked']}/meta").json
    assert other["origin"] == shown.name
    assert "not what the model computed" in other["note"]


def test_tokens_are_told_in_pieces(shown: Shown) -> None:
    assert shown.get("1/tokens?side=query&from=0&to=72").json == list(TEXT)
    assert shown.get("1/tokens?side=key&from=70&to=99").json == list(TEXT)[70:]
    assert shown.get("1/tokens?side=key&from=72&to=72").json == []
    assert shown.get("1/tokens?from=3&to=5").json == list(TEXT)[3:5]


def test_no_more_than_4096_tokens_are_told_at_once() -> None:
    trace = Trace.from_attentions([torch.eye(1, 5000)[None, None]], tokens=["a"] * 5000)
    with serving(trace) as handle:
        shown = Shown(handle, trace)
        assert len(shown.get("0/tokens?side=key&from=0&to=4096").json) == 4096
        assert shown.get("0/tokens?side=key&from=0&to=4097").status == 400
        assert shown.get("0/tokens?side=query&from=0&to=1").status == 404


def test_sections_and_places_of_words(shown: Shown) -> None:
    names = shown.get("0/sections?side=key").json
    assert [name for _, importance, name in names if importance >= 0.7] == ["= Verona =", "ROMEO:", "BENVOLIO:"]
    start = TEXT.index("the")
    assert shown.get("0/find?side=key&text=THE&after=0&backward=0").json == {"position": start, "count": 1, "index": 0}
    assert shown.get(f"0/find?side=key&text=the&after={start + 1}").json["position"] is None
    assert shown.get("0/find?side=key&text=the&after=71&backward=1").json["position"] == start


def test_rows_columns_and_cells_are_exact(shown: Shown) -> None:
    for layer, head in ((0, 0), (1, 3)):
        dense = dense_of(shown.trace, layer, head)
        values, header = decoded(shown.get(f"{layer}/{head}/row/40").body)
        close(values, dense[40][None])
        assert header == {"z": 0, "y": 40, "x": 0, "flags": 4 | 1}
        values, header = decoded(shown.get(f"{layer}/{head}/col/40").body)
        close(values, dense[:, 40][None])
        values, _ = decoded(shown.get(f"{layer}/{head}/cells?i0=10&i1=30&j0=5&j1=25").body)
        close(values, dense[10:30, 5:25])


def test_reports_on_queries_and_keys(shown: Shown) -> None:
    dense = dense_of(shown.trace, 1, 2).nan_to_num()
    found, row = shown.get("1/2/query/50").json, dense[50]
    assert (found["position"], found["visible_keys"]) == (50, 51)
    close(found["entropy"], torch.special.entr(row).sum())
    close(found["effective_keys"], 1 / row.square().sum())
    close(found["mean_distance"], (row * (50 - torch.arange(72))).sum())
    close(found["first_token"], row[0])
    weights, keys = row.topk(20)
    assert [key for key, _ in found["strongest"]] == keys.tolist()
    close([weight for _, weight in found["strongest"]], weights)
    found, column = shown.get("1/2/key/50").json, dense[:, 50]
    assert (found["position"], found["visible_queries"], len(found["strongest"])) == (50, 22, 20)
    close(found["received"], column.sum())
    assert found["strongest"][0][0] == int(column.argmax())


def test_the_profile_and_the_scores_of_a_head(shown: Shown) -> None:
    dense = dense_of(shown.trace, 0, 1).nan_to_num()
    found = shown.get("0/1/profile").json
    close(found["mass"][0], dense.diagonal().mean())
    close(found["mass"][1], dense.diagonal(-1).sum() / 72)
    close(sum(found["mass"]), 1.0)
    table, found = score_heads(shown.trace, progress=False), shown.get("0/1/scores").json
    assert not found["pending"]
    close([found["scores"][name] for name in found["scores"]], [table.columns[name][1] for name in found["scores"]])
    assert table.labels is not None
    assert tuple(label["name"] for label in found["labels"]) == table.labels[1]


def test_the_example_is_there_and_not_among_what_somebody_has_opened(shown: Shown) -> None:
    session = shown.handle.get("/api/1/session").json
    name = session["example"]
    assert name not in [trace["trace"] for trace in session["traces"]]
    meta = shown.handle.get(f"/api/1/{name}/meta").json
    assert (meta["model"], [layer["numbers"] for layer in meta["layers"]]) == (
        "SmolLM2-135M",
        [[0], [6], [0, 6], [4], [8]],
    )
    assert shown.handle.get(f"/api/1/{name}/0/tokens?from=0&to=5").json == ["Mary", " Whit", "field", " lent", " John"]
    assert shown.handle.get(f"/api/1/{meta['unmasked']}/meta").json["origin"] == name


def test_held_weights_are_told_as_they_are() -> None:
    weights = torch.rand(1, 2, 6, 6).softmax(-1).tril()
    trace = Trace.from_attentions([weights], tokens=list("abcdef"))
    with serving(trace) as handle:
        shown = Shown(handle, trace)
        values, _ = decoded(shown.get("0/1/row/3").body)
        wanted = weights[0, 1, 3].masked_fill(weights[0, 1, 3] == 0, torch.nan)
        assert numpy.array_equal(values[0], wanted.numpy(), equal_nan=True)
        assert shown.get("0/tokens?side=query&from=0&to=6").json == list("abcdef")
        meta = shown.get("meta").json
        assert (meta["unmasked"], meta["layers"][0]["zeros_masked"]) == (None, True)


def test_a_head_that_is_built_says_so(shown: Shown) -> None:
    status = shown.get("1/1/status").json
    assert status == {"coarse": "absent", "progress": None}
    entry = shown.handle.server.library.entry(shown.name)
    assert entry is not None
    shown.handle.server.library.head(entry, 1, 1).atlas.build()
    answer = shown.get("1/1/status")
    assert answer.json == {"coarse": "ready", "progress": 1.0}
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", NOT_THERE)
def test_what_is_not_there_is_not_found(shown: Shown, path: str) -> None:
    answer = shown.get(quote(path, safe="/?&=+"))
    assert answer.status == 404
    assert answer.json["error"]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["0" * 15, "0" * 65, "A" * 32, "g" * 32, "..", "0" * 32, "session", "%30" * 32])
def test_a_trace_that_is_not_there_is_not_found(shown: Shown, name: str) -> None:
    for rest in ("meta", "0/tokens", "0/0/0/0/0", "0/0/row/0"):
        assert shown.handle.get(f"/api/1/{name}/{rest}").status == 404


@pytest.mark.parametrize("path", NONSENSE)
def test_what_makes_no_sense_is_refused(shown: Shown, path: str) -> None:
    answer = shown.get(path)
    assert answer.status == 400
    assert answer.json["error"]


def test_too_long_a_search_and_too_many_cells_are_refused(shown: Shown) -> None:
    assert shown.get(f"0/find?text={'a' * 201}&after=0").status == 400
    trace = Trace.from_attentions([torch.eye(300)[None, None]])
    with serving(trace) as handle:
        large = Shown(handle, trace)
        assert large.get("0/0/cells?i0=0&i1=256&j0=0&j1=256").status == 200
        assert large.get("0/0/cells?i0=0&i1=256&j0=0&j1=257").status == 400
    trace = Trace.from_attentions([torch.eye(1, 65_536)[None, None]])
    with serving(trace) as handle:
        wide = Shown(handle, trace)
        assert len(decoded(wide.get("0/0/cells?i0=0&i1=1&j0=0&j1=65535").body)[0][0]) == 65_535
        answer = wide.get("0/0/cells?i0=0&i1=1&j0=0&j1=65536")
        assert answer.status == 400
        assert "65,535" in answer.json["error"]


def test_hostile_texts_are_told_as_ascii_and_mean_themselves() -> None:
    count = len(HOSTILE)
    weights = torch.rand(1, 1, count, count).softmax(-1)
    trace = Trace.from_attentions({"</script><b>": weights}, tokens=HOSTILE)
    trace.model = HOSTILE[0] + HOSTILE[1]
    library = Library()
    library.add(trace, name=HOSTILE[0] + HOSTILE[1])
    with serving(library) as handle:
        shown = Shown(handle, trace)
        for path in ASKED_OF_HOSTILE:
            answer = shown.get(path)
            assert answer.status == 200, path
            assert answer.headers["content-type"] == "application/json"
            assert answer.body.isascii()
            assert len(answer.body) < 100_000
            json.loads(answer.body)
        session = handle.get("/api/1/session")
        assert session.body.isascii()
        assert session.json["traces"][0]["name"] == HOSTILE[0] + HOSTILE[1]
        assert shown.get("0/tokens?side=key&from=0&to=9").json == [text[:200] for text in HOSTILE]
        assert all(len(name) <= 60 for _, _, name in shown.get("0/sections?side=key").json)
        assert shown.get("0/find?side=key&text=EVIL&after=0").json["position"] == 1


def test_a_trained_model_is_shown_as_it_attends() -> None:
    model, tokenizer = load(SMOLLM2)
    text = "The cat sat on the mat because it was tired."
    trace = read(model, text, tokenizer, progress=False)
    with serving(trace, ModelSession(model, tokenizer, "smollm2")) as handle:
        shown = Shown(handle, trace)
        presets = handle.get("/api/1/session").json["presets"]
        assert all(f"layer {one['layer']}, head {one['head']}." in one["note"] for one in presets)
        dense = dense_of(trace, 13, 8)
        last = len(dense) - 1
        values, _ = decoded(shown.get(f"13/8/row/{last}").body)
        close(values, dense[last][None])
        assert shown.get("13/tokens?from=0&to=3").json == ["The", " cat", " sat"]
        assert (
            handle.post("/api/1/run", {"text": "The cat sat on the mat because it was tired."}).json["trace"]
            == shown.name
        )


def test_scores_of_a_long_text_are_computed_aside() -> None:
    query, key = torch.randn(2, 1, 1, 16_385, 4).unbind()
    call = Call(query=query, key=key, value=None, mask=Causal(), scale=None)
    trace = Trace("long")
    trace.layers = {"a": Layer("a", call, cross=False)}
    with serving(trace) as handle:
        shown = Shown(handle, trace)
        first = shown.get("0/0/scores")
        assert first.headers["cache-control"] == "no-store"
        assert first.json == {"labels": [], "scores": {}, "pending": True}
        until = time.monotonic() + 60
        while (found := shown.get("0/0/scores")).json["pending"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert found.json["scores"]["entropy"] == pytest.approx(float(trace["a"].entropy()[0, 0, 1:].mean()), rel=1e-4)


def test_a_preview_is_not_kept_and_asks_to_be_asked_again() -> None:
    query, key = torch.randn(2, 1, 1, 20_000, 8).unbind()
    trace = Trace("long")
    trace.layers = {"a": Layer("a", Call(query=query, key=key, value=None, mask=Causal(), scale=None), cross=False)}
    with serving(trace) as handle:
        shown = Shown(handle, trace)
        for path in ("0/0/0/0/0?ch=mean", "0/0/marginal/received/0/0"):
            answer = shown.get(path)
            assert answer.status == 200
            partial = bool(answer.body[7] & 2)
            assert answer.headers["cache-control"] == ("no-store" if partial else IMMUTABLE)
            assert answer.headers.get("retry-after") == ("1" if partial else None)
        assert shown.get("0/0/status").json["coarse"] in ("building", "ready")
        entry = handle.server.library.entry(shown.name)
        assert entry is not None
        handle.server.library.head(entry, 0, 0).atlas.build()
        assert shown.get("0/0/status").json == {"coarse": "ready", "progress": 1.0}
        for path in ("0/0/0/0/0?ch=mean", "0/0/marginal/received/0/0"):
            assert shown.get(path).headers["cache-control"] == IMMUTABLE
        ahead = shown.get("0/0/1/0/1?ch=mean")
        assert (ahead.status, ahead.body, ahead.headers["cache-control"]) == (204, b"", IMMUTABLE)


def test_tiles_and_borders_are_the_dense_matrix(shown: Shown) -> None:
    dense = dense_of(shown.trace, 1, 3)
    header, codes = unpack(shown.get("1/3/0/0/0?ch=max").body)
    assert (header.rows, header.columns, header.flags & EXACT) == (72, 72, EXACT)
    assert numpy.array_equal(codes == 0, dense.isnan().numpy())
    close(decode(codes) / dense.numpy(), numpy.where(codes == 0, numpy.nan, 1.0), rtol=0.05)
    _, values = unpack(shown.get("1/3/marginal/received/0/0").body)
    close(values[0], dense.nan_to_num().sum(0))
    library = shown.handle.server.library
    entry = library.entry(shown.name)
    assert entry is not None
    wanted = library.head(entry, 1, 3).atlas.marginal("entropy", 0, 0)
    assert shown.get("1/3/marginal/entropy/0/0").body == wanted
