"""What every head of a model does over a corpus of any size."""

from sightline.survey.settings import Settings
from sightline.survey.survey import run_survey
from sightline.survey.tables.difference import Difference, compare
from sightline.survey.tables.opening import Survey, open_survey
from sightline.survey.work.workers import Workers

__all__ = ["Difference", "Settings", "Survey", "Workers", "compare", "open_survey", "run_survey"]
