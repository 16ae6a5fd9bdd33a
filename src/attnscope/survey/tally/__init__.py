"""What is counted of every head, in a form that can be merged."""
