"""What there is to say of a head, a query, a text, in exact numbers."""
