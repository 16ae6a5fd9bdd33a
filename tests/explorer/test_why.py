"""Why a weight is what it is: the terms that are reported give exactly this weight, whatever the scores go through."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch

from attnscope.attention import ALiBi, Bias, Causal, Sinks, Softcap, Window
from attnscope.attention.rotary import Rotary
from attnscope.errors import ShapeError
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording import Trace, open_trace, read
from attnscope.recording.call import Call
from tests.explorer.serving import Handle, serving, small_trace
from tests.explorer.test_overview import one_layer
from tests.explorer.test_server import Shown

SCHEMES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"mask": Causal() & Window(before=8)},
    "alibi": {"score_mod": ALiBi(4)},
    "softcap": {"score_mod": Softcap(2.0)},
    "both": {"score_mod": Softcap(2.0) + ALiBi(4)},
    "bias": {"score_mod": Bias(torch.linspace(-3, 3, 4 * 30 * 30).view(1, 4, 30, 30))},
    "sinks": {"score_mod": Sinks(torch.tensor([0.5, 2.0, -1.0, 0.0]))},
    "scale": {"scale": 0.3},
}


@pytest.fixture
def served() -> Iterator[Callable[[Trace], Shown]]:
    open_servers = []

    def serve(trace: Trace) -> Shown:
        server = serving(trace)
        handle: Handle = server.__enter__()
        open_servers.append(server)
        return Shown(handle, trace)

    yield serve
    for server in open_servers:
        server.__exit__(None, None, None)


def grouped_call(**options: Any) -> Call:
    chance = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, 30, 8, generator=chance) * 2 for heads in (4, 2))
    return Call(**{"query": query, "key": key, "value": None, "mask": Causal(), "scale": None, **options})


@pytest.mark.parametrize("options", SCHEMES.values(), ids=list(SCHEMES))
def test_the_terms_give_the_weight(options: dict[str, Any], served: Callable[[Trace], Shown]) -> None:
    call = grouped_call(**options)
    shown = served(one_layer(call))
    dense = call.matrix().to_dense()[0]
    for head, query, key in ((0, 29, 25), (1, 29, 29), (3, 12, 10), (2, 20, 19)):
        found = shown.get(f"0/{head}/why?query={query}&key={key}").json
        assert (found["query"], found["key"], found["masked"]) == (query, key, False)
        products = call.query[0, head, query].double() * call.key[0, head // 2, key].double()
        numpy.testing.assert_allclose(found["products"], products, rtol=1e-12)
        assert found["dot"] == pytest.approx(float(products.sum()), rel=1e-12)
        assert found["scale"] == pytest.approx(options.get("scale", 8**-0.5))
        assert found["weight"] == pytest.approx(float(dense[head, query, key]), rel=2e-6)
        assert found["weight"] == pytest.approx(math.exp(found["score"] - found["log_sum_exp"]), rel=2e-6)
        is_modified = "score_mod" in options and not isinstance(options["score_mod"], Sinks)
        assert (found["bias"] is not None) == is_modified
        assert found["score"] == pytest.approx(found["scale"] * found["dot"] + (found["bias"] or 0.0), abs=5e-6)
        assert (found["frequencies"], found["value_norm"]) == (None, None)


def test_alibi_is_the_bias_and_a_masked_weight_is_zero(served: Callable[[Trace], Shown]) -> None:
    shown = served(one_layer(grouped_call(mask=Causal() & Window(before=8), score_mod=ALiBi(4))))
    found = shown.get("0/0/why?query=29&key=25").json
    assert found["bias"] == pytest.approx(-4 * 2 ** (-8 / 4), abs=1e-5)
    for key in (3, 29):
        masked = shown.get(f"0/0/why?query=28&key={key}").json
        assert (masked["masked"], masked["weight"]) == (True, 0.0)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotary_pairs_are_those_that_turn_together(
    layout: Any, served: Callable[[Trace], Shown], tmp_path: Any
) -> None:
    torch.manual_seed(0)
    rotary = Rotary(dim=6, layout=layout, base=100.0)
    config = DecoderConfig(
        vocab_size=20, hidden_size=32, num_layers=1, num_heads=4, intermediate_size=48, max_position_embeddings=64,
        position_encoding=rotary,
    )  # fmt: skip
    model = Decoder(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5)
    trace = read(model, torch.randint(0, 20, (40,)), progress=False)
    found = served(trace).get("0/2/why?query=39&key=7").json
    pairs = found["frequencies"]
    assert [pair["period"] for pair in pairs] == pytest.approx([math.tau * 100 ** (at / 3) for at in range(3)])
    assert [pair["dims"] for pair in pairs] == [
        [at, at + 3] if layout == "half" else [2 * at, 2 * at + 1] for at in range(3)
    ]
    for pair in pairs:
        assert pair["product"] == pytest.approx(sum(found["products"][dim] for dim in pair["dims"]), rel=1e-9)
    assert sum(pair["product"] for pair in pairs) + sum(found["products"][6:]) == pytest.approx(found["dot"], rel=1e-9)
    trace.save(tmp_path / "trace")
    assert served(open_trace(tmp_path / "trace")).get("0/2/why?query=39&key=7").json["frequencies"] is None


def test_the_norm_of_a_value_is_known_where_values_were_recorded(served: Callable[[Trace], Shown]) -> None:
    value = torch.randn(1, 2, 30, 5)
    shown = served(one_layer(grouped_call(value=value)))
    for head in range(4):
        norm = shown.get(f"0/{head}/why?query=20&key=4").json["value_norm"]
        assert norm == pytest.approx(float(value[0, head // 2, 4].norm()), rel=1e-6)


def test_without_queries_and_keys_there_is_no_why(served: Callable[[Trace], Shown]) -> None:
    answer = served(Trace.from_attentions([torch.eye(5).expand(1, 2, 5, 5)])).get("0/0/why?query=2&key=2")
    assert (answer.status, "without queries and keys" in answer.json["error"]) == (409, True)
    broken = grouped_call()
    broken.query[0, 0, 5] = torch.nan
    assert served(one_layer(broken)).get("0/0/why?query=5&key=2").status == 400


def test_terms_are_of_one_head() -> None:
    matrix = small_trace()[0]
    with pytest.raises(ShapeError):
        matrix.weight_terms(0, 0)
    with pytest.raises(IndexError):
        matrix.batch(0).head(0).weight_terms(0, 72)
