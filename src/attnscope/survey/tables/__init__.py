"""What came of a survey: written, opened, compared."""
