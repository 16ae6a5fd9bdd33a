"""Head statistics over a corpus of any size."""

from attnscope.survey.execution.workers import Workers
from attnscope.survey.headvis.export import export_headvis
from attnscope.survey.run import run_survey
from attnscope.survey.settings import Settings
from attnscope.survey.tables.difference import Difference, compare
from attnscope.survey.tables.survey import Survey, open_survey

__all__ = ["Difference", "Settings", "Survey", "Workers", "compare", "export_headvis", "open_survey", "run_survey"]
