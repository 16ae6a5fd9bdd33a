"""Rank processes that the tests of surveys share."""

from tests.train.conftest import ranks as ranks
