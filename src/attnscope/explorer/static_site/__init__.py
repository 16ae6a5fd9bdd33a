"""The explorer as a static site: archives that a browser reads by HTTP range requests."""
