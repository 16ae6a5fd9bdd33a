"""The tables of a survey: written, opened, compared."""
