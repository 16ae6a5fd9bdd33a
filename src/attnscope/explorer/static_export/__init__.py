"""Static export: one head as a single HTML file."""
