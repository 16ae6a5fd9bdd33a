"""The explorer evicts the keys that `attnscope.cache` evicts, and adds up the weights that are lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from attnscope.attention import Causal
from attnscope.cache import POLICIES, score_pairs
from attnscope.models import Decoder, DecoderConfig
from attnscope.recording import Trace, read
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from tests.explorer.serving import serving
from tests.explorer.synthetic import random_head
from tests.explorer.test_server import Shown, close, dense_of

TOKENS, CONTEXT = 150, 90
IDS = torch.randint(99, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def grouped_model() -> Decoder:
    """Four query heads, two key-value heads."""
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=99,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=48,
        max_position_embeddings=TOKENS,
    )
    model = Decoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    trace = read(grouped_model(), IDS, progress=False)
    with serving(trace) as handle:
        yield Shown(handle, trace)


def decode_runs(runs: list[int]) -> torch.Tensor:
    """Whether each key is kept."""
    kept = torch.tensor([at % 2 == 0 for at in range(len(runs))])
    return kept.repeat_interleave(torch.tensor(runs))


@pytest.mark.parametrize("by", POLICIES)
def test_keys_and_lost_weight_are_those_of_the_cache(shown: Shown, by: str) -> None:
    context = read(grouped_model(), IDS[:, :CONTEXT], progress=False)  # a run of its own, of the context alone
    name = list(context)[1]
    scores = score_pairs(context, by, progress=False)
    wanted = scores.keep(0.8).keep[name][0]
    assert wanted[0].tolist() != wanted[1].tolist() or by == "recent"
    for head in range(4):
        found = shown.get(f"1/{head}/evicted?by={by}&keep=80&context={CONTEXT}").json
        assert decode_runs(found["runs"]).tolist() == wanted[head // 2].tolist()
        assert (found["context"], found["kept"]) == (CONTEXT, 72)
        dense = dense_of(shown.trace, 1, head).nan_to_num()
        lost = (dense[:, :CONTEXT] * ~wanted[head // 2]).sum(-1)
        assert lost[CONTEXT:].mean() > 0.001
        close(found["lost"], lost[CONTEXT:].mean())
        for query in (CONTEXT, 149):
            answer = shown.get(f"1/{head}/lost/{query}?by={by}&keep=80&context={CONTEXT}")
            close(answer.json["lost"], lost[query])
    assert shown.get(f"1/0/lost/{CONTEXT - 1}?by={by}&keep=80&context={CONTEXT}").json == {"lost": 0.0}


def test_the_context_is_half_of_the_text_unless_it_is_given(shown: Shown) -> None:
    answer = shown.get("0/0/evicted?by=recent&keep=100")
    assert answer.json == {"context": 75, "kept": 75, "runs": [75], "lost": 0.0}
    assert answer.headers["cache-control"].endswith("immutable")
    assert shown.get("0/0/evicted?by=recent&keep=20").json["runs"] == [4, 60, 11]


@pytest.mark.parametrize(
    "wrong", ["", "keep=0", "keep=101", "keep=x", "by=h2o&keep=5", "keep=5&context=0", "keep=5&context=150"]
)
def test_mistakes_are_named(shown: Shown, wrong: str) -> None:
    for path in ("evicted", "lost/9"):
        answer = shown.get(f"0/0/{path}?{wrong}")
        assert answer.status == 400
        assert "Expected" in answer.json["error"]
    assert "more than 64 tokens" in shown.get("0/0/evicted?by=window&keep=5&context=64").json["error"]
    assert shown.get("0/0/lost/150?keep=5").status == 404


def test_layers_without_a_cache_or_with_wrong_weights_are_refused() -> None:
    trace = random_head(9, 9, causal=False).trace()
    with serving(trace) as handle:
        assert "not causal" in Shown(handle, trace).get("0/0/evicted?keep=50").json["error"]
    query = torch.randn(1, 1, 6, 4)
    query[..., 4, :] = torch.nan
    trace = Trace("broken")
    call = Call(query=query, key=torch.randn(1, 1, 6, 4), value=None, mask=Causal(), scale=None)
    trace.layers = {"a": Layer("a", call, cross=False)}
    with serving(trace) as handle:
        for path in ("evicted?by=norm&keep=50", "lost/4?by=norm&keep=50"):
            answer = Shown(handle, trace).get(f"0/0/{path}")
            assert answer.status == 400
            assert "not numbers" in answer.json["error"]
