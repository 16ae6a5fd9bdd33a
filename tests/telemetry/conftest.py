"""Rank processes that the tests of telemetry share."""

from tests.train.conftest import ranks as ranks
