"""Documentation, and the generator of its tables."""
