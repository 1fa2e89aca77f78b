"""Whether a live engine does what kvroute relies on: the agent's own code asks, predicts and compares."""
