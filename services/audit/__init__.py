"""The audit stage: every decision and what became of it, in SQL, where it can be queried and explained."""
