"""The router stage: which slot answers a request soonest, and the record of why."""
