"""A HeadVis tree has every documented field, and the numbers of patterns that were recorded independently."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnscope.errors import AttnScopeError
from attnscope.models import CharacterTokenizer, load
from attnscope.recording import Trace, open_trace, read
from attnscope.survey import Survey, export_headvis, run_survey
from attnscope.survey.headvis.export import Estimate
from attnscope.survey.partials import examples
from tests.survey.survey_process import SMALL, write_model, write_text

TOLERANCE = 1.0001e-4  # numbers are rounded to four decimals
CORPUS = "lines"


class Exported:
    """A survey, its tree, and the dense patterns of its sample by an independent pass."""

    def __init__(self, folder: Path) -> None:
        self.model = write_model(folder / "model")
        self.survey: Survey = run_survey(
            self.model, write_text(folder / f"{CORPUS}.txt", 1500), folder / "survey", **SMALL
        )
        self.estimates: list[Estimate] = []
        self.progress: list[tuple[int, int]] = []
        self.tree = export_headvis(
            self.survey,
            folder / "exports",
            num_passages=14,
            progress=lambda done, total: self.progress.append((done, total)),
            on_estimate=self.estimates.append,
        )
        model, tokenizer = load(self.model), CharacterTokenizer.load(self.model)
        self.ids = [one.ids for one in self.survey.sample(14)]
        self.texts = [tokenizer.texts(ids) for ids in self.ids]
        traces = [read(model, ids, progress=False) for ids in self.ids]
        self.patterns = [torch.stack([trace[at].batch(0)[:] for at in range(2)]).double() for trace in traces]

    def json(self, name: str) -> Any:
        return json.loads((self.tree / name).read_text())

    def heads(self) -> list[tuple[int, int]]:
        return [(layer, head) for layer in range(2) for head in range(4)]

    def largest(self, layer: int, head: int) -> list[float]:
        return [float(pattern[layer, head, 1:, 1:].max()) for pattern in self.patterns]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(tmp_path_factory.mktemp("headvis"))


def test_the_tree_has_the_documented_files(exported: Exported) -> None:
    assert exported.tree.parts[-3:] == ("model", "headvis", CORPUS)
    heads = {f"heads/L{layer}H{head}.json" for layer, head in exported.heads()}
    others = {"config.json", "scatter_data.json", "server_config.json", "attributions/manifest.json"}
    files = {str(path.relative_to(exported.tree)) for path in exported.tree.rglob("*") if path.is_file()}
    assert files == heads | others
    assert exported.json("server_config.json") == exported.json("attributions/manifest.json") == {}
    assert [path.name for path in exported.tree.parent.iterdir()] == [CORPUS]


def test_the_config_names_heads_metrics_and_provenance(exported: Exported) -> None:
    config = exported.json("config.json")
    assert (config["model_name"], config["np_model_id"], config["dataset_name"]) == ("model", "model", CORPUS)
    assert config["heads"] == [list(place) for place in exported.heads()]
    assert (config["n_layers"], config["n_heads"], config["n_intervals"]) == (2, 4, 5)
    assert config["metrics"] == list(config["metric_descriptions"])
    assert (config["head_data_pattern"], config["has_umap"], config["umap_heads"]) == (
        "L{layer}H{head}.json",
        False,
        [],
    )
    assert [plot["key"] for plot in config["custom_plots"]] == ["qk_distance_histogram", "histogram"]
    assert [table["key"] for table in config["custom_tables"]] == ["top_query_tokens", "top_key_tokens"]
    assert list(config["statistics_display"]) == ["n_samples", "mean_max_activation"]
    pipeline = config["pipeline_config"]
    assert (pipeline["n_sequences"], pipeline["seq_len"]) == (14, 64)
    assert (pipeline["dtype"], pipeline["attn_implementation"]) == ("float32", "attnscope")
    assert pipeline["model_hash"] == exported.survey.manifest["model"]["hash"]
    assert str(exported.model.parent) not in json.dumps(config)


def test_metrics_equal_those_of_dense_patterns(exported: Exported) -> None:
    rows = exported.json("scatter_data.json")
    assert [(row["layer"], row["head"]) for row in rows] == exported.heads()
    for row in rows:
        expected = dense_metrics([pattern[row["layer"], row["head"]] for pattern in exported.patterns], exported.ids)
        assert row == pytest.approx({"layer": row["layer"], "head": row["head"], **expected}, abs=TOLERANCE)


def dense_metrics(patterns: list[torch.Tensor], ids: list[tuple[int, ...]]) -> dict[str, float]:
    """The documented metrics, one cell at a time where that is the definition."""
    queries = sum(map(len, ids))
    distances = [torch.arange(len(one))[:, None] - torch.arange(len(one)) for one in ids]
    distance = sum(float((p * d).sum()) for p, d in zip(patterns, distances, strict=True)) / queries
    square = sum(float((p * d * d).sum()) for p, d in zip(patterns, distances, strict=True)) / queries
    induction, repeated = 0.0, 0
    for pattern, own in zip(patterns, ids, strict=True):
        for query, token in enumerate(own):
            earlier = [key for key in range(query) if own[key] == token]
            weights = [float(pattern[query, key + 1]) for key in earlier]
            induction += sum(weight for weight in weights if weight >= 0.01)
            repeated += bool(earlier)
    return {
        "self_attention_score": sum(float(p.trace()) for p in patterns) / queries,
        "prev_token_score": sum(float(p.diagonal(-1).sum()) for p in patterns) / (queries - len(ids)),
        "pattern_entropy": sum(float(-torch.xlogy(p, p).sum()) for p in patterns) / queries,
        "qk_distance": distance,
        "qk_distance_variance": square - distance**2,
        "induction_score": induction / repeated,
    }


def test_the_survey_agrees_where_its_definition_is_the_same(exported: Exported, tmp_path: Path) -> None:
    passages = exported.survey.manifest["corpus"]["passages"]
    tree = export_headvis(exported.survey, tmp_path, num_passages=256, progress=False)
    assert json.loads((tree / "config.json").read_text())["pipeline_config"]["n_sequences"] == passages
    rows = json.loads((tree / "scatter_data.json").read_text())
    means = exported.survey.heads["previous"].tolist()
    assert [row["prev_token_score"] for row in rows] == pytest.approx(means, abs=TOLERANCE)


def test_sequences_are_the_largest_weights_of_each_query(exported: Exported) -> None:
    for layer, head in exported.heads():
        found = exported.json(f"heads/L{layer}H{head}.json")
        assert found["statistics"]["n_samples"] == len(found["sequences"])
        for sequence in found["sequences"]:
            number = sequence["sequence_id"]
            pattern, length = exported.patterns[number][layer, head], sequence["seq_len"]
            assert sequence["tokens"] == exported.texts[number]
            assert length == len(exported.ids[number])
            assert sequence["max_activation"] == pytest.approx(exported.largest(layer, head)[number], abs=TOLERANCE)
            kept = pattern >= torch.maximum(pattern.topk(min(8, length)).values[:, -1:], torch.tensor(0.005))
            assert sequence["attention_indices"] == kept.flatten().nonzero()[:, 0].tolist()
            assert sequence["attention_values"] == pytest.approx(pattern[kept].tolist(), abs=TOLERANCE)


def test_intervals_are_equal_parts_of_the_sample(exported: Exported) -> None:
    for layer, head in exported.heads():
        largest = np.array(exported.largest(layer, head))
        boundaries = np.sort(largest)[[2, 5, 8, 11]]
        intervals = 1 + (largest[:, None] >= boundaries).sum(1)
        found = exported.json(f"heads/L{layer}H{head}.json")["sequences"]
        shown = [(one["interval"], one["sequence_id"]) for one in found]
        assert all(interval == intervals[one] for interval, one in shown)
        counts = [min(int((intervals == number).sum()), 10 if number == 5 else 3) for number in range(1, 6)]
        assert [interval for interval, _ in shown] == np.repeat(range(1, 6), counts).tolist()
        top = [one for interval, one in shown if interval == 5]
        assert top == sorted(top, key=lambda one: -largest[one])
        assert set(top) >= {int(largest.argmax())}


def test_aggregates_of_a_head_equal_its_sequences(exported: Exported) -> None:
    for layer, head in exported.heads():
        found, largest = exported.json(f"heads/L{layer}H{head}.json"), exported.largest(layer, head)
        counts, edges = np.histogram(largest, 50, (0, 1))
        assert found["histogram"]["bin_values"] == counts.tolist()
        assert found["histogram"]["bin_edges"] == pytest.approx(edges.tolist(), abs=TOLERANCE)
        assert found["statistics"]["mean_max_activation"] == pytest.approx(np.mean(largest), abs=TOLERANCE)
        places = [divmod(index, one["seq_len"]) for one in found["sequences"] for index in one["attention_indices"]]
        values = [value for one in found["sequences"] for value in one["attention_values"]]
        edges = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
        mass, _ = np.histogram([query - key for query, key in places], edges, weights=values)
        assert found["qk_distance_histogram"]["bin_edges"] == edges
        assert found["qk_distance_histogram"]["bin_values"] == pytest.approx(mass.tolist(), abs=TOLERANCE)
        for side, name in enumerate(("top_query_tokens", "top_key_tokens")):
            tokens = [one["tokens"] for one in found["sequences"] for _ in one["attention_indices"]]
            weights: dict[str, float] = {}
            for place, text, value in zip(places, tokens, values, strict=True):
                weights[text[place[side]]] = weights.get(text[place[side]], 0.0) + value
            assert {row["token"]: row["weight"] for row in found[name]} == pytest.approx(weights, abs=TOLERANCE)
            assert found[name] == sorted(found[name], key=lambda row: -row["weight"])


def test_time_and_size_are_estimated_before_it_starts(exported: Exported) -> None:
    (estimate,) = exported.estimates
    tokens = sum(map(len, exported.ids))
    assert (estimate.num_heads, estimate.num_sequences, estimate.num_tokens) == (8, 14, tokens)
    written = sum(path.stat().st_size for path in exported.tree.rglob("*") if path.is_file())
    assert written / 2 < estimate.num_bytes < 2 * written
    assert estimate.seconds > 0
    assert exported.progress[0] == (0, 2 * tokens)
    assert exported.progress[-1] == (2 * tokens, 2 * tokens)


def test_a_trace_is_a_tree_of_one_sequence(exported: Exported, tmp_path: Path) -> None:
    model, tokenizer = load(exported.model), CharacterTokenizer.load(exported.model)
    read(model, exported.ids[0], tokenizer, progress=False).save(tmp_path / "trace")
    tree = export_headvis(open_trace(tmp_path / "trace"), tmp_path, model_id="mine", dataset="a/b", progress=False)
    assert tree == tmp_path / "mine" / "headvis" / "a-b"
    config = json.loads((tree / "config.json").read_text())
    assert (config["np_model_id"], config["dataset_name"], config["n_layers"]) == ("mine", "a/b", 2)
    (sequence,) = json.loads((tree / "heads" / "L1H3.json").read_text())["sequences"]
    assert (sequence["interval"], sequence["tokens"]) == (5, exported.texts[0])
    row = json.loads((tree / "scatter_data.json").read_text())[-1]
    expected = dense_metrics([exported.patterns[0][1, 3]], exported.ids[:1])
    assert row == pytest.approx({"layer": 1, "head": 3, **expected}, abs=TOLERANCE)


def test_a_metric_that_no_query_has_is_null(tmp_path: Path, exported: Exported) -> None:
    trace = read(load(exported.model), [0, 1, 2], CharacterTokenizer.load(exported.model), progress=False)
    tree = export_headvis(trace, tmp_path, dataset="x", model_id="x", progress=False)
    rows = json.loads((tree / "scatter_data.json").read_text())
    assert {row["induction_score"] for row in rows} == {None}
    assert all(row["prev_token_score"] is not None for row in rows)


def ids_trace(exported: Exported, ids: Any, **options: Any) -> Trace:
    return read(load(exported.model), ids, CharacterTokenizer.load(exported.model), progress=False, **options)


REFUSED: dict[str, tuple[Callable[[Exported], Trace], str]] = {
    "statistics": (lambda e: ids_trace(e, [0, 1, 2], keep="statistics"), "statistics instead of patterns"),
    "two texts": (lambda e: ids_trace(e, torch.tensor([[0, 1], [1, 2]])), "expected a trace of one text, got 2"),
    "one token": (lambda e: ids_trace(e, [0]), "fewer than two"),
    "no ids": (lambda _: Trace.from_attentions([torch.eye(3)[None, None]], tokens=["a", "b", "c"]), "no token ids"),
    "some heads": (lambda e: ids_trace(e, [0, 1, 2], heads=[1, 3]), "only some heads"),
    "some layers": (lambda e: ids_trace(e, [0, 1, 2], layers="blocks.1.attention"), "lacks layers of the model"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_format_cannot_hold_is_an_error(kind: str, exported: Exported, tmp_path: Path) -> None:
    make, message = REFUSED[kind]
    with pytest.raises(AttnScopeError, match=message):
        export_headvis(make(exported), tmp_path, dataset="x", model_id="x", progress=False)
    assert not list(tmp_path.iterdir())


def test_another_model_is_an_error(exported: Exported, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", intermediate_size=40)
    with pytest.raises(AttnScopeError, match="has other parameters than the model of the survey, model"):
        export_headvis(exported.survey, tmp_path / "out", model=other, progress=False)
    assert not (tmp_path / "out").exists()


def test_a_moved_model_can_be_named(exported: Exported, tmp_path: Path) -> None:
    moved = write_model(tmp_path / "moved")
    tree = export_headvis(exported.survey, tmp_path / "out", model=moved, num_passages=2, progress=False)
    assert json.loads((tree / "config.json").read_text())["model_name"] == "model"


def test_an_existing_tree_stays(exported: Exported) -> None:
    before = (exported.tree / "config.json").read_bytes()
    with pytest.raises(AttnScopeError, match="exists; remove it"):
        export_headvis(exported.survey, exported.tree.parents[2], progress=False)
    assert (exported.tree / "config.json").read_bytes() == before


def test_an_export_that_fails_leaves_nothing(exported: Exported, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if 2 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_headvis(exported.survey, tmp_path, num_passages=3, progress=stop)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_sample_is_the_one_that_the_deciles_come_from(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "SAMPLE_SIZE", 5)
    survey = run_survey(exported.model, write_text(tmp_path / "text.txt", 1500), tmp_path / "survey", **SMALL)
    found = [
        survey.examples(*place) for place in (("blocks.0.attention", 0, "self"), ("blocks.1.attention", 3, "sink"))
    ]
    deciles = {one.passage for some in found for one in some if one.kind == "decile"}
    top = {one.passage for some in found for one in some if one.kind == "top"}
    sample = {one.passage for one in survey.sample(5)}
    assert deciles == sample
    assert top - sample
    assert [one.passage for one in survey.sample(2)] == [one.passage for one in survey.sample(5)][:2]


@pytest.mark.parametrize("count", [0, 257])
def test_a_sample_has_a_size(count: int, exported: Exported) -> None:
    with pytest.raises(AttnScopeError, match="1 to 256 passages"):
        exported.survey.sample(count)
