"""Scores, labels, ablation, activation patching and direct logit attribution of attention heads."""

from attnscope.heads.alignment import Alignment, align, score_alignment, token_times
from attnscope.heads.comparison import AblationComparison, compare_with_random_heads
from attnscope.heads.effects import Effect, Predictions, measure_effect, predict
from attnscope.heads.fact import FactReport, explain_fact
from attnscope.heads.interventions import ablate, patch
from attnscope.heads.labels import LABELS, Label, assign_labels
from attnscope.heads.links import Link, find_heads, parse_link
from attnscope.heads.logit_attribution import LogitAttribution, direct_logit_attribution
from attnscope.heads.over_training import HeadsOverTraining, read_over_training
from attnscope.heads.relations import relation_table, score_relations
from attnscope.heads.repeated_tokens import read_repeated_tokens, repeated_token_ids
from attnscope.heads.retrieval import AnswerLoss, Binned, Retrieval, find_retrieval_heads
from attnscope.heads.rows import RowScores, row_scores
from attnscope.heads.scores import SCORES, score_heads
from attnscope.heads.sentences import Sentence, Word
from attnscope.heads.table import HeadTable
from attnscope.matrix.rollout import rollout

__all__ = [
    "LABELS",
    "SCORES",
    "AblationComparison",
    "Alignment",
    "AnswerLoss",
    "Binned",
    "Effect",
    "FactReport",
    "HeadTable",
    "HeadsOverTraining",
    "Label",
    "Link",
    "LogitAttribution",
    "Predictions",
    "Retrieval",
    "RowScores",
    "Sentence",
    "Word",
    "ablate",
    "align",
    "assign_labels",
    "compare_with_random_heads",
    "direct_logit_attribution",
    "explain_fact",
    "find_heads",
    "find_retrieval_heads",
    "measure_effect",
    "parse_link",
    "patch",
    "predict",
    "read_over_training",
    "read_repeated_tokens",
    "relation_table",
    "repeated_token_ids",
    "rollout",
    "row_scores",
    "score_alignment",
    "score_heads",
    "score_relations",
    "token_times",
]
