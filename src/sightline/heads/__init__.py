"""The science of heads: what each does, and what happens without it."""

from sightline.heads.comparison import Comparison, compare_with_others
from sightline.heads.contribution import Contributions, contributions
from sightline.heads.effects import Effect, Predictions, effect, predictions
from sightline.heads.interventions import ablate, patch
from sightline.heads.labels import LABELS, Label, labelled
from sightline.heads.over_training import HeadsOverTraining, read_over_training
from sightline.heads.probe import probe_ids, read_probe
from sightline.heads.relations import relation_table, score_relations
from sightline.heads.rows import RowScores, row_scores
from sightline.heads.scores import SCORES, score_heads
from sightline.heads.sentences import Sentence, Word
from sightline.heads.table import HeadTable

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
    "row_scores",
    "score_heads",
    "score_relations",
]
