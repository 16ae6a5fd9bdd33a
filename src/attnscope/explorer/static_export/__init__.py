"""Static export: a head, and as many others as fit, as a single HTML file."""
