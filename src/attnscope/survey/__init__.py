"""What every head of a model does over a corpus of any size."""

from attnscope.survey.settings import Settings
from attnscope.survey.survey import run_survey
from attnscope.survey.tables.difference import Difference, compare
from attnscope.survey.tables.opening import Survey, open_survey
from attnscope.survey.work.workers import Workers

__all__ = ["Difference", "Settings", "Survey", "Workers", "compare", "open_survey", "run_survey"]
