"""The benchmark of published sites: its arithmetic, what it reads of other programs, and its small run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnscope.atlas import ZoomPlan
from attnscope.bench.report import Table, duration
from attnscope.errors import SettingError
from attnscope.explorer.static_site.plan import head_size, select_heads, stored_levels
from attnscope.explorer.static_site.publish import publish_trace
from attnscope.formatting import format_bytes
from attnscope.recording.layers.recorded import Layer
from benchmarks import publish_cost
from benchmarks.__main__ import run
from benchmarks.publish import spread, viewed_heads
from benchmarks.publish_cost import (
    Minute,
    Rates,
    SiteShape,
    count_bins,
    fit_rates,
    head_cost,
    viewer_bill,
)
from benchmarks.publishing.exact_values import compare_bodies
from benchmarks.publishing.load import Target, generate_load, parse_load
from benchmarks.publishing.publication import count_bytes, is_tile, tile_targets
from benchmarks.publishing.viewer import AccessLog, find_chromium, viewer_steps
from benchmarks.publishing.web_servers import find_programs
from tests.explorer.serving import small_trace

RATES = Rates(weight_seconds=1e-8, token_seconds=1e-5, dim_growth=1.5, bin_bytes=0.25)
SHAPE = SiteShape(num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64, item_bytes=4)
WRK = """Running 2s test @ http://127.0.0.1:8080/
  2 threads and 256 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    12.80ms    5.21ms  90.11ms   80.00%
  36,400 requests in 2.00s, 388.00MB read
{"requests": 36400, "microseconds": 2000000, "num_bytes": 388000000, "error_responses": 400, "socket_errors": 3, \
"p50_ms": 12.500, "p99_ms": 35.900}
"""


def body(values: np.ndarray, *, is_tile: bool = False) -> bytes:
    header = bytearray(32)
    header[4] = is_tile
    return bytes(header) + values.tobytes()


def test_rates_solve_for_both_terms() -> None:
    known = Rates(2e-9, 3e-6, 1.0, 0.25)
    spent = [(length, head_cost(SHAPE, length, known).cpu_seconds) for length in (8192, 131_072)]
    assert fit_rates(*spent, dim_growth=1.0, bin_bytes=0.25) == pytest.approx(known)


def test_time_that_does_not_grow_is_not_a_negative_rate() -> None:
    found = fit_rates((8192, 3.0), (131_072, 700.0), dim_growth=1.0, bin_bytes=0.25)
    assert found.weight_seconds > 0
    assert found.token_seconds >= 0
    assert head_cost(SHAPE, 131_072, found).cpu_seconds == pytest.approx(700.0, rel=1e-6)


def test_weights_and_tiles_grow_with_the_square_and_the_rest_with_the_length() -> None:
    short, long = (head_cost(SHAPE, length, RATES) for length in (131_072, 1_048_576))
    assert (long.vectors / short.vectors, long.numbers / short.numbers) == (8, 8)
    assert long.tiles / short.tiles == pytest.approx(64, rel=0.01)
    wide = head_cost(SHAPE._replace(head_dim=128), 8192, RATES)
    narrow = head_cost(SHAPE, 8192, RATES)
    assert wide.vectors == 2 * narrow.vectors
    grown = (wide.cpu_seconds - 8192 * 1e-5) / (narrow.cpu_seconds - 8192 * 1e-5)
    assert grown == pytest.approx(1.5)


@pytest.mark.parametrize("length", [1, 255, 256, 300, 2304, 8192])
def test_bins_are_those_below_the_diagonal_of_stored_levels(length: int) -> None:
    strides = [ZoomPlan(length, length).stride(z) for z in stored_levels(ZoomPlan(length, length))]
    expected = sum(sum(last // stride + 1 for last in range(0, length, stride)) for stride in strides)
    assert count_bins(length) == expected


def test_counted_bytes_are_those_of_a_site(tmp_path: Path) -> None:
    trace = small_trace()
    publish_trace(trace, tmp_path / "site", select_heads(trace, []))
    layer = trace.layer(0)
    assert isinstance(layer, Layer)
    call = layer.merge_calls()
    _, heads, length, dim = call.query.shape
    shape = SiteShape(len(trace), heads, call.key.shape[1], dim, call.query.element_size())
    found, cost = count_bytes(tmp_path / "site"), head_cost(shape, length, RATES)
    assert found.queries_and_keys == cost.vectors * shape.heads
    assert found.numbers == cost.numbers * shape.heads
    assert sum(found) == sum(path.stat().st_size for path in (tmp_path / "site").rglob("*") if path.is_file())
    assert cost.num_bytes <= head_size(trace, 0, 0).num_bytes
    targets = tile_targets(tmp_path / "site")
    first, last = map(int, targets[0].value.removeprefix("bytes=").split("-"))
    archive = (tmp_path / "site" / targets[0].path[1:]).read_bytes()
    assert archive[first : first + 2] == b"\x1f\x8b", "a compressed response begins there"
    assert found.tiles == sum(int(last) - int(first) + 1 for _, _, value in targets
                              for first, last in [value.removeprefix("bytes=").split("-")])  # fmt: skip
    assert last < len(archive)


def test_a_bill_has_transfer_and_requests() -> None:
    minute = Minute(requests=100, num_bytes=5e6)
    assert viewer_bill(1_000_000, minute, per_gb=0.02, per_million_requests=0.0) == pytest.approx(100)
    assert viewer_bill(1_000_000, minute, per_gb=0.0, per_million_requests=0.5) == pytest.approx(50)


def test_the_output_of_wrk_is_read() -> None:
    found = parse_load(WRK)
    assert (found.per_second, found.error_responses, found.socket_errors, found.p99_ms) == (18_000, 400, 3, 35.9)
    with pytest.raises(SettingError, match="expected counts from wrk"):
        parse_load("unable to connect to 127.0.0.1:1 Connection refused")


def test_load_stays_on_this_machine(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"load is for 127\.0\.0\.1 only"):
        generate_load("http://example.org/", [Target("/", "Range", "bytes=0-1")], tmp_path, connections=1, seconds=1)


def test_the_log_of_a_server_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("200 300 /\n206 1200 /a/L000/H000.bin?1f\n")
    reader = AccessLog(log)
    assert (reader.count(), reader.take(), reader.take()) == (2, (2, 1500), (0, 0))
    log.write_text(f"{log.read_text()}304 180 /manifest.json\n")
    assert (reader.count(), reader.take()) == (1, (1, 180))


def test_other_weights_masks_and_codes_are_found() -> None:
    weights = np.array([0.5, np.nan, 0.25, 0.125], np.float32)
    codes = np.array([0, 7, 255], np.uint8)
    same = compare_bodies(
        [body(weights), body(codes, is_tile=True), b""], [body(weights), body(codes, is_tile=True), b""]
    )
    assert same == (3, 0.0, 0.0, 0, 3, 0, 0)
    other = weights.copy()
    other[:3] = 0.5, 0.5, 0.375
    found = compare_bodies(
        [body(other), body(codes + np.array([0, 2, 0], np.uint8), is_tile=True)],
        [body(weights), body(codes, is_tile=True)],
    )
    assert found == (3, 0.125, 0.5, 1, 3, 1, 2)
    with pytest.raises(SettingError, match="other shapes"):
        compare_bodies([body(weights)], [b""])


def test_viewed_heads_and_their_steps() -> None:
    every = [(layer, head) for layer in range(4) for head in range(3)]
    first, same, other, third = viewed_heads(every)
    assert same[0] == first[0]
    assert len({first[0], other[0], third[0]}) == 3
    names = [step.name for step in viewer_steps(8192, [first, same, other, third])]
    assert {"another head of the same layer", "a head of another layer", "a head of a third layer"} <= {*names}
    alone = [step.name for step in viewer_steps(8192, viewed_heads([(0, 0)]))]
    assert not any("another" in name or "third" in name for name in alone)
    assert spread(every, 100) == every


def test_tiles_are_told_from_other_responses() -> None:
    assert is_tile("3/0/12?ch=max")
    assert not any(map(is_tile, ("profile", "col/0", "thumbs?ch=max", "3/0?ch=max")))


def test_the_cost_model_has_every_row() -> None:
    check, costs, viewers = run("publish_cost")
    assert [row[:3] for row in costs.rows][-1] == ("a 70B model in bf16", "5,120", "1,048,576")
    assert len(costs.rows) == 6
    assert all(len(row) == len(table.columns) for table in (check, costs, viewers) for row in table.rows)
    assert all(0.8 < float(row[-1]) < 1.25 for row in check.rows)


def test_the_constants_are_those_of_the_result_files() -> None:
    folder = Path(publish_cost.__file__).parent / "results"
    files = [(folder / name).read_text() for name in (publish_cost.RESULT, publish_cost.LONG_RESULT)]
    measured = zip(files, publish_cost.HEAD_SECONDS, publish_cost.HEAD_BYTES, publish_cost.MINUTES.items(), strict=True)
    for text, (length, seconds), (_, num_bytes), (_, minute) in measured:
        assert f"## Publishing {length:,} tokens" in text
        assert f"| CPU time per head | {duration(seconds)} |" in text
        assert f"| per head | {format_bytes(num_bytes)} |" in text
        assert f"| 60 s of a viewer | - | {minute.requests:,} | {format_bytes(minute.num_bytes)} |" in text
    assert f"| per bin of a stored tile | {publish_cost.BIN_BYTES:.3f} bytes |" in files[1]
    assert f"| 64 and 128 | {publish_cost.DIM_GROWTH:.2f} |" in files[1]


@pytest.mark.slow
@pytest.mark.alone
def test_the_small_benchmark_measures_every_part_or_says_what_is_missing() -> None:
    tables = {table.title: table for table in run("publish")}
    assert {"Publishing 2,304 tokens", "Load"} <= tables.keys()
    check_viewing(tables, "2,304 tokens")
    switch = next((row for row in tables["Viewing 2,304 tokens"].rows if row[0] == "a head of another layer"), None)
    if switch is not None:
        assert float(switch[1].removesuffix(" s")) >= 0.05, "a head that was not loaded needs a response"
        assert int(switch[2]) > 0
    if not find_programs("nginx", "wrk"):
        assert float(tables["Load"].rows[0][2].replace(",", "")) > 0


@pytest.mark.slow
@pytest.mark.alone
def test_a_long_text_is_measured_alike() -> None:
    tables = {table.title: table for table in run("publish_long")}
    assert float(tables["Head dimension"].rows[0][1]) > 0
    check_viewing(tables, "4,096 tokens")


def check_viewing(tables: dict[str, Table], name: str) -> None:
    viewing = tables[f"Viewing {name}"]
    if find_programs("nginx") or find_chromium() is None:
        assert viewing.columns[0] == "missing program"
        return
    weights, masks, codes = tables[f"Deepest zoom of {name}"].rows
    assert int(weights[1].replace(",", "")) > 0
    assert float(weights[3].split(",")[0]) < 1e-6
    assert (masks[2], codes[3] in ("0 of 255", "1 of 255")) == ("0", True)
