"""A model that reads what is typed, beside its untrained twin, and without some of its heads."""
