"""Scores of queries: their means are those of heads, and packed documents score as each of them alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attnscope as ats
from attnscope.attention import Causal, Documents, Mask, Padding
from attnscope.errors import SettingError, ShapeError
from attnscope.heads.rows import RowScores, row_scores
from attnscope.heads.scores import SCORES, score_heads
from attnscope.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from attnscope.recording import Trace, read, record
from attnscope.recording.token_pairs import documents_in
from tests.heads.test_scores import exhibit, repeating
from tests.models.smollm2 import own_model
from tests.recording.test_statistics import text_of

CLOSE = 1e-5
TINY = DecoderConfig(
    vocab_size=30,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=48,
    max_position_embeddings=128,
)
OF_QUERIES = SCORES.keys() - {"concentration", "leakage"}


def sharp(model: nn.Module) -> nn.Module:
    """A model without training, whose heads look somewhere all the same."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.endswith("query_key_value.weight"):
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


def numbered(lengths: list[list[int]]) -> Tensor:
    """The number of the document of each token, for rows of documents of these lengths."""
    rows = [torch.repeat_interleave(torch.tensor(row)) for row in lengths]
    return torch.stack(rows)


def places_in(documents: Tensor) -> Tensor:
    """Positions that start again with each document."""
    return torch.stack(
        [torch.cat([torch.arange(int(n)) for n in row.unique_consecutive(return_counts=True)[1]]) for row in documents]
    )


def packed(model: Decoder, ids: Tensor, documents: Tensor, keep: str, more: Mask | None = None) -> Trace:
    mask = Documents(documents) if more is None else Documents(documents) & more
    with torch.no_grad(), record(model, keep=keep) as trace:  # type: ignore[arg-type]
        model.features(ids, mask=mask, position_ids=places_in(documents))
    return trace


def assert_same_scores(found: dict[str, RowScores], wanted: dict[str, RowScores], tolerances: dict[str, float]) -> None:
    """Of one document: the same queries count, exactly, and have the same scores."""
    for name in wanted:
        (ours, counted), (theirs, wanted_counted) = found[name], wanted[name]
        assert torch.equal(counted.expand_as(ours), wanted_counted.expand_as(theirs)), name
        error = (ours - theirs).abs().masked_fill(~counted, 0.0).max()
        assert error < tolerances.get(name, CLOSE), (name, float(error))


def part(scores: dict[str, RowScores], row: int, start: int, stop: int) -> dict[str, RowScores]:
    return {
        name: RowScores(values[row : row + 1, :, start:stop], counted.expand_as(values)[row : row + 1, :, start:stop])
        for name, (values, counted) in scores.items()
    }


def assert_packed_as_alone(model: Decoder, ids: Tensor, documents: Tensor, tolerances: dict[str, float]) -> int:
    """Compare each document of packed rows with a pass over it alone, in traces of both kinds; how many were there."""
    traces = [packed(model, ids, documents, keep) for keep in ("matrix", "statistics")]
    compared = 0
    for row, numbers in enumerate(documents):
        for number in numbers.unique().tolist():
            places = (numbers == number).nonzero().flatten()
            start, stop = int(places[0]), int(places[-1]) + 1
            alone = read(model, ids[row : row + 1, start:stop], progress=False)
            for trace in traces:
                for name in alone:
                    scores = row_scores(trace, name, documents=documents)
                    assert scores.keys() == OF_QUERIES | {"leakage"}
                    assert scores["leakage"].values.max() < CLOSE
                    assert_same_scores(part(scores, row, start, stop), row_scores(alone, name), tolerances)
            compared += 1
    return compared


def test_packed_documents_of_a_small_model_score_as_each_alone() -> None:
    model = sharp(Decoder(TINY))
    assert isinstance(model, Decoder)
    documents = numbered([[30, 2, 25, 1, 12], [40, 9, 21]])
    ids = repeating(2, 70)
    ids[0, 29] = ids[0, 40]  # the last token of a document comes again in the next, whose first token did not follow it
    wide = 70 * CLOSE
    assert assert_packed_as_alone(model, ids, documents, {"reach": wide, "effective_keys": wide}) == 8


def test_packed_documents_of_a_trained_model_score_as_each_alone() -> None:
    model, _ = own_model()
    documents = numbered([[70, 41, 9], [100, 3, 17]])
    wide = 120 * CLOSE
    tolerances = {"reach": wide, "effective_keys": wide, "entropy": 1e-4}
    assert assert_packed_as_alone(model, text_of(240).view(2, 120), documents, tolerances) == 6


def test_documents_of_an_encoder_have_no_token_before_their_first() -> None:
    model = sharp(
        Encoder(
            EncoderConfig(
                vocab_size=30,
                hidden_size=32,
                num_layers=1,
                num_heads=2,
                intermediate_size=48,
                max_position_embeddings=64,
            )
        )
    )
    documents = numbered([[5, 20, 15]])
    for keep in ("matrix", "statistics"):
        with torch.no_grad(), record(model, keep=keep) as trace:
            model(repeating(1, 40), mask=Documents(documents))
        scores = row_scores(trace, 0, documents=documents)
        begins, ends = [0, 5, 25], [4, 24, 39]
        assert (~scores["previous"].counted[0, 0]).nonzero().flatten().tolist() == begins
        assert (~scores["next"].counted[0, 0]).nonzero().flatten().tolist() == ends


def test_the_mean_of_the_queries_that_count_is_the_score_of_the_head() -> None:
    model, ids = sharp(Decoder(TINY)), repeating(2, 40)
    for keep in ("matrix", "statistics"):
        trace = read(model, ids, progress=False, keep=keep)
        table = score_heads(trace)
        for at, name in enumerate(trace):
            scores = row_scores(trace, name)
            assert scores.keys() == OF_QUERIES
            for score in scores.keys() - {"next"}:
                assert torch.equal(table[score][4 * at : 4 * at + 4], scores[score].mean()), score


def test_statistics_read_in_pieces_tell_tokens_as_matrices_do(tmp_path: Path) -> None:
    for model, ids in ((sharp(Decoder(TINY)), repeating(2, 50)), (exhibit("Mistral").build(), repeating(1, 50))):
        whole = read(model, ids, progress=False, chunk_size=50)
        for chunk_size in (50, 17, 7):
            summed = read(model, ids, progress=False, chunk_size=chunk_size, keep="statistics")
            summed.save(tmp_path / "trace")
            for trace in (summed, ats.open_trace(tmp_path / "trace")):
                for name in whole:
                    found, wanted = row_scores(trace, name), row_scores(whole, name)
                    assert found.keys() == wanted.keys()
                    assert wanted["induction"].counted.any()
                    assert_same_scores(found, wanted, {"reach": 50 * CLOSE, "effective_keys": 50 * CLOSE})


def test_documents_in_pieces_begin_where_they_began_in_an_earlier_piece() -> None:
    model, ids, documents = sharp(Decoder(TINY)), repeating(1, 40), numbered([[25, 15]])
    assert isinstance(model, Decoder)
    whole = packed(model, ids, documents, "statistics")
    with torch.no_grad(), record(model, keep="statistics", length=40) as trace:
        cache, positions = model.new_cache(), places_in(documents)
        for start, stop in ((0, 10), (10, 30), (30, 40)):
            mask = Documents(documents[:, :stop])
            model.features(ids[:, start:stop], mask=mask, position_ids=positions[:, start:stop], cache=cache)
    for name in whole:
        found, wanted = (row_scores(one, name, documents=documents) for one in (trace, whole))
        assert found.keys() == wanted.keys()
        assert_same_scores(found, wanted, {"reach": 40 * CLOSE, "effective_keys": 40 * CLOSE})


def test_saved_statistics_know_their_documents(tmp_path: Path) -> None:
    model, ids, documents = sharp(Decoder(TINY)), repeating(1, 40), numbered([[25, 15]])
    assert isinstance(model, Decoder)
    trace = packed(model, ids, documents, "statistics")
    trace.save(tmp_path / "trace")
    opened = ats.open_trace(tmp_path / "trace")
    for name in trace:
        found, wanted = (row_scores(one, name, documents=documents + 3) for one in (opened, trace))
        assert found.keys() == wanted.keys() == OF_QUERIES | {"leakage"}
        for score in wanted:
            assert all(map(torch.equal, found[score], wanted[score]))


def test_documents_that_the_mask_has_not_told_are_refused_for_statistics() -> None:
    model, ids, documents = sharp(Decoder(TINY)), repeating(1, 40), numbered([[25, 15]])
    assert isinstance(model, Decoder)
    with pytest.raises(SettingError, match=r"Documents\(documents\)"):
        row_scores(read(model, ids, progress=False, keep="statistics"), 0, documents=documents)
    with pytest.raises(SettingError, match=r"Documents\(documents\)"):
        row_scores(packed(model, ids, documents, "statistics"), 0, documents=documents.flip(1))
    with pytest.raises(ShapeError, match=r"documents \(1, 39\) for the 40 keys"):
        row_scores(read(model, ids, progress=False), 0, documents=documents[:, 1:])


def test_a_document_that_begins_with_padding_has_its_first_real_token_as_sink() -> None:
    model, documents = sharp(Decoder(TINY)), numbered([[14, 20]])
    assert isinstance(model, Decoder)
    ids, real = repeating(1, 34), torch.arange(34)[None] >= 6
    kept = packed(model, ids, documents, "matrix", Padding(keep=real))
    summed = packed(model, ids, documents, "statistics", Padding(keep=real))
    for name in kept:
        sink = row_scores(kept, name, documents=documents)["sink"]
        weights = kept[name].to_dense()
        torch.testing.assert_close(sink.values[..., 6:14], weights[..., 6:14, 6], atol=CLOSE, rtol=0)
        torch.testing.assert_close(sink.values[..., 14:], weights[..., 14:, 14], atol=CLOSE, rtol=0)
        assert "sink" not in row_scores(summed, name, documents=documents)


def test_documents_that_see_each_other_are_one_text() -> None:
    model, ids, documents = sharp(Decoder(TINY)), repeating(1, 40), numbered([[25, 15]])
    trace = read(model, ids, progress=False)
    for name in trace:
        apart, plain = row_scores(trace, name, documents=documents), row_scores(trace, name)
        assert apart.keys() == plain.keys() | {"leakage"}
        for score in plain:
            assert all(map(torch.equal, apart[score], plain[score])), score


def test_half_of_a_text_without_ids_leaves_tokens_untold() -> None:
    """Pieces whose ids are known and pieces that come as embeddings have the pairings of positions in common."""
    model, ids = exhibit("Llama").build(), repeating(1, 30)
    cache = None
    with torch.no_grad(), record(model, keep="statistics", length=30) as trace:
        cache = model(input_ids=ids[:, :20], use_cache=True).past_key_values
        model(inputs_embeds=model.get_input_embeddings()(ids[:, 20:]), past_key_values=cache, use_cache=True)
    wanted = row_scores(read(model, ids, progress=False), 0)
    found = row_scores(trace, 0)
    assert found.keys() == wanted.keys() - {"duplicate", "induction"}
    assert_same_scores(found, {name: wanted[name] for name in found}, {"reach": 3e-4, "effective_keys": 3e-4})


def test_only_documents_that_are_joined_by_and_are_kept_apart() -> None:
    documents = torch.tensor([0, 0, 1])
    assert documents_in(Causal() & (Padding([3]) & Documents(documents))) is not None
    assert documents_in(Causal() | Documents(documents)) is None
    assert documents_in(Causal() & ~Documents(documents)) is None
    assert documents_in(Documents(documents) & Documents(documents)) is None
