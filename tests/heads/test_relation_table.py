"""Relations become a table with the rows of `score_heads`, so that both can be joined."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.heads import assign_labels, relation_table, score_heads, score_relations
from attnscope.heads.relations import RelationScores
from attnscope.heads.sentences import agreement, coreference
from attnscope.recording import load, read
from tests.models.smollm2 import FOLDER

MINILM = FOLDER.parent / "minilm-l6"


def scores_of(preference: list[float], error: list[float]) -> RelationScores:
    return RelationScores(torch.zeros(len(preference)), torch.tensor(preference), torch.tensor(error))


def test_columns_and_rows_come_in_the_order_of_relations_layers_and_heads() -> None:
    found = {
        "agreement": {"b": scores_of([0.5, 0.25], [0.0625, 0.125]), "a": scores_of([0.75], [0.25])},
        "likes": {"b": scores_of([1.0, 2.0], [3.0, 4.0]), "a": scores_of([5.0], [6.0])},
    }
    table = relation_table(found)
    assert table.layers == ("b", "b", "a")
    assert table.heads == (0, 1, 0)
    assert {name: column.tolist() for name, column in table.columns.items()} == {
        "agreement": [0.5, 0.25, 0.75],
        "agreement_error": [0.0625, 0.125, 0.25],
        "likes": [1.0, 2.0, 5.0],
        "likes_error": [3.0, 4.0, 6.0],
    }
    assert all(column.dtype == torch.float64 for column in table.columns.values())
    assert table.labels == (("agreement",), ("mixed",), ("mixed",)), "five standard errors are asked for"


def test_the_table_joins_the_scores_of_the_same_model() -> None:
    model, tokenizer = load(MINILM)
    few = {"agreement": agreement()[:8], "coreference": coreference()[:8]}
    found = score_relations(model, tokenizer, sentences=few)
    table = relation_table(found)
    scores = score_heads(read(model, "The keys to the cabinet are on the table.", tokenizer))
    both = assign_labels(scores.join(table))
    assert len(both) == 6 * 12
    assert (both.layers, both.heads) == (scores.layers, scores.heads)
    assert list(both.columns) == [*scores.columns, *table.columns]
    wanted: Tensor = found["coreference"][scores.layers[30]].preference[scores.heads[30]].double()
    assert both["coreference"][30] == wanted
    assert torch.equal(both["agreement"], table["agreement"])
