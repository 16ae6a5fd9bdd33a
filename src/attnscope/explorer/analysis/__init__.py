"""What the panels of the explorer show, computed exactly."""
