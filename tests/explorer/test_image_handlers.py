"""The routes of images: what they say is what `on_image` says."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from attnscope.explorer.library.library import Library
from attnscope.heads.links import find_heads
from attnscope.images.layout import Box, encoder_layout
from attnscope.recording import Trace
from tests.explorer.serving import Handle, serving

ROWS, COLUMNS = 3, 4
LENGTH = 2 + ROWS * COLUMNS


def image_trace() -> Trace:
    """Two layers of three heads over a class token, a register and 3 x 4 patches; and a layer of another length."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"encoder.0": LENGTH, "encoder.1": LENGTH, "pooler": 5}
    scores = {name: 4 * torch.randn(1, 3, size, size, generator=generator) for name, size in sizes.items()}
    trace = Trace.from_attentions({name: some.softmax(-1) for name, some in scores.items()})
    trace.image_layouts = {"": (encoder_layout((1, ROWS, COLUMNS), {"class": 1, "register": 1}),)}
    pixels = np.random.default_rng(0).integers(0, 255, (30, 50, 3), dtype=np.uint8)
    trace.attach_photo(pixels, box=(0.1, 0.0, 0.9, 1.0))
    return trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return image_trace()


@pytest.fixture(scope="module")
def handle(trace: Trace) -> Iterator[Handle]:
    with serving(trace) as found:
        yield found


@pytest.fixture(scope="module")
def root(handle: Handle) -> str:
    return f"/api/1/{handle.get('/api/1/session').json['traces'][0]['trace']}"


def values_of(answer: dict) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(answer["values"]), "<f4")
    return values.reshape(answer["heads"], *answer["grid"])


def test_the_trace_names_its_images_and_their_layers(handle: Handle, root: str) -> None:
    meta = handle.get(f"{root}/meta").json
    assert meta["images"] == [{"image": 0, "layers": [0, 1], "size": [30, 50]}]


def test_where_the_patches_are(handle: Handle, root: str) -> None:
    found = handle.get(f"{root}/1/patches").json
    assert found["query"] == found["key"]
    assert found["key"]["grid"] == [1, ROWS, COLUMNS]
    assert found["key"]["box"] == [0.1, 0.0, 0.9, 1.0]
    assert found["key"]["positions"] == list(range(2, LENGTH))
    assert found["key"]["special"] == [["class", 0, 1], ["register", 1, 2]]


@pytest.mark.parametrize(("kind", "span"), [("query", (0, 1)), ("query", (4, 6)), ("key", (3, 4)), ("received", None)])
def test_maps_are_those_of_on_image(
    handle: Handle, root: str, trace: Trace, kind: str, span: tuple[int, int] | None
) -> None:
    image = trace.on_image()
    true = {
        "query": lambda: image.attends_to("encoder.1", range(*span or (0, 0))),
        "key": lambda: image.attended_by("encoder.1", range(*span or (0, 0))),
        "received": lambda: image.received("encoder.1"),
    }[kind]()
    ends = "" if span is None else f"&p0={span[0]}&p1={span[1]}"
    answer = handle.get(f"{root}/1/picture?of={kind}{ends}").json
    assert np.array_equal(values_of(answer), true.values.float().numpy())
    assert [name for name, _ in answer["elsewhere"]] == list(true.elsewhere)
    for (_, share), expected in zip(answer["elsewhere"], true.elsewhere.values(), strict=True):
        assert share == pytest.approx(expected.tolist(), rel=1e-6)


def test_rollout_ends_at_the_layer(handle: Handle, root: str, trace: Trace) -> None:
    image = trace.on_image()
    for layer, count in ((0, 1), (1, 2)):
        answer = handle.get(f"{root}/{layer}/picture?of=rollout&p0=0&p1=1").json
        true = image.rollout("class", layers=["encoder.0", "encoder.1"][:count])
        assert answer["num_layers"] == count
        assert np.array_equal(values_of(answer), true.values.float().numpy())


def test_sinks_have_names_and_positions(handle: Handle, root: str, trace: Trace) -> None:
    found = handle.get(f"{root}/0/sinks").json
    true = trace.on_image().sinks("encoder.0")
    assert true
    assert [(one["name"], one["position"]) for one in found] == [(one.name, one.position) for one in true]


def test_the_photo_is_a_png_of_the_same_pixels(handle: Handle, root: str, trace: Trace) -> None:
    image = pytest.importorskip("PIL.Image")
    answer = handle.get(f"{root}/photo")
    assert answer.headers["content-type"] == "image/png"
    assert np.array_equal(np.asarray(image.open(io.BytesIO(answer.body))), trace.photos[0].pixels)


def test_heads_are_ranked_by_a_region(handle: Handle, root: str, trace: Trace) -> None:
    region = [range(3, 5), range(7, 9)]
    table = find_heads(trace, query=0, key=region, layers=range(2))
    dense = [trace[layer][0, :, 0, [3, 4, 7, 8]].double().sum(-1) for layer in range(2)]
    true = torch.cat(dense).sort(descending=True).values
    torch.testing.assert_close(table["weight"], true)
    answer = handle.get(f"{root}/find_heads?q0=0&q1=1&runs=3-5,7-9").json
    assert answer["layers"][2] is None  # which has 5 positions
    assert [layer["values"] for layer in answer["layers"][:2]] == [pytest.approx(one.tolist()) for one in dense]
    received = handle.get(f"{root}/find_heads?runs=3-5,7-9&l0=0&l1=1").json["layers"][0]
    columns = trace[0].batch(0)[:, :, [3, 4, 7, 8]].sum(-1)
    assert received["values"] == pytest.approx(columns.double().sum(-1).tolist())
    assert received["positions"] == columns.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("2/patches", 404),
        ("0/patches?image=1", 404),
        ("photo?image=1", 404),
        ("0/picture?of=query", 400),
        ("0/picture?of=other&p0=0&p1=1", 400),
        ("0/picture?of=query&p0=0&p1=99", 400),
        ("find_heads?q0=0&q1=1&runs=3-5,4-9", 400),
        ("find_heads?q0=0&q1=1&runs=3-3", 400),
        ("find_heads?q0=0&q1=1&runs=x", 400),
        ("find_heads?q0=0&q1=1&runs=3-99", 400),
    ],
)
def test_wrong_requests_are_refused(handle: Handle, root: str, path: str, status: int) -> None:
    answer = handle.get(f"{root}/{path}")
    assert answer.status == status
    assert answer.json["error"]


def test_positions_are_named_by_their_patches(handle: Handle, root: str) -> None:
    texts = handle.get(f"{root}/0/tokens?side=key&from=0&to={LENGTH}").json
    assert texts[:4] == [" class", " register", " 0,0", " 0,1"]
    assert texts[-1] == " 2,3"


def test_another_photo_is_another_trace() -> None:
    one, other = image_trace(), image_trace()
    other.photos[0] = other.photos[0]._replace(crop=Box())
    library = Library()
    assert library.add(one, name="one") != library.add(other, name="other")
