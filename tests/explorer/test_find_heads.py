"""Heads are ranked by a link with the weights of the dense matrices, for live and saved traces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch

from attnscope.errors import Cancelled
from attnscope.explorer.analysis.head_ranking import rank_heads
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.app import make_router
from attnscope.explorer.service.in_process import send_request
from attnscope.explorer.service.workers import WorkerPools
from attnscope.recording import Trace, open_trace
from tests.explorer.serving import PAGE, run_coroutine, serving, small_trace
from tests.explorer.synthetic import Synthetic, random_head, trace_of
from tests.explorer.test_server import Shown, close, dense_of


@pytest.fixture(scope="module", params=["live", "saved"])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    trace = small_trace()
    if request.param == "saved":
        folder = tmp_path_factory.mktemp("saved") / "trace"
        trace.save(folder)
        trace = open_trace(folder)
    with serving(trace) as handle:
        yield Shown(handle, trace)


def dense(shown: Shown, layer: int) -> torch.Tensor:
    """The weights of a layer, (heads, queries, keys)."""
    return torch.stack([dense_of(shown.trace, layer, head) for head in range(4)]).nan_to_num()


def test_a_link_has_the_mean_weight_of_its_queries(shown: Shown) -> None:
    for (q0, q1), (k0, k1) in (((70, 71), (3, 4)), ((70, 71), (3, 9)), ((40, 60), (10, 30))):
        found = shown.get(f"find_heads?q0={q0}&q1={q1}&k0={k0}&k1={k1}").json
        assert (found["measure"], found["first_layer"], len(found["layers"])) == ("weight", 0, 2)
        for layer, values in enumerate(found["layers"]):
            close(values["values"], dense(shown, layer)[:, q0:q1, k0:k1].sum(-1).mean(-1))
            assert values["positions"] is None


def test_a_row_has_its_strongest_key_and_a_column_its_strongest_query(shown: Shown) -> None:
    row, column = (shown.get(f"find_heads?{side}0=20&{side}1=21").json for side in "qk")
    assert (row["measure"], column["measure"]) == ("top_weight", "received")
    for layer in range(2):
        weights = dense(shown, layer)
        close(row["layers"][layer]["values"], weights[:, 20].amax(-1))
        assert row["layers"][layer]["positions"] == weights[:, 20].argmax(-1).tolist()
        close(column["layers"][layer]["values"], weights[:, :, 20].sum(-1))
        assert column["layers"][layer]["positions"] == weights[:, :, 20].argmax(-1).tolist()


def test_some_layers_are_those_of_all(shown: Shown) -> None:
    every, last = (shown.get(f"find_heads?q0=9&q1=12&{part}").json for part in ("", "l0=1&l1=2"))
    assert last == {**every, "first_layer": 1, "layers": every["layers"][1:]}


def test_layers_without_these_positions_and_heads_without_numbers_have_no_values() -> None:
    broken = Synthetic(torch.full((20, 8), torch.nan), torch.ones(20, 8))
    trace = trace_of([[random_head(20), broken], [random_head(12), random_head(12, seed=1)]])
    with serving(trace) as handle:
        shown = Shown(handle, trace)
        found = shown.get("find_heads?q0=15&q1=16&k0=1&k1=3").json["layers"]
        close(found[0]["values"][0], random_head(20).rows([15])[0, 1:3].sum())
        assert found[0]["values"][1] is None
        assert found[1] is None
        answer = shown.get("find_heads?q0=15&q1=16&l0=1&l1=2")
        assert (answer.status, "no layer has" in answer.json["error"]) == (400, True)


def test_imported_weights_are_ranked_as_they_are() -> None:
    weights = torch.rand(1, 3, 6, 6).softmax(-1).tril()
    trace = Trace.from_attentions([weights], tokens=list("abcdef"))
    with serving(trace) as handle:
        found = Shown(handle, trace).get("find_heads?q0=4&q1=5&k0=2&k1=3").json
    close(found["layers"][0]["values"], weights[0, :, 4, 2])


def test_ranking_stops_between_layers() -> None:
    trace, asked = small_trace(), []

    def cancelled() -> bool:
        asked.append(None)
        return len(asked) > 1

    matrices = [layer.matrix().batch(0) for layer in trace.layers.values()]
    with pytest.raises(Cancelled):
        rank_heads(matrices, 0, range(3, 4), None, cancelled)
    assert len(asked) == 2


def test_the_work_of_a_client_that_disconnects_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnscope.explorer.handlers import layers

    begun, ended = threading.Event(), threading.Event()

    def rank(_matrices: object, *rest: object) -> None:
        begun.set()
        cancelled = rest[-1]
        assert callable(cancelled)
        while not cancelled():
            pass
        ended.set()
        raise Cancelled("cancelled")

    monkeypatch.setattr(layers, "rank_heads", rank)
    library, workers = Library(), WorkerPools()
    name = library.add(small_trace(), name="shown")
    app = make_router(library, None, workers, assets=PAGE)

    async def disconnect() -> None:
        async def ask() -> None:
            async with send_request(app, f"{name}/find_heads?q0=1&q1=2") as response:
                await response.read()

        asking = asyncio.ensure_future(ask())
        await asyncio.to_thread(begun.wait, 30)
        asking.cancel()
        assert await asyncio.to_thread(ended.wait, 30)

    try:
        run_coroutine(disconnect())
    finally:
        library.close()
        workers.close()
