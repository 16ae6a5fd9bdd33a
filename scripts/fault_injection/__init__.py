"""The fault campaign: run commands, disturb them, and check that nothing is wrong or lost afterwards."""
