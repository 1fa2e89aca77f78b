"""Benchmarks: what a decision costs, beside the floor of the same machine in the same run. ``make bench``."""
