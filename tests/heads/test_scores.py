"""Scores are those of dense weights, on every kind of model, and padding changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnscope as ats
from attnscope.attention import Causal, Documents, Sinks
from attnscope.errors import SettingError, ShapeError, UnsupportedError
from attnscope.heads import SCORES, HeadTable, score_heads
from attnscope.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from attnscope.recording import Trace, load, read, record
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from tests.heads.dense import dense_scores
from tests.models.smollm2 import FOLDER, transformers_model
from tests.recording.test_statistics import text_of
from tests.recording.zoo import EXHIBITS, eager_functions_noted

TINY = DecoderConfig(
    vocab_size=30,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=48,
    max_position_embeddings=64,
)


def exhibit(name: str) -> Any:
    return next(found for found in EXHIBITS if found.name == name)


def repeating(batch: int, length: int) -> Tensor:
    """Ids of which most come more than once, some twice in a row."""
    return torch.randint(3, 12, (batch, length), generator=torch.Generator().manual_seed(4))


def eager(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """The weights of each layer by the model's own eager code."""
    model.set_attn_implementation("eager")
    paths = {module: path for path, module in model.named_modules()}
    found: dict[str, Tensor] = {}
    with torch.no_grad(), eager_functions_noted(model, lambda module, weights: found.update({paths[module]: weights})):
        model(**inputs)
    return found


def assert_scores(table: HeadTable, layer: str, wanted: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    rows = [at for at, name in enumerate(table.layers) if name == layer]
    assert [table.heads[row] for row in rows] == list(range(len(rows)))
    for score, values in wanted.items():
        if values.isnan().all():
            assert score not in table.columns or table[score][rows].isnan().all(), score
        else:
            torch.testing.assert_close(table[score][rows], values, rtol=tolerance, atol=tolerance, msg=score)


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "DeepSeek-V3", "BERT", "Mistral"])
def test_decoders_with_shared_and_latent_keys_and_encoders_score_as_their_eager_weights(name: str) -> None:
    model, ids = exhibit(name).build(), repeating(2, 30)
    with torch.no_grad(), record(model) as trace:
        model(input_ids=ids)
    table = score_heads(trace)
    found = eager(model, input_ids=ids)
    assert list(trace) == list(found)
    for layer, weights in found.items():
        assert_scores(table, layer, dense_scores(weights, ids))


def test_a_square_batch_of_ids_is_not_transposed() -> None:
    torch.manual_seed(0)
    model, ids = Decoder(TINY).eval(), repeating(12, 12)
    for name, parameter in model.named_parameters():
        if name.endswith("query_key_value.weight"):
            nn.init.normal_(parameter, std=0.3)
    with torch.no_grad(), record(model) as trace:
        model(ids)
    table = score_heads(trace)
    for layer in trace:
        weights = trace[layer].to_dense()
        wanted, transposed = dense_scores(weights, ids), dense_scores(weights, ids.T)
        assert_scores(table, layer, {score: wanted[score] for score in ("duplicate", "induction")})
        assert not torch.allclose(wanted["induction"], transposed["induction"], rtol=1e-2)


def test_self_and_cross_attention_of_an_encoder_decoder_are_scored_apart() -> None:
    model = exhibit("BART").build()
    inputs = {"input_ids": repeating(2, 21), "decoder_input_ids": repeating(2, 17)}
    with torch.no_grad(), record(model) as trace:
        model(**inputs)
    table = score_heads(trace)
    found = eager(model, **inputs)
    texts = {"encoder": inputs["input_ids"], "decoder": inputs["decoder_input_ids"]}
    for layer, weights in found.items():
        ids = texts["decoder" if "decoder" in layer else "encoder"]
        if "encoder_attn" in layer:
            rows = [at for at, name in enumerate(table.layers) if name == layer]
            for score in ("entropy", "effective_keys", "sink", "concentration"):
                torch.testing.assert_close(table[score][rows], dense_scores(weights)[score], rtol=1e-5, atol=1e-5)
            for score in ("self", "previous", "local", "reach", "duplicate", "induction"):
                assert table[score][rows].isnan().all()
        else:
            assert_scores(table, layer, dense_scores(weights, ids))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["Llama", "BERT"])
def test_padding_on_either_side_changes_no_score(name: str, side: str) -> None:
    model, ids, padding = exhibit(name).build(), repeating(1, 25), torch.zeros(1, 9, dtype=torch.long)
    padded = torch.cat([padding, ids] if side == "left" else [ids, padding], 1)
    real = (padded != 0).long()
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad(), record(model) as alone:
        model(input_ids=ids)
    with torch.no_grad(), record(model) as beside:
        model(input_ids=padded, attention_mask=real, position_ids=positions)
    one, other = score_heads(alone), score_heads(beside)
    assert one.columns.keys() == other.columns.keys()
    for score in one.columns:
        torch.testing.assert_close(other[score], one[score], rtol=1e-4, atol=1e-5, msg=score, equal_nan=True)


def test_leakage_is_the_weight_on_other_documents_and_none_where_they_are_masked() -> None:
    torch.manual_seed(0)
    model, ids = Decoder(TINY).eval(), repeating(1, 40)
    for name, parameter in model.named_parameters():
        if name.endswith("query_key_value.weight"):
            nn.init.normal_(parameter, std=0.3)
    documents = torch.arange(40) // 13
    with torch.no_grad(), record(model) as open_trace:
        model(ids)
    with torch.no_grad(), record(model) as apart:
        model(ids, mask=Documents(documents))
    leaking, closed = (score_heads(trace, documents=documents) for trace in (open_trace, apart))
    for layer in open_trace:
        assert_scores(leaking, layer, dense_scores(open_trace[layer].to_dense(), ids, documents[None]))
    assert (leaking["leakage"] > 0.1).all()
    assert (closed["leakage"] < 1e-6).all()
    with pytest.raises(ShapeError, match=r"documents \(39,\) for layers with 40 keys"):
        score_heads(apart, documents=documents[:-1])


def test_weights_that_were_already_there_and_statistics_give_what_they_can_tell() -> None:
    model, ids = Decoder(TINY).eval(), repeating(2, 30)
    with torch.no_grad(), record(model) as trace:
        model(ids)
    with torch.no_grad(), record(model, keep="statistics") as statistics:
        model(ids)
    whole = score_heads(trace)
    given = Trace.from_attentions({name: trace[name].to_dense() for name in trace})
    of_tokens = {"duplicate", "induction"}
    for part, missing in ((score_heads(statistics), set()), (score_heads(given), of_tokens)):
        assert part.columns.keys() == whole.columns.keys() - missing, part.columns.keys()
        for score in part.columns:
            torch.testing.assert_close(part[score], whole[score], rtol=1e-5, atol=1e-6, msg=score)


def test_a_generation_scores_as_a_pass_over_the_finished_text() -> None:
    model, ids = Decoder(TINY).eval(), repeating(1, 30)
    with torch.no_grad(), record(model) as stepwise:
        cache = model.new_cache()
        for start, stop in ((0, 20), (20, 21), (21, 30)):
            model(ids[:, start:stop], cache=cache)
    with torch.no_grad(), record(model) as whole:
        model(ids)
    one, other = score_heads(stepwise), score_heads(whole)
    for score in other.columns:
        torch.testing.assert_close(one[score], other[score], rtol=1e-5, atol=1e-6, msg=score)


def test_scores_survive_saving_and_opening(tmp_path) -> None:
    model, ids = (
        Encoder(
            EncoderConfig(
                vocab_size=30,
                hidden_size=32,
                num_layers=2,
                num_heads=4,
                intermediate_size=48,
                max_position_embeddings=64,
            )
        ),
        repeating(1, 20),
    )
    with torch.no_grad(), record(model.eval()) as trace:
        model(ids)
    trace.save(tmp_path / "trace")
    kept, opened = score_heads(trace), score_heads(ats.open_trace(tmp_path / "trace"))
    assert kept.columns.keys() == opened.columns.keys()
    assert all(torch.equal(kept[score], opened[score]) for score in kept.columns)


def test_heads_keep_the_numbers_that_they_have_in_their_model(tmp_path) -> None:
    model, ids = Decoder(TINY).eval(), repeating(1, 20)
    with torch.no_grad(), record(model) as whole:
        model(ids)
    for keep in ("matrix", "statistics"):
        with torch.no_grad(), record(model, heads={0: [3, 1], 1: [2]}, keep=keep) as some:
            model(ids)
        some.save(tmp_path / keep)
        wanted = score_heads(whole)
        for trace in (some, ats.open_trace(tmp_path / keep)):
            found = score_heads(trace)
            assert found.heads_by_layer == {"blocks.0.attention": [3, 1], "blocks.1.attention": [2]}
            for layer, head in zip(found.layers, found.heads, strict=True):
                same = wanted.head_scores(layer, head)
                assert found.head_scores(layer, head) == pytest.approx(
                    {name: same[name] for name in found.columns}, abs=1e-6
                )


def test_a_head_that_gives_everything_to_one_token_has_a_choice_all_the_same() -> None:
    """Weights that somebody has built hold zeros for what was masked, and for what was only not looked at."""
    one_hot = torch.eye(30).roll(1, 0)[None, None].clone()
    one_hot[..., 0, :] = torch.eye(30)[0]
    table = score_heads(Trace.from_attentions([torch.cat([one_hot, torch.eye(30)[None, None]], 1)]))
    assert table["previous"].tolist() == [1.0, 0.0]
    assert table["self"].tolist() == [0.0, 1.0]
    assert table.labels == (("previous", "local"), ("self", "local"))
    assert float(table["evenness"].abs().max()) < 1e-6


def test_weights_of_padded_rows_are_left_out_on_the_right_and_refused_on_the_left() -> None:
    model, ids, padding = exhibit("Llama").build(), repeating(1, 25), torch.zeros(1, 9, dtype=torch.long)
    model.set_attn_implementation("eager")

    def attentions(ids: Tensor) -> Trace:
        with torch.no_grad():
            output = model(input_ids=ids, attention_mask=(ids != 0).long(), output_attentions=True)
        return Trace.from_attentions(output.attentions)

    alone, right = score_heads(attentions(ids)), score_heads(attentions(torch.cat([ids, padding], 1)))
    for score in alone.columns:
        torch.testing.assert_close(right[score], alone[score], rtol=1e-4, atol=1e-5, msg=score)
    with pytest.raises(UnsupportedError, match="left padding"):
        score_heads(attentions(torch.cat([padding, ids], 1)))


def test_the_share_of_a_sink_that_is_no_token_changes_neither_evenness_nor_effective_keys() -> None:
    found = []
    for score in (None, Sinks(torch.tensor([3.0]))):
        query = torch.zeros(1, 1, 40, 8)
        trace = Trace()
        call = Call(query=query, key=query, value=None, mask=Causal(), scale=None, score_mod=score)
        trace.layers = {"layer": Layer("layer", call, cross=False)}
        found.append(score_heads(trace))
    for score in ("evenness", "effective_keys", "reach"):
        torch.testing.assert_close(found[1][score], found[0][score], rtol=1e-5, atol=1e-5, msg=score)
    assert float(found[1]["evenness"]) == pytest.approx(1.0, abs=1e-5)
    assert float(found[1]["self"]) < 0.5 * float(found[0]["self"])


@pytest.mark.parametrize("chunk_size", [7, 10, 40])
def test_statistics_of_a_window_that_was_read_in_chunks_are_those_of_its_matrices(chunk_size: int) -> None:
    model, ids = exhibit("Mistral").build(), repeating(1, 40)
    assert model.config.sliding_window < 10
    kept = score_heads(read(model, ids, progress=False, chunk_size=40))
    summed = score_heads(read(model, ids, progress=False, chunk_size=chunk_size, keep="statistics"))
    for score in summed.columns:
        torch.testing.assert_close(summed[score], kept[score], rtol=1e-4, atol=1e-5, msg=score)
    assert {"sink", "concentration", "entropy", "self"} <= summed.columns.keys()


def test_a_probe_that_cannot_tell_its_tokens_is_refused() -> None:
    model, ids = Decoder(TINY).eval(), repeating(1, 20)
    trace = read(model, ids, progress=False)
    given = Trace.from_attentions({name: trace[name].to_dense() for name in trace})
    with pytest.raises(SettingError, match=r"the probe has no token ids.* read_repeated_tokens"):
        score_heads(trace, probe=given)


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(SettingError, match="this trace is empty"):
        score_heads(Trace())


def test_all_heads_of_a_trained_model_score_as_their_eager_weights() -> None:
    length = 512
    model = transformers_model(torch.float32)
    ids = text_of(length)
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager_weights = model(ids, output_attentions=True).attentions
    model.set_attn_implementation(implementation)
    _, tokenizer = load(FOLDER)
    documents = torch.arange(length) // 200
    table = score_heads(read(model, ids, tokenizer, chunk_size=length), documents=documents)
    assert len(table) == 270
    assert table.columns.keys() == SCORES.keys() - {"next"}
    tolerances = {"entropy": 1e-4, "reach": 1e-5 * length, "effective_keys": 1e-5 * length}
    for at, weights in enumerate(eager_weights):
        wanted = dense_scores(weights, ids, documents[None])
        for score in table.columns:
            error = (table[score][9 * at : 9 * at + 9] - wanted[score]).abs().max()
            assert error < tolerances.get(score, 1e-5), (at, score, float(error))
