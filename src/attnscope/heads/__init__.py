"""The science of heads: what each does, and what happens without it."""

from attnscope.heads.comparison import Comparison, compare_with_others
from attnscope.heads.contribution import Contributions, contributions
from attnscope.heads.effects import Effect, Predictions, effect, predictions
from attnscope.heads.interventions import ablate, patch
from attnscope.heads.labels import LABELS, Label, labelled
from attnscope.heads.over_training import HeadsOverTraining, read_over_training
from attnscope.heads.probe import probe_ids, read_probe
from attnscope.heads.relations import relation_table, score_relations
from attnscope.heads.rollout import rollout
from attnscope.heads.rows import RowScores, row_scores
from attnscope.heads.scores import SCORES, score_heads
from attnscope.heads.sentences import Sentence, Word
from attnscope.heads.table import HeadTable

__all__ = [
    "LABELS",
    "SCORES",
    "Comparison",
    "Contributions",
    "Effect",
    "HeadTable",
    "HeadsOverTraining",
    "Label",
    "Predictions",
    "RowScores",
    "Sentence",
    "Word",
    "ablate",
    "compare_with_others",
    "contributions",
    "effect",
    "labelled",
    "patch",
    "predictions",
    "probe_ids",
    "read_over_training",
    "read_probe",
    "relation_table",
    "rollout",
    "row_scores",
    "score_heads",
    "score_relations",
]
